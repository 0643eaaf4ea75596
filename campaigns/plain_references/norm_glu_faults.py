"""Wrong kernels of RMSNorm with a SiLU-gated linear layer. The twins `fused` and `staged` are the same code
without a fault.

Both round as `fused` of norm_glu_right.py (normed to the inputs' dtype as an operand, out once); staged returns
its stages.
"""

import torch

TILE = 16


def sum_in(x, dtype):
    """Sum over the last axis in tiles, the running sum kept in dtype."""
    total = torch.zeros(x.shape[0], 1)
    for at in range(0, x.shape[1], TILE):
        total = (total + x[:, at : at + TILE].sum(-1, keepdim=True)).to(dtype).float()
    return total


def linear(operand, w, fault):
    acc = torch.zeros(operand.shape[0], w.shape[0])
    for at in range(0, operand.shape[1], TILE):
        block = w[:, at : at + TILE]
        if fault == "dropped_k_tile" and block.shape[1] < TILE:
            break
        if fault == "block_transposed" and at == TILE:
            block = torch.cat([block[:TILE].T, block[TILE:]])
        acc = acc + operand[:, at : at + TILE] @ block.T
    return acc


def run_fused(x, weight, w_gate, w_up, fault="", stages=False):
    dtype, dim = x.dtype, x.shape[1]
    x, weight, w_gate, w_up = (a.float() for a in (x, weight, w_gate, w_up))
    squares = sum_in(x * x, dtype if fault == "squares_in_input_dtype" else torch.float32)
    mean_square = squares / (dim - 1 if fault == "n_minus_1" else dim)
    rstd = torch.rsqrt(mean_square + 1e-6)
    if fault == "eps_missing":
        rstd = torch.rsqrt(mean_square)
    if fault == "eps_outside":
        rstd = 1 / (torch.sqrt(mean_square) + 1e-6)
    if fault == "root_forgotten":
        rstd = 1 / (mean_square + 1e-6)
    if fault == "weight_shifted":
        weight = weight.roll(-1)
    if fault == "weight_in_bfloat16":
        weight = weight.bfloat16().float()
    normed = x * rstd * weight
    operand = normed.to(dtype).float()
    gate = linear(operand, w_gate, fault)
    up = linear(operand, w_up, "" if fault == "block_transposed" else fault)
    if fault == "gate_rounded":
        gate = gate.to(dtype).float()
    hidden = gate / (1 + torch.exp(-gate))
    out = gate * up / (1 + torch.exp(-up)) if fault == "silu_on_up" else hidden * up
    if fault == "last_column_zero":
        out = torch.cat([out[:, :-1], torch.zeros(out.shape[0], 1)], dim=1)
    out = out.to(dtype)
    named = {"mean_square": mean_square, "rstd": rstd, "normed": normed, "gate": gate, "up": up, "out": out}
    return named if stages else out


def run_staged(x, weight, w_gate, w_up, fault=""):
    return run_fused(x, weight, w_gate, w_up, fault, stages=True)


ALL, HALF, SINGLE = ("float32", "float16", "bfloat16"), ("float16", "bfloat16"), ("float32",)
RUNS = {"fused": run_fused, "staged": run_staged}
SIZE = {"rows": 24, "dim": 120, "features": 40}
# name: twin, dtypes, axes, seed, size, kind, the reference's line, what is wrong
ROWS = {
    "eps_missing": ("staged", ALL, SIZE, 0, "gross", "offset", "rstd = torch.rsqrt(mean_square + 1e-6)",
                    "eps is not added: rows of small x are scaled up too far."),
    "eps_outside": ("fused", ALL, SIZE, 1, "gross", "offset", "rstd = torch.rsqrt(mean_square + 1e-6)",
                    "eps is added to the root instead of to the mean square."),
    "n_minus_1": ("staged", HALF, SIZE, 2, "fine", "factor", "mean_square = x.pow(2).mean(-1, keepdim=True)",
                  "The mean divides by dim - 1."),
    "squares_in_input_dtype": ("staged", HALF, SIZE, 3, "fine", "cast",
                               "mean_square = x.pow(2).mean(-1, keepdim=True)",
                               "The running sum of squares is kept in the inputs' dtype from tile to tile."),
    "dropped_k_tile": ("fused", ALL, SIZE, 4, "gross", "part of a sum", "gate = normed @ w_gate.T",
                       "The last, partial tile of the shared axis is left out of both products."),
    "silu_on_up": ("fused", ALL, SIZE, 5, "gross", "operand", "hidden = torch.nn.functional.silu(gate)",
                   "SiLU is applied to up instead of to gate."),
    "root_forgotten": ("fused", ("float32", "bfloat16"), SIZE, 6, "gross", "power",
                       "rstd = torch.rsqrt(mean_square + 1e-6)",
                       "1 / (mean square + eps) instead of its root."),
    "weight_shifted": ("staged", ALL, SIZE, 7, "gross", "index", "normed = unit * weight",
                       "Column j is multiplied by the weight of column j + 1."),
    "block_transposed": ("fused", ALL, SIZE, 8, "gross", "index", "gate = normed @ w_gate.T",
                         "One block of w_gate (features 0-15, columns 16-31) is loaded transposed."),
    "last_column_zero": ("fused", ALL, SIZE, 9, "gross", "index", "out = hidden * up",
                         "The last column of the output is never written and stays zero."),
    "gate_rounded": ("staged", HALF, SIZE, 10, "fine", "cast", "gate = normed @ w_gate.T",
                     "gate is rounded to the inputs' dtype before SiLU, undeclared; up is not."),
    "weight_in_bfloat16": ("fused", ("float16",), SIZE, 11, "fine", "cast", "normed = unit * weight",
                           "weight is read as bfloat16 though it is float16."),
}  # fmt: skip
KEYS = ("twin", "dtypes", "axes", "seed", "size", "kind", "line", "what")
FAULTS = {name: dict(zip(KEYS, row, strict=True)) for name, row in ROWS.items()}


def wrong(twin, fault=""):
    def kernel(x, weight, w_gate, w_up):
        return RUNS[twin](x, weight, w_gate, w_up, fault)

    kernel.__name__ = kernel.__qualname__ = fault or twin
    return kernel


globals().update({name: wrong(name) for name in RUNS} | {name: wrong(row[0], name) for name, row in ROWS.items()})
