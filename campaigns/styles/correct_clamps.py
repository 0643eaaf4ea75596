"""Correct kernels of group clamp, whose exp2 stops at -127, so that masked keys have probs of 2^-127."""

from typing import Any

import numpy as np

from campaigns.styles import pieces
from campaigns.styles.correct_polynomials import CUBIC_ULPS, exp2_cubic
from campaigns.styles.pieces import F32, INF, LN2, LOG2E
from campaigns.styles.style import ALL, BY_EXP2, CAST, SIXTEEN, Array, Stages, Style


def _clamped(x: Array, m: Array) -> Array:
    """exp2 of x - m, or of -127 where that is larger."""
    return np.exp2(np.maximum(x - pieces.finite(m), F32(-127)))


def clamped_exp2(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Masked keys have probs of 2^-127; rows without keys are told by their maximum."""
    scores, v32 = pieces.masked_scores(q, k, v, causal, F32(scale) * LOG2E)
    visits = pieces.tiles(k.shape[2], 64)
    dumps = pieces.slots(scores, v.shape[3], len(visits))
    m, l, o = pieces.online(scores, v32, visits, dumps, weigh=_clamped, correct=pieces.by_exp2, cast=q.dtype)
    l = np.where(m == -INF, F32(0), l)
    o = np.where((m == -INF)[..., None], F32(0), o)
    return {"scores": scores, **dumps, "out": pieces.quotient(o, l).astype(q.dtype), "lse": pieces.lse_of_base2(m, l)}


def clamped_splits(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The clamp in 4 splits of tiles of 16; weights of the merge are exact, so that an empty split counts nothing."""
    scores, v32 = pieces.masked_scores(q, k, v, causal, F32(scale) * LOG2E)
    dumps = pieces.slots(scores, v.shape[3], -(-k.shape[2] // 16))
    how: dict[str, Any] = {"weigh": _clamped, "correct": pieces.by_exp2, "cast": q.dtype}
    parts = pieces.partials(
        [pieces.online(scores, v32, some, dumps, **how) for some in pieces.in_splits(k.shape[2], 16, 4)]
    )
    merge, o, total = pieces.merged(parts, pieces.by_exp2)
    out, lse = pieces.quotient(o, total).astype(q.dtype), pieces.lse_of_base2(merge["merge_max"], total)
    return {"scores": scores, **dumps, **parts, **merge, "out": out, "lse": lse}


def clamped_quarter(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Of every 16 keys 4 go through the clamped emulation, the others through the hardware's exp2; raw scores, fma."""
    scale_log2 = F32(scale) * LOG2E
    raw, v32 = pieces.masked_scores(q, k, v, causal)
    visits = pieces.tiles(k.shape[2], 128)
    dumps = pieces.slots(raw, v.shape[3], len(visits))

    def weigh(x: Array, m: Array) -> Array:
        argument = pieces.fma(x, scale_log2, -(pieces.finite(m) * scale_log2))
        emulated = np.arange(x.shape[-1]) % 16 < 4
        return np.exp2(np.where(emulated, np.maximum(argument, F32(-127)), argument))

    def correct(x: Array, m: Array) -> Array:
        return np.exp2((x - pieces.finite(m)) * scale_log2)

    m, l, o = pieces.online(raw, v32, visits, dumps, weigh=weigh, correct=correct, cast=q.dtype)
    empty = m == -INF
    out = np.where(empty[..., None], F32(0), pieces.quotient(o, l)).astype(q.dtype)
    lse = np.where(empty, -INF, (pieces.finite(m) * scale_log2 + pieces.log2(np.where(empty, F32(1), l))) * LN2)
    return {"scores": raw, **dumps, "out": out, "lse": lse}


def clamped_cubic(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The clamp together with the polynomial that it is made for."""
    scores, v32 = pieces.masked_scores(q, k, v, causal, F32(scale) * LOG2E)
    visits = pieces.tiles(k.shape[2], 32)
    dumps = pieces.slots(scores, v.shape[3], len(visits))

    def weigh(x: Array, m: Array) -> Array:
        return exp2_cubic(x - pieces.finite(m))

    m, l, o = pieces.online(scores, v32, visits, dumps, weigh=weigh, correct=pieces.by_exp2, cast=q.dtype)
    empty = m == -INF
    out = np.where(empty[..., None], F32(0), pieces.quotient(o, l)).astype(q.dtype)
    return {"scores": scores, **dumps, "out": out, "lse": np.where(empty, -INF, pieces.lse_of_base2(m, l))}


def clamped_one_pass(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """One pass with the clamp, summing cast probs, in which 2^-127 is 0 in float16 and a subnormal in bfloat16."""
    scores, v32 = pieces.masked_scores(q, k, v, causal, F32(scale) * LOG2E)
    m = scores.max(-1)
    cast = pieces.nearest(_clamped(scores, m[..., None]), q.dtype)
    l = np.where(m == -INF, F32(0), cast.sum(-1))
    out = np.where((m == -INF)[..., None], F32(0), pieces.quotient(cast @ v32, l)).astype(q.dtype)
    return {"scores": scores, "row_max": m[..., None], "probs_cast": cast, "out": out, "lse": pieces.lse_of_base2(m, l)}


_FLOOR = {"exp_floor": -127.0}

STYLES = (
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
        "arithmetic",
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
        {**CAST, **_FLOOR, "row_sum_of_cast": True},
        "The clamp in a one-pass kernel that sums cast probs.",
    ),
)
