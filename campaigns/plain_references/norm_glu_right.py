"""Right kernels of RMSNorm with a SiLU-gated linear layer. Sums of squares, products and SiLU are float32.

style     what it rounds
fused     normed to the inputs' dtype as the operand of both products, the shared axis in tiles; out rounded once
split_k   fused, the shared axis in three ranges whose partial sums are added after; squares summed by tiles, then
          merged
late      x * weight to the dtype as the operand; rstd multiplies the products after (normed but for a row's
          factor): beside norm_glu, needs the reference norm_glu_late
base2     fused with silu as gate / (1 + exp2(-gate log2 e)) and rstd as 1 / sqrt
wide      normed stays float32
staged    fused that returns rstd, normed (float32, before the cast), gate, up and out
unit      torch's RMSNorm: x * rstd rounded to the dtype before weight: --contract stored=unit:DTYPE
two_gemms gate and up are stored in the dtype before SiLU: --contract stored=gate:DTYPE+up:DTYPE
tf32      operands in TF32 (float32 inputs): --contract operands=tf32
"""

import torch

LOG2E = 1.4426950408889634


def tf32(x):
    bits = x.float().contiguous().view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & -0x2000).view(torch.float32)


def sum_squares(x, tile):
    """By tiles, the tiles' sums added in pairs."""
    parts = [(x[:, at : at + tile] ** 2).sum(-1, keepdim=True) for at in range(0, x.shape[1], tile)]
    while len(parts) > 1:
        parts = [sum(parts[i : i + 2][1:], parts[i]) for i in range(0, len(parts), 2)]
    return parts[0]


def tiles_of(operand, w, tile, ranges=1):
    dim = operand.shape[1]
    width = -(-dim // ranges)
    partial = []
    for first in range(0, dim, width):
        acc, last = torch.zeros(operand.shape[0], w.shape[0]), min(first + width, dim)
        for at in range(first, last, tile):
            stop = min(at + tile, last)
            acc = acc + operand[:, at:stop] @ w[:, at:stop].T
        partial.append(acc)
    total = partial[0]
    for part in partial[1:]:
        total = total + part
    return total


def fused(x, weight, w_gate, w_up, style, tile):
    dtype, dim = x.dtype, x.shape[1]
    narrow = {"wide": lambda a: a, "tf32": tf32}.get(style, lambda a: a.to(dtype).float())
    x, weight, w_gate, w_up = (a.float() for a in (x, weight, w_gate, w_up))
    squares = sum_squares(x, tile) if style == "split_k" else (x * x).sum(-1, keepdim=True)
    mean_square = squares * (1 / dim) + 1e-6
    rstd = 1 / torch.sqrt(mean_square) if style == "base2" else torch.rsqrt(mean_square)
    unit = x * rstd
    if style == "unit":
        unit = unit.to(dtype).float()
    normed = x * weight if style == "late" else unit * weight
    if style == "tf32":
        w_gate, w_up = tf32(w_gate), tf32(w_up)
    ranges = 3 if style == "split_k" else 1
    gate = tiles_of(narrow(normed), w_gate, tile, ranges)
    up = tiles_of(narrow(normed), w_up, tile, ranges)
    if style == "late":
        gate, up = gate * rstd, up * rstd
    if style == "two_gemms":
        gate, up = gate.to(dtype).float(), up.to(dtype).float()
    hidden = gate / (1 + torch.exp2(-gate * LOG2E)) if style == "base2" else gate / (1 + torch.exp(-gate))
    out = (hidden * up).to(dtype)
    return {"rstd": rstd, "normed": normed, "gate": gate, "up": up, "out": out} if style == "staged" else out


def right(style, tile):
    def kernel(x, weight, w_gate, w_up):
        return fused(x, weight, w_gate, w_up, style, tile)

    kernel.__name__ = kernel.__qualname__ = f"{style}_{tile}"
    return kernel


ALL, HALF = ("float32", "float16", "bfloat16"), ("float16", "bfloat16")
STYLES = {  # style: tiles, contract, dtypes, a second reference in its form
    "fused": ((8, 32, 64), "", ALL),
    "split_k": ((8, 16, 32), "", ALL),
    "late": ((16, 64), "", ALL, "norm_glu_late"),
    "base2": ((16, 32), "", ALL),
    "wide": ((32,), "", ALL),
    "staged": ((16, 32), "", ALL),
    "unit": ((32,), "stored=unit:{dtype}", HALF),
    "two_gemms": ((32,), "stored=gate:{dtype}+up:{dtype}", HALF),
    "tf32": ((32,), "operands=tf32", ("float32",)),
}
AXES = (
    {"rows": 24},
    {"rows": 17, "dim": 128, "features": 33},
    {"rows": 40, "dim": 50, "features": 64},
    {"rows": 8, "dim": 384},
)
KERNELS = {f"{style}_{tile}": row[1:] for style, row in STYLES.items() for tile in row[0]}
globals().update({f"{style}_{tile}": right(style, tile) for style, row in STYLES.items() for tile in row[0]})
