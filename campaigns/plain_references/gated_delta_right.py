"""Right kernels of the gated delta rule. States, sums and exponentials are float32; the final state is returned in
float32.

style      what it rounds
recurrent  token by token, all in float32 (operands are the inputs as they are); out rounded once
base2      recurrent with the gate as exp2(g log2 e) and sums over K in blocks that are merged after (tile: a block
           of K)
operands   recurrent whose products' operands are in the inputs' dtype: the decayed state (k . state), delta (k x
           delta) and the state (q . state); the state itself stays float32
folded     float32: decay after the sum, delta = beta v - exp(g) (beta k) . state, scale folded into q
chunk      another order: chunks of `tile` tokens, cumulated gates, the triangular system solved in float32,
           operands float32
tensor_chunk  chunk (of 8) with the inverse of the system; every operand of every product in the inputs' dtype,
              among them
           beta k, q exp(G), beta k exp(G), k exp(G_end - G), the inverse, q k^T and the corrected v: beside
           gated_delta, needs the reference gated_delta_chunked
staged     recurrent that returns delta[t], state[t] for t = 0, 7, 15 and the last, and out and state
stored     recurrent whose state is rounded to the dtype each token: --contract stored=state:DTYPE
tf32       operands in TF32 (float32 inputs): --contract operands=tf32
"""

import math

import torch

LOG2E = 1.4426950408889634


def tf32(x):
    bits = x.float().contiguous().view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & -0x2000).view(torch.float32)


def contract_rows(row, state, block):
    """row . state, the sum over K in blocks."""
    parts = [(row[:, at : at + block, None] * state[:, at : at + block]).sum(1) for at in range(0, row.shape[1], block)]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def recurrent(q, k, v, g, beta, style, tile):
    dtype, (heads, T, K) = q.dtype, q.shape
    q, k, v, g, beta = (x.float() for x in (q, k, v, g, beta))
    narrow = {"operands": lambda x: x.to(dtype).float(), "tf32": tf32}.get(style, lambda x: x)
    block = tile if style == "base2" else K
    scale = torch.tensor(1 / math.sqrt(K), dtype=torch.float32)
    state = torch.zeros(heads, K, v.shape[-1])
    outs, seen = [], {}
    for t in range(T):
        gate = torch.exp2(g[:, t] * LOG2E) if style == "base2" else torch.exp(g[:, t])
        decayed = state * gate[:, None, None]
        key, query = narrow(k[:, t]), narrow(q[:, t])
        delta = beta[:, t, None] * (v[:, t] - contract_rows(key, narrow(decayed), block))
        state = decayed + key[:, :, None] * narrow(delta)[:, None, :]
        if style == "stored":
            state = state.to(dtype).float()
        outs.append(contract_rows(query, narrow(state), block) * scale)
        if style == "staged" and t in (0, 7, 15, T - 1):
            seen |= {f"delta[{t}]": delta, f"state[{t}]": state}
    out = torch.stack(outs, dim=1).to(dtype)
    return {**seen, "out": out, "state": state} if style == "staged" else (out, state)


def folded(q, k, v, g, beta):
    dtype, (heads, T, K) = q.dtype, q.shape
    q, k, v, g, beta = (x.float() for x in (q, k, v, g, beta))
    q = q * (1 / math.sqrt(K))
    state = torch.zeros(heads, K, v.shape[-1])
    outs = []
    for t in range(T):
        gate, b = torch.exp(g[:, t])[:, None], beta[:, t, None]
        delta = b * v[:, t] - gate * torch.bmm((b * k[:, t])[:, None], state)[:, 0]
        state = torch.addcmul(gate[:, :, None] * state, k[:, t, :, None], delta[:, None, :])
        outs.append(torch.bmm(q[:, t, None], state)[:, 0])
    return torch.stack(outs, dim=1).to(dtype), state


def chunk(q, k, v, g, beta, tile):
    dtype, (heads, T, K) = q.dtype, q.shape
    q, k, v, g, beta = (x.float() for x in (q, k, v, g, beta))
    q = q * (1 / math.sqrt(K))
    state = torch.zeros(heads, K, v.shape[-1])
    outs = []
    for at in range(0, T, tile):
        qc, kc, vc, gc, bc = (x[:, at : at + tile] for x in (q, k, v, g, beta))
        G = gc.cumsum(1)
        between = torch.exp(torch.tril(G[:, :, None] - G[:, None, :])).tril()
        eye = torch.eye(kc.shape[1])
        lower = (bc[:, :, None] * between * (kc @ kc.transpose(1, 2))).tril(-1)
        known = bc[:, :, None] * (vc - torch.exp(G)[:, :, None] * (kc @ state))
        u = torch.linalg.solve_triangular(eye + lower, known, upper=False, unitriangular=True)
        outs.append(torch.exp(G)[:, :, None] * (qc @ state) + (between * (qc @ kc.transpose(1, 2))) @ u)
        left = torch.exp(G[:, -1:] - G)[:, :, None]
        state = torch.exp(G[:, -1])[:, None, None] * state + (kc * left).transpose(1, 2) @ u
    return torch.cat(outs, dim=1).to(dtype), state


def tensor_chunk(q, k, v, g, beta, tile):
    dtype, (heads, T, K) = q.dtype, q.shape

    def mm(a, b):
        return a.to(dtype).float() @ b.to(dtype).float()

    q, k, v, g, beta = (x.float() for x in (q, k, v, g, beta))
    state, outs = torch.zeros(heads, K, v.shape[-1]), []
    for at in range(0, T, tile):
        qc, kc, vc, gc, bc = (x[:, at : at + tile] for x in (q, k, v, g, beta))
        G, b, eye = gc.cumsum(1), bc[:, :, None], torch.eye(min(tile, T - at))
        grow, left = torch.exp(G)[:, :, None], torch.exp(G[:, -1:] - G)[:, :, None]
        between = torch.exp(torch.tril(G[:, :, None] - G[:, None, :])).tril()
        lower = (between * mm(b * kc, kc.transpose(1, 2))).tril(-1)
        solve = torch.linalg.solve_triangular(eye + lower, eye.expand_as(lower), upper=False, unitriangular=True)
        fresh = mm(solve, b * vc) - mm(mm(solve, b * kc * grow), state)
        inside = between * mm(qc, kc.transpose(1, 2))
        outs.append((mm(qc * grow, state) + mm(inside, fresh)) / math.sqrt(K))
        state = torch.exp(G[:, -1])[:, None, None] * state + mm((kc * left).transpose(1, 2), fresh)
    return torch.cat(outs, dim=1).to(dtype), state


def right(style, tile):
    def kernel(q, k, v, g, beta):
        if style == "folded":
            return folded(q, k, v, g, beta)
        if style == "chunk":
            return chunk(q, k, v, g, beta, tile)
        if style == "tensor_chunk":
            return tensor_chunk(q, k, v, g, beta, tile)
        return recurrent(q, k, v, g, beta, style, tile)

    kernel.__name__ = kernel.__qualname__ = f"{style}_{tile}"
    return kernel


ALL, HALF = ("float32", "float16", "bfloat16"), ("float16", "bfloat16")
STYLES = {  # style: tiles, contract, dtypes, a second reference in its form
    "recurrent": ((1,), "", ALL),
    "base2": ((4, 8), "", ALL),
    "operands": ((1,), "", ALL),
    "folded": ((1,), "", ALL),
    "chunk": ((4, 8, 16), "", ALL),
    "tensor_chunk": ((8,), "", HALF, "gated_delta_chunked"),
    "staged": ((1,), "", ALL),
    "stored": ((1,), "stored=state:{dtype}", HALF),
    "tf32": ((1,), "operands=tf32", ("float32",)),
}
AXES = (
    {"T": 32},
    {"T": 27, "K": 8, "V": 8, "heads": 3},
    {"T": 40, "K": 32, "V": 16},
    {"T": 17, "K": 24, "V": 12, "heads": 1},
)
OTHER = ("chunk", "tensor_chunk")  # not the recurrence of the reference
KERNELS = {f"{style}_{tile}": row[1:] for style, row in STYLES.items() for tile in row[0]}
globals().update({f"{style}_{tile}": right(style, tile) for style, row in STYLES.items() for tile in row[0]})
