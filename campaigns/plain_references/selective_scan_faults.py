"""Wrong kernels of the selective scan. The twins `sequential`, `staged` and `chunk` are the same code without a
fault.

All round as `base2` and `chunk` of selective_scan_right.py (float32, out rounded once); staged returns delta and
decay, update and state of every token.
"""

import torch

LOG2E = 1.4426950408889634
CHUNK = 8


def softplus(a, threshold=20.0):
    return torch.where(a > threshold, a, torch.log1p(torch.exp(a.clamp(max=threshold))))


def sum_in(x, dtype):
    total = torch.zeros(x.shape[:-1])
    for n in range(x.shape[-1]):
        total = (total + x[..., n]).to(dtype).float()
    return total


def run_sequential(x, dt, dt_bias, A, B, C, D, fault="", stages=False):
    dtype = x.dtype
    delta = softplus(dt.float() + dt_bias.float(), 2.0 if fault == "softplus_threshold" else 20.0)
    if fault == "delta_rounded":
        delta = delta.to(dtype).float()
    x, A, B, C, D = (a.float() for a in (x, A, B, C, D))
    unit = {"exp2_without_log2e": 1.0, "log2e_short": 1.442696}.get(fault, LOG2E)
    A2 = A * unit
    state, outs, seen = torch.zeros_like(A), [], {"delta": delta}
    for t in range(x.shape[0]):
        decay = torch.exp2(delta[t][:, None] * A2)
        update = (x[t] if fault == "step_forgotten" else delta[t] * x[t])[:, None] * B[t]
        state = decay * (state + update) if fault == "decay_on_update" else decay * state + update
        if fault == "state_bfloat16" and t % CHUNK == CHUNK - 1:
            state = state.bfloat16().float()
        y = state * C[max(t - 1, 0) if fault == "previous_c" else t]
        y = sum_in(y, dtype) if fault == "y_in_input_dtype" else y.sum(-1)
        outs.append(y if fault == "skip_forgotten" else y + D * x[t])
        seen |= {f"decay[{t}]": decay, f"update[{t}]": update, f"state[{t}]": state}
    out = torch.stack(outs).to(dtype)
    return {**seen, "out": out, "state": state} if stages else (out, state)


def run_staged(x, dt, dt_bias, A, B, C, D, fault=""):
    return run_sequential(x, dt, dt_bias, A, B, C, D, fault, stages=True)


def run_chunk(x, dt, dt_bias, A, B, C, D, fault=""):
    dtype, T = x.dtype, x.shape[0]
    delta = softplus(dt.float() + dt_bias.float())
    x, A, B, C, D = (a.float() for a in (x, A, B, C, D))
    decay = torch.exp(delta[..., None] * A)
    update = (delta * x)[..., None] * B[:, None, :]
    carried, outs = torch.zeros_like(A), []
    for at in range(0, T, CHUNK):
        a, b = decay[at : at + CHUNK], update[at : at + CHUNK]
        if fault == "partial_chunk_restarts" and a.shape[0] < CHUNK:
            carried = torch.zeros_like(A)
        local, states = torch.zeros_like(A), []
        reach = a if fault == "carry_by_last_decay" else a.cumprod(0)
        for t in range(a.shape[0]):
            local = a[t] * local + b[t]
            states.append(local + reach[t] * carried)
        outs.append((torch.stack(states) * C[at : at + CHUNK, None]).sum(-1) + D * x[at : at + CHUNK])
        carried = states[-1]
    return torch.cat(outs).to(dtype), carried


ALL, HALF, SINGLE = ("float32", "float16", "bfloat16"), ("float16", "bfloat16"), ("float32",)
RUNS = {"sequential": run_sequential, "staged": run_staged, "chunk": run_chunk}
SIZE = {"T": 21, "channels": 16, "N": 8}
DELTA = "delta = F.softplus(dt + dt_bias)"
DECAY = "decay = torch.exp(delta[t][:, None] * A)"
UPDATE = "update = (delta[t] * x[t])[:, None] * B[t]"
STATE = "state = decay * state + update"
Y = "y = state @ C[t]"
# name: twin, dtypes, axes, seed, size, kind, the reference's line, what is wrong
ROWS = {
    "softplus_threshold": ("staged", ALL, SIZE, 1, "gross", "clamp", DELTA,
                           "softplus returns its argument from 2 up instead of from 20 up."),
    "state_bfloat16": ("staged", HALF, SIZE, 2, "fine", "cast", STATE,
                       "The state is kept in bfloat16 from a chunk of 8 tokens to the next, undeclared."),
    "skip_forgotten": ("sequential", ALL, SIZE, 3, "gross", "part of a sum", "outs.append(y + D * x[t])",
                       "The skip D x is not added."),
    "step_forgotten": ("staged", ALL, SIZE, 4, "gross", "factor", UPDATE, "The update is x B without delta."),
    "exp2_without_log2e": ("staged", ALL, SIZE, 5, "gross", "factor", DECAY,
                           "The decay is exp2(delta A) instead of exp(delta A)."),
    "previous_c": ("sequential", ALL, SIZE, 6, "gross", "index",
                   Y, "The output of token t reads C of token t - 1."),
    "decay_on_update": ("sequential", ALL, SIZE, 7, "gross", "order", STATE,
                        "The update is added before the decay, so that it decays, too."),
    "carry_by_last_decay": ("chunk", ALL, SIZE, 8, "gross", "operand", DECAY,
                            "The carried state is multiplied by the token's own decay, not by the chunk's product."),
    "partial_chunk_restarts": ("chunk", ALL, SIZE, 9, "gross", "part of a sum", STATE,
                               "The last, partial chunk starts from a state of zeros."),
    "y_in_input_dtype": ("sequential", HALF, SIZE, 10, "fine", "cast", Y,
                         "The sum over N is kept in the inputs' dtype from term to term."),
    "log2e_short": ("sequential", SINGLE, SIZE, 11, "fine", "factor", DECAY,
                    "log2(e) is 1.442696 where A is scaled for exp2: exponents are 6.6e-7 too large."),
    "delta_rounded": ("staged", HALF, SIZE, 12, "fine", "cast", DELTA,
                      "delta is rounded to the inputs' dtype, undeclared."),
}  # fmt: skip
KEYS = ("twin", "dtypes", "axes", "seed", "size", "kind", "line", "what")
FAULTS = {name: dict(zip(KEYS, row, strict=True)) for name, row in ROWS.items()}


def wrong(twin, fault=""):
    def kernel(x, dt, dt_bias, A, B, C, D):
        return RUNS[twin](x, dt, dt_bias, A, B, C, D, fault)

    kernel.__name__ = kernel.__qualname__ = fault or twin
    return kernel


globals().update({name: wrong(name) for name in RUNS} | {name: wrong(row[0], name) for name, row in ROWS.items()})
