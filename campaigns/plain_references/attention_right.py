"""Right kernels of causal attention with shared kv heads. All sums, exponentials and states are float32.

style        what it rounds
online       FlashAttention-2: exp2 of scores * (scale log2 e); weights (relative to the running maximum) to the
             inputs' dtype as the operand of weights @ v; sum and accumulator rescaled a tile; out rounded once;
             lse float32
backwards    online, tiles from the last key to the first, inner sums of q @ k in steps of 8
split        keys in two ranges, online in each, partial outputs merged by exp2(lse_i - max)
two_pass     the maximum first, then exp tile by tile; weights to the dtype, divided by the sum after weights @ v
normalised   probs = weights * (1 / sum) to the dtype, then probs @ v tile by tile
wide         two_pass whose weights stay float32 (no operand is rounded beyond the inputs)
stages       two_pass that returns scores, row_max, weights, row_sum (float32, before the cast), out and lse
staged_probs normalised that returns scores, probs (float32, before the cast), out and lse
tf32         two_pass of float32 inputs, all operands of both products in TF32: --contract operands=tf32
half_scores  two_pass whose scores are rounded to the dtype: --contract stored=scores:DTYPE
fast_exp     two_pass whose exp is wrong by up to 3 ulps: --contract exp_ulps=4

Where weights are an operand and the division comes after, the operand is not one of `attention` (probs is): the
form is `attention_unnormalised`, the second reference of those styles in 16 bits.
"""

import math

import torch

LOG2E = 1.4426950408889634
NEVER = float("-inf")


def tf32(x):
    bits = x.float().contiguous().view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & -0x2000).view(torch.float32)


def rough_exp(x):
    return torch.exp(x) * (1 + torch.sin(1e4 * torch.nan_to_num(x, neginf=0.0)) * (3 * 2.0**-24))


def product(a, b, step=None):
    """a @ b in float32, the shared axis in steps."""
    step = step or a.shape[-1]
    total = torch.zeros(*a.shape[:-1], b.shape[-1])
    for at in range(0, a.shape[-1], step):
        total = total + a[..., at : at + step] @ b[..., at : at + step, :]
    return total


def per_head(q, k, v):
    shared = q.shape[0] // k.shape[0]
    head = torch.arange(q.shape[0]) // shared
    return q.float(), k.float()[head], v.float()[head]


def masked(scores, start):
    rows, cols = scores.shape[-2:]
    inside = torch.arange(rows)[:, None] >= start + torch.arange(cols)[None, :]
    return torch.where(inside, scores, torch.tensor(NEVER))


def online_range(q, k, v, dtype, starts, tile, end, step=None):
    """Unnormalised output, running maximum (of scores in log2 units) and sum over tiles of keys."""
    unit = torch.tensor(LOG2E / math.sqrt(q.shape[-1]), dtype=torch.float32)
    top = torch.full((*q.shape[:2], 1), NEVER)
    total, acc = torch.zeros_like(top), torch.zeros(*q.shape[:2], v.shape[-1])
    for start in starts:
        stop = min(start + tile, end)
        scores = masked(product(q, k[:, start:stop].transpose(-1, -2), step) * unit, start)
        new = torch.maximum(top, scores.max(-1, keepdim=True).values)
        safe = torch.where(new == NEVER, torch.zeros_like(new), new)
        weights, shrink = torch.exp2(scores - safe), torch.exp2(top - safe)
        total = total * shrink + weights.sum(-1, keepdim=True)
        acc = acc * shrink + weights.to(dtype).float() @ v[:, start:stop]
        top = new
    return acc, top, total


def online(q, k, v, tile, backwards=False):
    T, dtype = q.shape[1], q.dtype
    starts = list(range(0, T, tile))
    acc, top, total = online_range(
        *per_head(q, k, v), dtype, starts[::-1] if backwards else starts, tile, T, 8 if backwards else None
    )
    return (acc / total).to(dtype), ((top + torch.log2(total)) / LOG2E)[..., 0]


def split(q, k, v, tile):
    T, dtype = q.shape[1], q.dtype
    heads = per_head(q, k, v)
    middle = (T + 1) // 2
    parts = [
        online_range(*heads, dtype, range(0, middle, tile), tile, middle),
        online_range(*heads, dtype, range(middle, T, tile), tile, T),
    ]
    top = torch.maximum(parts[0][1], parts[1][1])
    weight = [torch.exp2(part[1] - top) for part in parts]
    total = sum(w * part[2] for w, part in zip(weight, parts, strict=True))
    acc = sum(w * part[0] for w, part in zip(weight, parts, strict=True))
    return (acc / total).to(dtype), ((top + torch.log2(total)) / LOG2E)[..., 0]


def two_pass(q, k, v, tile, kind="", exp=torch.exp):
    T, dtype = q.shape[1], q.dtype
    narrow = {"wide": lambda x: x, "tf32": tf32}.get(kind, lambda x: x.to(dtype).float())
    q, k, v = per_head(q, k, v)
    if kind == "tf32":
        q, k, v = tf32(q), tf32(k), tf32(v)
    scale = 1 / math.sqrt(q.shape[-1])
    scores = torch.cat(
        [masked(q @ k[:, at : at + tile].transpose(-1, -2) * scale, at) for at in range(0, T, tile)], dim=-1
    )
    if kind == "half_scores":
        scores = scores.to(dtype).float()
    row_max = scores.max(-1, keepdim=True).values
    row_sum, acc = torch.zeros_like(row_max), 0
    weights = exp(scores - row_max)
    for at in range(0, T, tile):
        row_sum = row_sum + weights[..., at : at + tile].sum(-1, keepdim=True)
    probs = weights * (1 / row_sum)
    operand = narrow(probs if kind in ("normalised", "staged_probs") else weights)
    for at in range(0, T, tile):
        acc = acc + operand[..., at : at + tile] @ v[:, at : at + tile]
    out = (acc if kind in ("normalised", "staged_probs") else acc / row_sum).to(dtype)
    lse = (row_max + torch.log(row_sum))[..., 0]
    if kind == "stages":
        return {"scores": scores, "row_max": row_max, "weights": weights, "row_sum": row_sum, "out": out, "lse": lse}
    if kind == "staged_probs":
        return {"scores": scores, "probs": probs, "out": out, "lse": lse}
    return out, lse


def right(style, tile):
    def kernel(q, k, v):
        if style in ("online", "backwards"):
            return online(q, k, v, tile, style == "backwards")
        if style == "split":
            return split(q, k, v, tile)
        return two_pass(q, k, v, tile, style, rough_exp if style == "fast_exp" else torch.exp)

    kernel.__name__ = kernel.__qualname__ = f"{style}_{tile}"
    return kernel


ALL, HALF = ("float32", "float16", "bfloat16"), ("float16", "bfloat16")
STYLES = {  # style: tiles, contract, dtypes, a second reference in its form
    "online": ((16, 32, 64), "", ALL, "attention_unnormalised"),
    "backwards": ((16, 48), "", ALL, "attention_unnormalised"),
    "split": ((16, 32), "", ALL, "attention_unnormalised"),
    "two_pass": ((16, 64), "", ALL, "attention_unnormalised"),
    "normalised": ((16, 64), "", ALL),
    "wide": ((32,), "", ALL),
    "stages": ((16, 32), "", ALL, "attention_unnormalised"),
    "staged_probs": ((32,), "", ALL),
    "tf32": ((32,), "operands=tf32", ("float32",)),
    "half_scores": ((32,), "stored=scores:{dtype}", HALF, "attention_unnormalised"),
    "fast_exp": ((32,), "exp_ulps=4", ("float32",)),
}
AXES = (
    {"T": 64, "D": 32},
    {"T": 50, "D": 16},
    {"T": 97, "D": 24, "heads": 3, "groups": 1},
    {"T": 33, "D": 64, "groups": 4},
)
KERNELS = {f"{style}_{tile}": row[1:] for style, row in STYLES.items() for tile in row[0]}
globals().update({f"{style}_{tile}": right(style, tile) for style, row in STYLES.items() for tile in row[0]})
