"""Correct kernels of group row-sum, whose sums add the cast probs."""

from typing import Any

import numpy as np

from campaigns.styles import pieces
from campaigns.styles.pieces import F32, INF, LOG2E
from campaigns.styles.style import CAST, SIXTEEN, Array, Stages, Style


def sums_cast_probs(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """An online softmax whose row_sum adds the probs that meet v."""
    scores, v32 = pieces.masked_scores(q, k, v, causal, F32(scale))
    visits = pieces.tiles(k.shape[2], 64)
    dumps = pieces.slots(scores, v.shape[3], len(visits))
    m, l, o = pieces.online(scores, v32, visits, dumps, cast=q.dtype, sum_of_cast=True)
    return {"scores": scores, **dumps, "out": pieces.quotient(o, l).astype(q.dtype), "lse": pieces.lse_of(m, l)}


def row_sum_by_mma(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Sums of cast probs by a product with ones, in 3 splits of tiles of 32, in base 2."""
    scores, v32 = pieces.masked_scores(q, k, v, causal, F32(scale) * LOG2E)
    dumps = pieces.slots(scores, v.shape[3], -(-k.shape[2] // 32))
    how: dict[str, Any] = {"weigh": pieces.by_exp2, "cast": q.dtype, "sum_of_cast": True}
    parts = pieces.partials(
        [pieces.online(scores, v32, some, dumps, **how) for some in pieces.in_splits(k.shape[2], 32, 3)]
    )
    merge, o, total = pieces.merged(parts, pieces.by_exp2)
    out, lse = pieces.quotient(o, total).astype(q.dtype), pieces.lse_of_base2(merge["merge_max"], total)
    return {"scores": scores, **dumps, **parts, **merge, "out": out, "lse": lse}


def column_of_ones(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """v has a column of ones more, so that one product gives acc and row_sum; one pass."""
    scores, v32 = pieces.masked_scores(q, k, v, causal, F32(scale))
    m = scores.max(-1)
    cast = pieces.by_exp(scores, m[..., None]).astype(q.dtype)
    both = cast.astype(F32) @ np.concatenate([v32, np.ones_like(v32[..., :1])], axis=-1)
    o, l = both[..., :-1], both[..., -1]
    stages = {"row_max": m[..., None], "probs_cast": cast, "row_sum": l[..., None], "acc": o[..., None, :]}
    return {"scores": scores, **stages, "out": pieces.quotient(o, l).astype(q.dtype), "lse": pieces.lse_of(m, l)}


def sums_halves(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Tiles of 128, cast probs summed by halves as warps do, then added; dumps probs_cast and row_sum alone."""
    x, v32 = pieces.masked_scores(q, k, v, causal, F32(scale) * LOG2E)
    visits = pieces.tiles(k.shape[2], 128)
    m = np.full(q.shape[:3], -INF)
    left, right = np.zeros_like(m), np.zeros_like(m)
    o = np.zeros(q.shape[:3] + v.shape[3:], F32)
    sums, casts = np.zeros((*m.shape, len(visits)), F32), np.zeros(x.shape, q.dtype)
    for t, lo, hi in visits:
        above = np.maximum(m, x[..., lo:hi].max(-1))
        scaled = pieces.by_exp2(m, above)
        casts[..., lo:hi] = pieces.by_exp2(x[..., lo:hi], above[..., None]).astype(q.dtype)
        p = casts[..., lo:hi].astype(F32)
        left, right = left * scaled + p[..., ::2].sum(-1), right * scaled + p[..., 1::2].sum(-1)
        o, m = o * scaled[..., None] + p @ v32[..., lo:hi, :], above
        sums[..., t] = left + right
    l = left + right
    out = (o * (F32(1) / np.where(l == 0, F32(1), l))[..., None]).astype(q.dtype)
    return {"row_sum": sums, "probs_cast": casts, "out": out, "lse": pieces.lse_of_base2(m, l)}


_OF_CAST = {**CAST, "row_sum_of_cast": True}

STYLES = (
    Style(
        sums_cast_probs,
        "row-sum",
        SIXTEEN,
        {"block_k": 64},
        _OF_CAST,
        "cuDNN-like and many Triton kernels cast p before they sum it, so that numerator and denominator agree.",
    ),
    Style(
        row_sum_by_mma,
        "row-sum",
        SIXTEEN,
        {"block_k": 32, "splits": 3, "base2": True},
        _OF_CAST,
        "FlashInfer's m16k16_rowsum sums cast probs on tensor cores.",
    ),
    Style(
        column_of_ones,
        "row-sum",
        SIXTEEN,
        {"block_k": 512},
        _OF_CAST,
        "A column of ones appended to V gives the row sum from the same product, as some TPU and CUTLASS kernels do.",
    ),
    Style(
        sums_halves,
        "row-sum",
        SIXTEEN,
        {"block_k": 128, "base2": True},
        {**_OF_CAST, "fast_math": True},
        "llama.cpp's flash attention sums half-precision probs per thread and reduces over the warp at the end.",
    ),
)
