"""Right kernels of cross-entropy with label smoothing and z-loss. All arithmetic is float32; the inputs' dtype is
only read.

style     what it rounds
online    a running maximum and a rescaled sum over tiles of the vocabulary; loss returned in float32
base2     online in log2 units (logits * log2 e, exp2, log2, then * ln 2)
split     two halves of the vocabulary, each online, merged by their maxima
two_pass  the maximum, then the sum; loss rounded once to the inputs' dtype
gathered  loss = lse - (1 - s) picked - s mean + z lse^2 in one expression; the picked logit by a sum over a
          one-hot mask; sums by halves (a tree)
staged    online that returns row_max, row_sum, lse, nll, smooth, z_loss and loss
fast_exp  two_pass whose exp is wrong by up to 3 ulps: --contract exp_ulps=4
half_lse  online whose lse is stored in the dtype: --contract stored=lse:DTYPE
"""

import torch

LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453
SMOOTHING, Z = 0.1, 1e-3


def rough_exp(x):
    return torch.exp(x) * (1 + torch.sin(1e4 * x) * (3 * 2.0**-24))


def tree_sum(x):
    while x.shape[-1] > 1:
        if x.shape[-1] % 2:
            x = torch.nn.functional.pad(x, (0, 1))
        half = x.shape[-1] // 2
        x = x[..., :half] + x[..., half:]
    return x[..., 0]


def online_range(logits, first, last, tile, exp=torch.exp):
    top = torch.full(logits.shape[:1], float("-inf"))
    total, plain = torch.zeros_like(top), torch.zeros_like(top)
    for at in range(first, last, tile):
        block = logits[:, at : min(at + tile, last)]
        new = torch.maximum(top, block.max(-1).values)
        total = total * exp(top - new) + exp(block - new[:, None]).sum(-1)
        plain, top = plain + block.sum(-1), new
    return top, total, plain


def finish(lse, picked, mean):
    nll, smooth = lse - picked, lse - mean
    z_loss = Z * lse * lse
    return nll, smooth, z_loss, (1 - SMOOTHING) * nll + SMOOTHING * smooth + z_loss


def right(style, tile):
    def kernel(logits, target):
        dtype, V = logits.dtype, logits.shape[1]
        x = logits.float()
        picked = x[torch.arange(x.shape[0]), target]
        if style in ("online", "staged", "half_lse"):
            top, total, plain = online_range(x, 0, V, tile)
            lse = top + torch.log(total)
            if style == "half_lse":
                lse = lse.to(dtype).float()
            nll, smooth, z_loss, loss = finish(lse, picked, plain / V)
            if style == "staged":
                sums = {"row_max": top[:, None], "row_sum": total, "lse": lse}
                return {**sums, "nll": nll, "smooth": smooth, "z_loss": z_loss, "loss": loss}
            return loss
        if style == "base2":
            top, total, plain = online_range(x * LOG2E, 0, V, tile, torch.exp2)
            return finish((top + torch.log2(total)) * LN2, picked, x.sum(-1) * (1 / V))[-1]
        if style == "split":
            middle = V // 2
            (a, sum_a, plain_a), (b, sum_b, plain_b) = (online_range(x, *r, tile) for r in ((0, middle), (middle, V)))
            top = torch.maximum(a, b)
            lse = top + torch.log(sum_a * torch.exp(a - top) + sum_b * torch.exp(b - top))
            return finish(lse, picked, (plain_a + plain_b) / V)[-1]
        top = x.max(-1).values
        exp = rough_exp if style == "fast_exp" else torch.exp
        if style in ("two_pass", "fast_exp"):
            total = torch.zeros_like(top)
            for at in range(0, V, tile):
                total = total + exp(x[:, at : at + tile] - top[:, None]).sum(-1)
            return finish(top + torch.log(total), picked, x.mean(-1))[-1].to(dtype)
        lse = top + torch.log(tree_sum(exp(x - top[:, None])))
        picked = torch.where(torch.arange(V)[None] == target[:, None], x, torch.zeros(())).sum(-1)
        return lse - (1 - SMOOTHING) * picked - (SMOOTHING / V) * tree_sum(x) + Z * lse**2

    kernel.__name__ = kernel.__qualname__ = f"{style}_{tile}"
    return kernel


ALL, HALF = ("float32", "float16", "bfloat16"), ("float16", "bfloat16")
STYLES = {  # style: tiles, contract, dtypes, a second reference in its form
    "online": ((16, 64, 128), "", ALL),
    "base2": ((32, 128), "", ALL),
    "split": ((32, 64), "", ALL),
    "two_pass": ((16, 64, 256), "", ALL),
    "gathered": ((1,), "", ALL),
    "staged": ((32, 128), "", ALL),
    "fast_exp": ((64,), "exp_ulps=4", ("float32",)),
    "half_lse": ((64,), "stored=lse:{dtype}", HALF),
}
AXES = ({"tokens": 48}, {"tokens": 20, "vocab": 1000}, {"tokens": 64, "vocab": 129}, {"tokens": 33, "vocab": 512})
KERNELS = {f"{style}_{tile}": row[1:] for style, row in STYLES.items() for tile in row[0]}
globals().update({f"{style}_{tile}": right(style, tile) for style, row in STYLES.items() for tile in row[0]})
