"""Faults of formats: what is rounded that must not be, or too coarsely, or twice."""

import numpy as np

from campaigns.independent.fault import Independent, always, causal, enough, half, keys, recorded
from campaigns.independent.online import BLOCK_K, Steps, flash, one_run
from campaigns.independent.packed import Packed, base_two, packed
from campaigns.independent.rounding import BFLOAT16, chopped, e4m3, rounded, toward_zero
from campaigns.independent.shape import LOG2E, Array, Stages
from campaigns.independent.split import Merge, chunks, decode, six_splits, split_k, weights

FAULTS: dict[str, Independent] = {}


@recorded(FAULTS, flash, "qk", always, "llama.cpp#20589")
def dot_in_half(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The product of q and k is summed in float16."""

    def dot(q: Array, k: Array) -> Array:
        total = np.zeros((len(q), len(k)), np.float16)
        for d in range(q.shape[1]):
            total = (total + np.outer(q[:, d], k[:, d])).astype(np.float16)
        return total.astype(np.float32)

    return one_run(q, k, v, scale, causal, Steps(dot=dot))


@recorded(FAULTS, packed, "scores", half, "mlx#3119")
def scale_folded_in_half(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """scale * log2(e) and its product with q are rounded to the dtype of q."""
    dtype = q.dtype

    def scaled(q: Array, scale: float) -> Array:
        return (q.astype(dtype) * dtype.type(scale * LOG2E)).astype(np.float32)

    return base_two(q, k, v, scale, causal, Packed(scaled=scaled))


@recorded(FAULTS, flash, "scores", always, "mlc-llm#1870")
def product_stored_in_half(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The product of q and k is stored in float16 before the scale makes it small."""

    def score(qk: Array, scale: float) -> Array:
        return np.asarray(qk.astype(np.float16).astype(np.float32) * np.float32(scale))

    return one_run(q, k, v, scale, causal, Steps(score=score))


@recorded(FAULTS, flash, "acc", enough(8, 2 * BLOCK_K), "vllm-gaudi#1419")
def rescale_in_eight_bits(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """acc is rescaled by an e4m3 number, where row_sum has the factor in full."""

    def accumulate(acc: Array, alpha: Array, p: Array, v: Array) -> Array:
        return np.asarray(e4m3(alpha)[:, None] * acc + p @ v)

    return one_run(q, k, v, scale, causal, Steps(accumulate=accumulate))


@recorded(FAULTS, split_k, "acc", always, "Xilinx/mlir-air#1600")
def acc_in_bfloat16(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """acc is rounded to bfloat16 after each tile."""

    def accumulate(acc: Array, alpha: Array, p: Array, v: Array) -> Array:
        return rounded(alpha[:, None] * acc + p @ v, BFLOAT16)

    return six_splits(q, k, v, scale, causal, Steps(accumulate=accumulate))


@recorded(FAULTS, split_k, "partial_O", always, "flashinfer#5107")
def partials_in_bfloat16(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Partial outputs are stored in bfloat16 until the merge."""
    return six_splits(q, k, v, scale, causal, store=lambda m, l, partial: (m, l, rounded(partial, BFLOAT16)))


@recorded(FAULTS, split_k, "partial_sum", keys(1), "pytorch#174945")
def sums_in_bfloat16(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Partial sums are stored in the dtype of a bfloat16 model."""
    return six_splits(q, k, v, scale, causal, store=lambda m, l, partial: (m, rounded(l, BFLOAT16), partial))


@recorded(FAULTS, decode, "merge_weight", always, "TransformerEngine#1546")
def maxima_in_bfloat16(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The merge weighs splits by their maxima in bfloat16."""
    merge = Merge(weight=lambda maxima, highest: weights(rounded(maxima, BFLOAT16), highest))
    return chunks(q, k, v, scale, causal, merge=merge)


@recorded(FAULTS, packed, "probs", lambda o: keys(1)(o) and not causal(o), "flash-attn#2595")
def short_polynomial(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """In tiles without a mask exp2 is a polynomial of degree 2, and elsewhere the function."""

    def prob(x: Array) -> Array:
        if np.isneginf(x).any():
            return np.exp2(x)
        whole = np.floor(x)
        part = x - whole
        value = np.float32(1) + part * (np.float32(0.6565) + part * np.float32(0.3435))
        return np.ldexp(value, whole.astype(np.int32))

    return base_two(q, k, v, scale, causal, Packed(prob=prob))


@recorded(FAULTS, flash, "out", always, "vllm#55696")
def out_through_eight_bits(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """out is rounded to e4m3 before it is stored in the dtype of q."""
    stages = flash(q, k, v, scale=scale, causal=causal)
    return stages | {"out": e4m3(stages["out"].astype(np.float32)).astype(q.dtype)}


@recorded(FAULTS, flash, "probs_cast", lambda o: half(o) and keys(7)(o), "FreeToken#103")
def probabilities_truncated(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Probabilities lose the bits that float16 has no room for, instead of being rounded to the nearest."""
    return one_run(q, k, v, scale, causal, Steps(cast=toward_zero))


@recorded(FAULTS, flash, "qk", always, "vllm#23813", known=False)
def negative_sums_chopped(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """After every fourth of the head a sum of products that is negative keeps ten bits of its mantissa."""

    def dot(q: Array, k: Array) -> Array:
        total = np.zeros((len(q), len(k)), np.float32)
        for d in np.array_split(np.arange(q.shape[1]), 4):
            total = total + q[:, d] @ k[:, d].T
            total = np.where(total < 0, chopped(total, 10), total)
        return total

    return one_run(q, k, v, scale, causal, Steps(dot=dot))
