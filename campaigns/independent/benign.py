"""Correct kernels that do their sums in another order or by another formula."""

import numpy as np

from campaigns.independent.fault import Attention
from campaigns.independent.online import Steps, contract, descending, one_run
from campaigns.independent.shape import (
    LOG2E,
    NO_KEY,
    Array,
    Shape,
    Stages,
    divided,
    float32,
    log_sum,
    shifted,
)


def other_tiles(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """FlashAttention in tiles of 16 queries and 48 keys."""
    return one_run(q, k, v, scale, causal, block_q=16, block_k=48)


def backwards(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """FlashAttention from the last key tile to the first."""
    return descending(q, k, v, scale, causal)


def sums_reversed(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """FlashAttention whose sums over dimensions and keys go from the last to the first."""
    steps = Steps(
        dot=lambda q, k: np.cumsum((q[:, None] * k)[..., ::-1], -1)[..., -1],
        tile_sum=lambda p, m, tile: np.cumsum(p[:, ::-1], -1)[:, -1],
        accumulate=lambda acc, alpha, p, v: alpha[:, None] * acc + p[:, ::-1] @ v[::-1],
    )
    return one_run(q, k, v, scale, causal, steps)


def exp_of_base_two(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """FlashAttention that takes exp(x) as exp2(x * log2(e)), as __expf does."""
    steps = Steps(
        rescale=lambda m, new: np.exp2(shifted(m[:, None], new)[:, 0] * LOG2E),
        prob=lambda s, m, tile: np.exp2(shifted(s, m) * LOG2E),
    )
    stages = one_run(q, k, v, scale, causal, steps)
    stages["contract"]["exp_ulps_per_x"] = 1.173
    return stages


def lazy_maximum(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """FlashAttention that keeps a row's maximum until a score is above it by more than 8."""

    def new_max(m: Array, s: Array) -> Array:
        highest = np.maximum(m, s.max(-1))
        return np.where((m == NO_KEY) | (highest > m + np.float32(8)), highest, m)

    stages = one_run(q, k, v, scale, causal, Steps(new_max=new_max))
    stages["contract"]["row_max"] = "any"
    return stages


def whole_scores(q: Array, k: Array, scale: float, causal: bool) -> Array:
    shape = Shape.of(q, k, causal)
    scores = q @ np.swapaxes(np.repeat(k, shape.group, 1), 2, 3) * np.float32(scale)
    return np.where(shape.visible(np.arange(shape.seqlen_q), np.arange(shape.seqlen_k)), scores, NO_KEY)


def weights_by_lse(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Attention whose weights are exp(score - lse), without a division."""
    q32, k32, v32 = float32(q, k, v)
    scores = whole_scores(q32, k32, scale, causal)
    highest = scores.max(-1)
    lse = log_sum(highest, np.exp(shifted(scores, highest)).sum(-1))
    out = np.exp(shifted(scores, lse)) @ np.repeat(v32, q.shape[1] // k.shape[1], 1)
    told = contract(None, "float32") | {"normalisation": "lse"}
    return {"scores": scores, "out": out.astype(q.dtype), "lse": lse, "contract": told}


def smooth(q: Array, k: Array, v: Array, scale: float, causal: bool, correction: Array) -> Stages:
    """Attention with the mean key taken from all keys; `correction` is what that takes from a row's lse."""
    group, dtype = q.shape[1] // k.shape[1], q.dtype
    q, k, v = float32(q, k, v)
    scores = whole_scores(q, k - k.mean(2, keepdims=True), scale, causal)
    highest = scores.max(-1)
    probs = np.exp(shifted(scores, highest))
    total = probs.sum(-1)
    lse = log_sum(highest, total) + correction
    return {
        "out": divided(probs @ np.repeat(v, group, 1), total, dtype),
        "lse": lse,
        "contract": contract(None, "float32"),
    }


def smoothed(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Attention of keys less their mean, which moves all scores of a row alike; it tells out and lse alone."""
    q32, k32 = float32(q, k)
    mean = np.repeat(k32.mean(2), q.shape[1] // k.shape[1], 1)
    return smooth(q, k, v, scale, causal, (q32 @ mean[..., None])[..., 0] * np.float32(scale))


BENIGN: dict[str, Attention] = {
    function.__name__.replace("_", "-"): function
    for function in (
        other_tiles,
        backwards,
        sums_reversed,
        exp_of_base_two,
        lazy_maximum,
        weights_by_lse,
        smoothed,
    )
}
