"""Correct kernels of the groups row-sum, whose sums add the cast probs, and clamp, whose exp2 stops at -127."""

from typing import Any

import numpy as np

from workbench.styles.pieces import (
    F32,
    INF,
    LN2,
    LOG2E,
    by_exp,
    by_exp2,
    finite,
    fma,
    in_splits,
    log2,
    lse_of,
    lse_of_base2,
    masked,
    merged,
    nearest,
    online,
    partials,
    product,
    quotient,
    slots,
    tiles,
    visible,
    widened,
)
from workbench.styles.style import ALL, BY_EXP2, CAST, SIXTEEN, Array, Stages, Style


def sums_cast_probs(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """An online softmax whose row_sum adds the probs that meet v."""
    q32, k32, v32 = widened(q, k, v)
    scores = masked(product(q32, k32) * F32(scale), visible(q, k, causal))
    visits = tiles(k.shape[2], 64)
    dumps = slots(scores, v.shape[3], len(visits))
    m, l, o = online(scores, v32, visits, dumps, cast=q.dtype, sum_of_cast=True)
    return {"scores": scores, **dumps, "out": quotient(o, l).astype(q.dtype), "lse": lse_of(m, l)}


def row_sum_by_mma(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Sums of cast probs by a product with ones, in 3 splits of tiles of 32, in base 2."""
    q32, k32, v32 = widened(q, k, v)
    scores = masked(product(q32, k32) * (F32(scale) * LOG2E), visible(q, k, causal))
    dumps = slots(scores, v.shape[3], -(-k.shape[2] // 32))
    how: dict[str, Any] = {"weigh": by_exp2, "cast": q.dtype, "sum_of_cast": True}
    parts = partials([online(scores, v32, some, dumps, **how) for some in in_splits(k.shape[2], 32, 3)])
    merge, o, total = merged(parts, by_exp2)
    out, lse = quotient(o, total).astype(q.dtype), lse_of_base2(merge["merge_max"], total)
    return {"scores": scores, **dumps, **parts, **merge, "out": out, "lse": lse}


def column_of_ones(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """v has a column of ones more, so that one product gives acc and row_sum; one pass."""
    q32, k32, v32 = widened(q, k, v)
    scores = masked(product(q32, k32) * F32(scale), visible(q, k, causal))
    m = scores.max(-1)
    cast = by_exp(scores, m[..., None]).astype(q.dtype)
    both = cast.astype(F32) @ np.concatenate([v32, np.ones_like(v32[..., :1])], axis=-1)
    o, l = both[..., :-1], both[..., -1]
    stages = {"row_max": m[..., None], "probs_cast": cast, "row_sum": l[..., None], "acc": o[..., None, :]}
    return {"scores": scores, **stages, "out": quotient(o, l).astype(q.dtype), "lse": lse_of(m, l)}


def sums_halves(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Tiles of 128, cast probs summed by halves as warps do, then added; dumps probs_cast and row_sum alone."""
    q32, k32, v32 = widened(q, k, v)
    x = masked(product(q32, k32) * (F32(scale) * LOG2E), visible(q, k, causal))
    visits = tiles(k.shape[2], 128)
    m = np.full(q.shape[:3], -INF)
    left, right = np.zeros_like(m), np.zeros_like(m)
    o = np.zeros(q.shape[:3] + v.shape[3:], F32)
    sums, casts = np.zeros((*m.shape, len(visits)), F32), np.zeros(x.shape, q.dtype)
    for t, lo, hi in visits:
        above = np.maximum(m, x[..., lo:hi].max(-1))
        scaled = by_exp2(m, above)
        casts[..., lo:hi] = by_exp2(x[..., lo:hi], above[..., None]).astype(q.dtype)
        p = casts[..., lo:hi].astype(F32)
        left, right = left * scaled + p[..., ::2].sum(-1), right * scaled + p[..., 1::2].sum(-1)
        o, m = o * scaled[..., None] + p @ v32[..., lo:hi, :], above
        sums[..., t] = left + right
    l = left + right
    out = (o * (F32(1) / np.where(l == 0, F32(1), l))[..., None]).astype(q.dtype)
    return {"row_sum": sums, "probs_cast": casts, "out": out, "lse": lse_of_base2(m, l)}


def _clamped(x: Array, m: Array) -> Array:
    """exp2 of x - m, or of -127 where that is larger."""
    return np.exp2(np.maximum(x - finite(m), F32(-127)))


def clamped_exp2(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Masked keys have probs of 2^-127; rows without keys are told by their maximum."""
    q32, k32, v32 = widened(q, k, v)
    scores = masked(product(q32, k32) * (F32(scale) * LOG2E), visible(q, k, causal))
    visits = tiles(k.shape[2], 64)
    dumps = slots(scores, v.shape[3], len(visits))
    m, l, o = online(scores, v32, visits, dumps, weigh=_clamped, correct=by_exp2, cast=q.dtype)
    l = np.where(m == -INF, F32(0), l)
    o = np.where((m == -INF)[..., None], F32(0), o)
    return {"scores": scores, **dumps, "out": quotient(o, l).astype(q.dtype), "lse": lse_of_base2(m, l)}


def clamped_splits(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The clamp in 4 splits of tiles of 16; weights of the merge are exact, so that an empty split counts nothing."""
    q32, k32, v32 = widened(q, k, v)
    scores = masked(product(q32, k32) * (F32(scale) * LOG2E), visible(q, k, causal))
    dumps = slots(scores, v.shape[3], -(-k.shape[2] // 16))
    how: dict[str, Any] = {"weigh": _clamped, "correct": by_exp2, "cast": q.dtype}
    parts = partials([online(scores, v32, some, dumps, **how) for some in in_splits(k.shape[2], 16, 4)])
    merge, o, total = merged(parts, by_exp2)
    out, lse = quotient(o, total).astype(q.dtype), lse_of_base2(merge["merge_max"], total)
    return {"scores": scores, **dumps, **parts, **merge, "out": out, "lse": lse}


def clamped_quarter(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Of every 16 keys 4 go through the clamped emulation, the others through the hardware's exp2; raw scores, fma."""
    q32, k32, v32 = widened(q, k, v)
    scale_log2 = F32(scale) * LOG2E
    raw = masked(product(q32, k32), visible(q, k, causal))
    visits = tiles(k.shape[2], 128)
    dumps = slots(raw, v.shape[3], len(visits))

    def weigh(x: Array, m: Array) -> Array:
        argument = fma(x, scale_log2, -(finite(m) * scale_log2))
        emulated = np.arange(x.shape[-1]) % 16 < 4
        return np.exp2(np.where(emulated, np.maximum(argument, F32(-127)), argument))

    def correct(x: Array, m: Array) -> Array:
        return np.exp2((x - finite(m)) * scale_log2)

    m, l, o = online(raw, v32, visits, dumps, weigh=weigh, correct=correct, cast=q.dtype)
    empty = m == -INF
    out = np.where(empty[..., None], F32(0), quotient(o, l)).astype(q.dtype)
    lse = np.where(empty, -INF, (finite(m) * scale_log2 + log2(np.where(empty, F32(1), l))) * LN2)
    return {"scores": raw, **dumps, "out": out, "lse": lse}


# Least squares on 2^f, 0 <= f < 1, weighted until the relative errors alternate: 8.6e-5.
_CUBIC = tuple(F32(x) for x in (1.0, 0.6951168179512024, 0.22764497995376587, 0.0770670548081398))


def exp2_cubic(x: Array) -> Array:
    """2^x from a cubic in the fraction of x, by Horner's rule in float32; x is clamped at -127."""
    x = np.maximum(x, F32(-127))
    whole = np.floor(x)
    f = x - whole
    p = ((_CUBIC[3] * f + _CUBIC[2]) * f + _CUBIC[1]) * f + _CUBIC[0]
    return np.ldexp(p, whole.astype(np.int32))


def clamped_cubic(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The clamp together with the polynomial that it is made for."""
    q32, k32, v32 = widened(q, k, v)
    scores = masked(product(q32, k32) * (F32(scale) * LOG2E), visible(q, k, causal))
    visits = tiles(k.shape[2], 32)
    dumps = slots(scores, v.shape[3], len(visits))

    def weigh(x: Array, m: Array) -> Array:
        return exp2_cubic(x - finite(m))

    m, l, o = online(scores, v32, visits, dumps, weigh=weigh, correct=by_exp2, cast=q.dtype)
    empty = m == -INF
    out = np.where(empty[..., None], F32(0), quotient(o, l)).astype(q.dtype)
    return {"scores": scores, **dumps, "out": out, "lse": np.where(empty, -INF, lse_of_base2(m, l))}


def clamped_one_pass(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """One pass with the clamp, summing cast probs, in which 2^-127 is 0 in float16 and a subnormal in bfloat16."""
    q32, k32, v32 = widened(q, k, v)
    scores = masked(product(q32, k32) * (F32(scale) * LOG2E), visible(q, k, causal))
    m = scores.max(-1)
    cast = nearest(_clamped(scores, m[..., None]), q.dtype)
    l = np.where(m == -INF, F32(0), cast.sum(-1))
    out = np.where((m == -INF)[..., None], F32(0), quotient(cast @ v32, l)).astype(q.dtype)
    return {"scores": scores, "row_max": m[..., None], "probs_cast": cast, "out": out, "lse": lse_of_base2(m, l)}


_OF_CAST = {**CAST, "row_sum_of_cast": True}
_FLOOR = {"exp_floor": -127.0}
# The cubic's 8.6e-5 is 720 ulps where an ulp is 2^-23 of the value, 1440 where it is 2^-24; rounding adds a few.
CUBIC_ULPS = {"exp_ulps": 1600.0}

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
    Style(
        clamped_exp2,
        "clamp",
        ALL,
        {"block_k": 64, "base2": True},
        {**CAST, **_FLOOR},
        "FlashAttention-4 clamps the argument of its emulated exp2 at -127.",
    ),
    Style(
        clamped_splits,
        "clamp",
        ALL,
        {"block_k": 16, "splits": 4, "base2": True},
        {**CAST, **_FLOOR},
        "FlashAttention-4's clamp in a split-KV kernel.",
    ),
    Style(
        clamped_quarter,
        "clamp",
        ALL,
        {"block_k": 128, "scores_scaled": False},
        {**CAST, **_FLOOR, **BY_EXP2, "exp_argument": "fma"},
        "FlashAttention-4 emulates exp2 for a part of the columns only (ex2_emu_freq).",
    ),
    Style(
        clamped_cubic,
        "clamp",
        SIXTEEN,
        {"block_k": 32, "base2": True},
        {**CAST, **_FLOOR, **CUBIC_ULPS},
        "FlashAttention-4's polynomial of degree 3, for 16-bit inputs, whose casts hide its error of 8.6e-5.",
        explained_by=("exp_ulps", "exp_floor"),
    ),
    Style(
        clamped_one_pass,
        "clamp",
        SIXTEEN,
        {"block_k": 512, "base2": True},
        {**_OF_CAST, **_FLOOR},
        "The clamp in a one-pass kernel that sums cast probs.",
    ),
)
