"""Wrong kernels of causal attention. The twins `flash`, `split` and `staged` are the same code without a fault.

flash and split round weights to the inputs' dtype before weights @ v, as `online` and `split` of
attention_right.py; staged returns its stages and rounds as `stages` there.
"""

import math

import torch

LOG2E = 1.4426950408889634
NEVER = float("-inf")
TILE = 16


def sum_in(x, dtype):
    """Sum over the last axis in tiles, the running sum kept in dtype."""
    total = torch.zeros(*x.shape[:-1], 1)
    for at in range(0, x.shape[-1], TILE):
        total = (total + x[..., at : at + TILE].sum(-1, keepdim=True)).to(dtype).float()
    return total


def per_head(q, k, v, fault):
    heads, groups = q.shape[0], k.shape[0]
    head = torch.arange(heads) // (heads // groups)
    if fault == "wrong_group":
        head = torch.arange(heads) % groups
    return q.float(), k.float()[head], v.float()[head]


def masked(scores, start, strict=False):
    rows, cols = scores.shape[-2:]
    row, col = torch.arange(rows)[:, None], start + torch.arange(cols)[None, :]
    return torch.where(row > col if strict else row >= col, scores, torch.tensor(NEVER))


def tiles(q, k, v, dtype, first, last, fault):
    unit = (1.442696 if fault == "log2e_short" else LOG2E) / math.sqrt(q.shape[-1])
    top = torch.full((*q.shape[:2], 1), NEVER)
    total, acc = torch.zeros_like(top), torch.zeros(*q.shape[:2], v.shape[-1])
    for start in range(first, last, TILE):
        stop = min(start + TILE, last)
        if fault == "dropped_last_tile" and stop - start < TILE:
            break
        scores = q @ k[:, start:stop].transpose(-1, -2) * unit
        scores = masked(scores, start, fault == "strict_mask" and start > 0)
        new = torch.maximum(top, scores.max(-1, keepdim=True).values)
        safe = torch.where(new == NEVER, torch.zeros_like(new), new)
        weights, shrink = torch.exp2(scores - safe), torch.exp2(top - safe)
        values = v[:, start:stop]
        if fault == "v_tile_off_by_one" and start == TILE:
            values = v[:, start - 1 : stop - 1]
        total = total * shrink + weights.sum(-1, keepdim=True)
        acc = (acc if fault == "stale_accumulator" else acc * shrink) + weights.to(dtype).float() @ values
        top = new
    return acc, top, total


def run_flash(q, k, v, fault=""):
    dtype = q.dtype
    acc, top, total = tiles(*per_head(q, k, v, fault), dtype, 0, q.shape[1], fault)
    lse = top / LOG2E + torch.log2(total) if fault == "lse_log2" else (top + torch.log2(total)) / LOG2E
    return (acc / total).to(dtype), lse[..., 0]


def run_split(q, k, v, fault=""):
    dtype, T = q.dtype, q.shape[1]
    heads = per_head(q, k, v, fault)
    middle = T // 2
    (acc_a, top_a, sum_a), (acc_b, top_b, sum_b) = (tiles(*heads, dtype, *r, fault) for r in ((0, middle), (middle, T)))
    top = torch.maximum(top_a, top_b)
    a, b = torch.exp2(top_a - top), torch.exp2(top_b - top)
    total = a * sum_a + b * sum_b
    acc = acc_a + acc_b if fault == "merge_unweighted" else a * acc_a + b * acc_b
    return (acc / total).to(dtype), ((top + torch.log2(total)) / LOG2E)[..., 0]


def run_staged(q, k, v, fault=""):
    dtype = q.dtype
    q, k, v = per_head(q, k, v, fault)
    scale = 1 / math.sqrt(q.shape[-1])
    if fault == "scale_twice":
        scale = scale * scale
    scores = q @ k.transpose(-1, -2) * scale
    if fault == "scores_rounded":
        scores = scores.to(dtype).float()
    scores = masked(scores, 0)
    row_max = scores.max(-1, keepdim=True).values
    weights = torch.exp(scores - row_max)
    if fault == "weights_flushed":
        weights = torch.where(weights < (1e-6 if dtype == torch.float32 else 2e-4), torch.zeros(()), weights)
    row_sum = sum_in(weights, dtype if fault == "sum_in_input_dtype" else torch.float32)
    out = (weights.to(dtype).float() @ v / row_sum).to(dtype)
    lse = (row_max + torch.log(row_sum))[..., 0]
    return {"scores": scores, "row_max": row_max, "weights": weights, "row_sum": row_sum, "out": out, "lse": lse}


ALL, HALF, SINGLE = ("float32", "float16", "bfloat16"), ("float16", "bfloat16"), ("float32",)
RUNS = {"flash": run_flash, "split": run_split, "staged": run_staged}
SIZE = {"T": 72, "D": 32}
# name: twin, dtypes, axes, seed, size, kind, the reference's line, what is wrong
ROWS = {
    "dropped_last_tile": ("flash", ALL, SIZE, 0, "gross", "part of a sum",
                          "row_sum = weights.sum(-1, keepdim=True)",
                          "The last tile of keys is skipped where it is partial: sum and output miss 8 keys."),
    "strict_mask": ("flash", ALL, SIZE, 1, "gross", "index", 'scores = scores.masked_fill(~causal, float("-inf"))',
                    "In every tile but the first a row does not see its own key: row > col instead of row >= col."),
    "stale_accumulator": ("flash", ALL, SIZE, 2, "gross", "factor", "out = probs @ values",
                          "The accumulator is not rescaled when the running maximum rises (the sum is)."),
    "wrong_group": ("flash", ALL, SIZE, 3, "gross", "index", "keys = k.repeat_interleave(shared, dim=0)",
                    "Head h reads kv head h % groups instead of h // (heads / groups)."),
    "log2e_short": ("flash", SINGLE, SIZE, 4, "fine", "factor", "weights = torch.exp(scores - row_max)",
                    "log2(e) is 1.442696 where scores are scaled for exp2: every score is 6.6e-7 too large."),
    "lse_log2": ("flash", ALL, SIZE, 5, "gross", "factor", "lse = (row_max + torch.log(row_sum)).squeeze(-1)",
                 "lse adds log2 of the sum instead of ln of it."),
    "v_tile_off_by_one": ("flash", ALL, SIZE, 6, "gross", "index", "out = probs @ values",
                          "The second tile of v is read one row early."),
    "merge_unweighted": ("split", ALL, SIZE, 7, "gross", "factor", "out = probs @ values",
                         "The outputs of two ranges of keys are added without their factors exp(max_i - max)."),
    "scale_twice": ("staged", ALL, SIZE, 8, "gross", "factor", "scores = q @ keys.transpose(-1, -2) / math.sqrt(D)",
                    "The scores are divided by sqrt(D) twice."),
    "scores_rounded": ("staged", HALF, SIZE, 9, "fine", "cast",
                       "scores = q @ keys.transpose(-1, -2) / math.sqrt(D)",
                       "The scores are rounded to the inputs' dtype before the softmax, undeclared."),
    "weights_flushed": ("staged", ("float32", "float16"), SIZE, 10, "fine", "clamp",
                        "weights = torch.exp(scores - row_max)",
                        "Weights below 2e-4 (float32: 1e-6) of the largest are set to zero."),
    "sum_in_input_dtype": ("staged", HALF, SIZE, 11, "fine", "cast", "row_sum = weights.sum(-1, keepdim=True)",
                           "The running sum of the weights is kept in the inputs' dtype from tile to tile."),
}  # fmt: skip
KEYS = ("twin", "dtypes", "axes", "seed", "size", "kind", "line", "what")
FAULTS = {name: dict(zip(KEYS, row, strict=True)) for name, row in ROWS.items()}


def wrong(twin, fault=""):
    def kernel(q, k, v):
        return RUNS[twin](q, k, v, fault)

    kernel.__name__ = kernel.__qualname__ = fault or twin
    return kernel


globals().update({name: wrong(name) for name in RUNS} | {name: wrong(row[0], name) for name, row in ROWS.items()})
