"""Wrong kernels of cross-entropy with label smoothing and z-loss. The twins `online`, `rounded` and `staged` have
no fault.

All arithmetic is float32. online and staged return the loss in float32, rounded rounds it once to the inputs'
dtype; staged returns its stages.
"""

import torch

SMOOTHING, Z = 0.1, 1e-3
TILE = 64


def run_online(logits, target, fault="", stages=False):
    dtype, V = logits.dtype, logits.shape[1]
    x = logits.float()
    top = torch.full(x.shape[:1], float("-inf"))
    row_sum = torch.zeros_like(top)
    for at in range(0, V, TILE):
        block = x[:, at : at + TILE]
        if fault == "dropped_last_tile" and block.shape[1] < TILE:
            break
        new = torch.maximum(top, block.max(-1).values)
        weights = torch.exp(block - new[:, None])
        if fault == "tail_flushed":
            weights = torch.where(weights < 3e-6, torch.zeros(()), weights)
        row_sum = (row_sum if fault == "stale_sum" else row_sum * torch.exp(top - new)) + weights.sum(-1)
        if fault == "sum_in_input_dtype":
            row_sum = row_sum.to(dtype).float()
        top = new
    log_sum = torch.log2(row_sum) if fault == "lse_log2" else torch.log(row_sum)
    lse = top + log_sum
    if fault == "next_target":
        target = (target + 1) % V
    picked = x[torch.arange(x.shape[0]), target]
    nll = (log_sum if fault == "max_forgotten" else lse) - picked
    smooth = lse - x.sum(-1) / (V - 1 if fault == "smoothing_over_v_minus_1" else V)
    z_loss = Z * lse * lse
    if fault == "z_without_square":
        z_loss = Z * lse
    if fault == "z_forgotten":
        z_loss = torch.zeros_like(lse)
    if fault == "z_in_float16":
        z_loss = torch.tensor(Z).half().float() * lse * lse
    loss = (1.0 if fault == "keep_factor_forgotten" else 1 - SMOOTHING) * nll + SMOOTHING * smooth + z_loss
    named = {"row_max": top[:, None], "row_sum": row_sum, "lse": lse, "picked": picked, "nll": nll}
    return {**named, "smooth": smooth, "z_loss": z_loss, "loss": loss} if stages else loss


def run_rounded(logits, target, fault=""):
    return run_online(logits, target, fault).to(logits.dtype)


def run_staged(logits, target, fault=""):
    return run_online(logits, target, fault, stages=True)


ALL, HALF, SINGLE = ("float32", "float16", "bfloat16"), ("float16", "bfloat16"), ("float32",)
RUNS = {"online": run_online, "rounded": run_rounded, "staged": run_staged}
SIZE = {"tokens": 48, "vocab": 300}
SUM = "row_sum = torch.exp(logits - row_max).sum(-1)"
Z_LINE = "z_loss = Z * lse**2"
LOSS = "loss = (1 - SMOOTHING) * nll + SMOOTHING * smooth + z_loss"
# name: twin, dtypes, axes, seed, size, kind, the reference's line, what is wrong
ROWS = {
    "lse_log2": ("staged", ALL, SIZE, 0, "gross", "factor", "lse = row_max[:, 0] + torch.log(row_sum)",
                 "lse adds log2 of the sum instead of ln of it."),
    "smoothing_over_v_minus_1": ("staged", SINGLE, {"tokens": 48, "vocab": 1000}, 3, "fine", "factor",
                                 "smooth = lse - logits.mean(-1)", "The mean of the logits divides by V - 1."),
    "z_without_square": ("online", ALL, SIZE, 1, "gross", "power", Z_LINE, "The z-loss is Z lse, not squared."),
    "z_forgotten": ("rounded", ALL, SIZE, 4, "gross", "part of a sum", LOSS, "The z-loss is not added."),
    "keep_factor_forgotten": ("rounded", ALL, SIZE, 2, "gross", "factor", LOSS,
                              "nll is not multiplied by 1 - smoothing."),
    "next_target": ("staged", ALL, SIZE, 5, "gross", "index",
                    "picked = torch.gather(logits, 1, target[:, None])[:, 0]",
                    "The logit of target + 1 is picked."),
    "stale_sum": ("online", ALL, SIZE, 6, "gross", "factor", SUM,
                  "The running sum is not rescaled when the maximum rises."),
    "dropped_last_tile": ("rounded", ALL, SIZE, 7, "gross", "part of a sum", SUM,
                          "The last, partial tile of the vocabulary is left out of maximum and sum."),
    "sum_in_input_dtype": ("rounded", HALF, SIZE, 8, "fine", "cast", SUM,
                           "The running sum is kept in the inputs' dtype from tile to tile."),
    "max_forgotten": ("online", ALL, SIZE, 9, "gross", "offset", "nll = lse - picked",
                      "nll is log of the sum less the picked logit, without the maximum."),
    "z_in_float16": ("staged", SINGLE, SIZE, 10, "fine", "cast", Z_LINE,
                     "The factor of the z-loss is a float16 constant: 1.0004e-3 instead of 1e-3."),
    "tail_flushed": ("online", SINGLE, SIZE, 13, "fine", "clamp", SUM,
                     "Terms below 3e-6 of the running maximum's are left out of the sum."),
}  # fmt: skip
KEYS = ("twin", "dtypes", "axes", "seed", "size", "kind", "line", "what")
FAULTS = {name: dict(zip(KEYS, row, strict=True)) for name, row in ROWS.items()}


def wrong(twin, fault=""):
    def kernel(logits, target):
        return RUNS[twin](logits, target, fault)

    kernel.__name__ = kernel.__qualname__ = fault or twin
    return kernel


globals().update({name: wrong(name) for name in RUNS} | {name: wrong(row[0], name) for name, row in ROWS.items()})
