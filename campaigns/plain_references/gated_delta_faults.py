"""Wrong kernels of the gated delta rule. The twins `recurrent`, `staged` and `chunk` are the same code without a
fault.

All round as `recurrent` and `chunk` of gated_delta_right.py (float32, out rounded once); staged returns pred,
delta and state of every token.
"""

import math

import torch

CHUNK = 8


def run_recurrent(q, k, v, g, beta, fault="", stages=False):
    dtype, (heads, T, K) = q.dtype, q.shape
    q, k, v, g, beta = (x.float() for x in (q, k, v, g, beta))
    scale = torch.tensor(1 / math.sqrt(K), dtype=torch.float32)
    if fault == "scale_in_bfloat16":
        scale = scale.bfloat16().float()
    if fault == "gate_clamped":
        g = g.clamp(min=-2.0)
    state = torch.zeros(heads, K, v.shape[-1])
    outs, seen = [], {}
    for t in range(T):
        log_gate = g[:, max(t - 1, 0)] if fault == "previous_gate" else g[:, t]
        gate = torch.exp(log_gate)
        if fault == "cheap_exp":
            gate = 1 + log_gate * (1 + log_gate * (1 / 2 + log_gate / 6))
        decayed = state * gate[:, None, None]
        key, query = k[:, t, :, None], q[:, t, :, None]
        pred = (key * (state if fault == "decay_after_prediction" else decayed)).sum(1)
        delta = beta[:, t, None] * (v[:, t] - pred)
        if fault == "beta_forgotten":
            delta = v[:, t] - pred
        if fault == "beta_on_v_only":
            delta = beta[:, t, None] * v[:, t] - pred
        update = key * delta[:, None, :]
        if fault == "outer_transposed":
            update = update.transpose(1, 2)
        before, state = decayed, decayed + update
        if fault == "last_row_of_chunk" and t % CHUNK == CHUNK - 1:
            state = decayed
        if fault == "state_bfloat16" and t % CHUNK == CHUNK - 1:
            state = state.bfloat16().float()
        outs.append((query * (before if fault == "out_before_update" else state)).sum(1) * scale)
        seen |= {f"pred[{t}]": pred, f"delta[{t}]": delta, f"state[{t}]": state}
    out = torch.stack(outs, dim=1).to(dtype)
    return {**seen, "out": out, "state": state} if stages else (out, state)


def run_staged(q, k, v, g, beta, fault=""):
    return run_recurrent(q, k, v, g, beta, fault, stages=True)


def run_chunk(q, k, v, g, beta, fault=""):
    dtype, (heads, T, K) = q.dtype, q.shape
    q, k, v, g, beta = (x.float() for x in (q, k, v, g, beta))
    q = q * (1 / math.sqrt(K))
    state = torch.zeros(heads, K, v.shape[-1])
    outs = []
    for at in range(0, T, CHUNK):
        qc, kc, vc, gc, bc = (x[:, at : at + CHUNK] for x in (q, k, v, g, beta))
        G = gc.cumsum(1)
        between = torch.exp(torch.tril(G[:, :, None] - G[:, None, :])).tril()
        lower = (bc[:, :, None] * between * (kc @ kc.transpose(1, 2))).tril(-1)
        known = bc[:, :, None] * (vc - torch.exp(G)[:, :, None] * (kc @ state))
        system = torch.eye(kc.shape[1]) + lower
        u = torch.linalg.solve_triangular(system, known, upper=False, unitriangular=True)
        carried = torch.exp(gc if fault == "exp_g_not_cumsum" else G)[:, :, None] * (qc @ state)
        outs.append(carried + (between * (qc @ kc.transpose(1, 2))) @ u)
        left = torch.exp(G[:, -1:] - G)[:, :, None]
        kept = torch.exp(G[:, -1])
        state = kept[:, None, None] * state + (kc * left).transpose(1, 2) @ u
    return torch.cat(outs, dim=1).to(dtype), state


ALL, HALF, SINGLE = ("float32", "float16", "bfloat16"), ("float16", "bfloat16"), ("float32",)
RUNS = {"recurrent": run_recurrent, "staged": run_staged, "chunk": run_chunk}
SIZE, SQUARE = {"T": 21, "K": 24, "V": 16}, {"T": 21, "K": 16, "V": 16}
DECAY = "decayed = state * torch.exp(g[:, t])[:, None, None]"
PRED = 'pred = torch.einsum("hk,hkv->hv", k[:, t], decayed)'
DELTA = "delta = beta[:, t, None] * (v[:, t] - pred)"
STATE = "state = decayed + k[:, t, :, None] * delta[:, None, :]"
OUT = 'outs.append(torch.einsum("hk,hkv->hv", q[:, t], state) / math.sqrt(K))'
# name: twin, dtypes, axes, seed, size, kind, the reference's line, what is wrong
ROWS = {
    "decay_after_prediction": ("staged", ALL, SIZE, 0, "gross", "order", PRED,
                               "The prediction reads the state before its decay; the decay is applied after."),
    "previous_gate": ("staged", ALL, SIZE, 1, "gross", "index",
                      DECAY, "The decay of token t uses the gate of token t - 1."),
    "beta_forgotten": ("staged", ALL, SIZE, 2, "gross", "factor", DELTA, "delta is not multiplied by beta."),
    "state_bfloat16": ("staged", HALF, SIZE, 6, "fine", "cast", STATE,
                       "The state is kept in bfloat16 from a chunk of 8 tokens to the next, undeclared."),
    "last_row_of_chunk": ("recurrent", ALL, SIZE, 3, "gross", "part of a sum", STATE,
                          "The last token of each chunk of 8 is not written to the state."),
    "exp_g_not_cumsum": ("chunk", ALL, SIZE, 3, "gross", "operand", DECAY,
                         "In a chunk the carried state reaches the outputs by exp(g) instead of exp(cumsum g)."),
    "out_before_update": ("recurrent", ALL, SIZE, 5, "gross", "order", OUT,
                          "The output reads the decayed state before the token's update is added."),
    "beta_on_v_only": ("recurrent", ALL, SIZE, 7, "gross", "operand", DELTA,
                       "beta multiplies v but not the prediction: beta v - pred."),
    "outer_transposed": ("recurrent", ALL, SQUARE, 8, "gross", "index", STATE,
                         "The update is added transposed: delta k^T instead of k delta^T (K = V)."),
    "cheap_exp": ("recurrent", SINGLE, SIZE, 2, "fine", "other", DECAY,
                  "exp(g) is the cubic 1 + g + g^2 / 2 + g^3 / 6: wrong by g^4 / 24."),
    "scale_in_bfloat16": ("recurrent", ("float16",), {"T": 21, "K": 15, "V": 16}, 9, "fine", "cast", OUT,
                          "1 / sqrt(K) is a bfloat16 constant: all outputs share a factor that is 0.15 % off."),
    "gate_clamped": ("staged", HALF, SIZE, 13, "fine", "clamp", DECAY,
                     "Gates below -2 are taken as -2: one token of one head has one."),
}  # fmt: skip
KEYS = ("twin", "dtypes", "axes", "seed", "size", "kind", "line", "what")
FAULTS = {name: dict(zip(KEYS, row, strict=True)) for name, row in ROWS.items()}


def wrong(twin, fault=""):
    def kernel(q, k, v, g, beta):
        return RUNS[twin](q, k, v, g, beta, fault)

    kernel.__name__ = kernel.__qualname__ = fault or twin
    return kernel


globals().update({name: wrong(name) for name in RUNS} | {name: wrong(row[0], name) for name, row in ROWS.items()})
