"""Correct kernels whose exponential or whose maximum is another one: FlashAttention-2's and 4's, bounds."""

from typing import Any

import numpy as np

from campaigns.styles import pieces
from campaigns.styles.pieces import F32, INF, LOG2E, Weigh
from campaigns.styles.style import ALL, BY_EXP2, CAST, IEEE, Array, Stages, Style


def _by_fma(scale_log2: np.floating) -> Weigh:
    """exp2(fma(x, scale_log2, -max_scaled)), max_scaled rounded first."""
    return lambda x, m: np.exp2(pieces.fma(x, scale_log2, -(pieces.finite(m) * scale_log2)))


def _by_product(scale_log2: np.floating) -> Weigh:
    """exp2((x - m) * scale_log2), as FlashAttention-2 corrects."""
    return lambda x, m: np.exp2((x - pieces.finite(m)) * scale_log2)


def fa2_forward(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Raw products and their maxima; the scale enters in the exponent. Rows without keys have lse +inf."""
    q32, k32, v32 = pieces.widened(q, k, v)
    scale_log2 = F32(scale) * LOG2E
    qk = pieces.product(q32, k32)
    x = pieces.masked(qk, pieces.visible(q, k, causal))
    visits = pieces.tiles(k.shape[2], 64)
    dumps = pieces.slots(x, v.shape[3], len(visits))
    how: dict[str, Any] = {"weigh": _by_fma(scale_log2), "correct": _by_product(scale_log2)}
    m, l, o = pieces.online(x, v32, visits, dumps, cast=q.dtype, **how)
    lse = np.where(l == 0, INF, pieces.finite(m) * F32(scale) + pieces.log(np.where(l == 0, F32(1), l)))
    return {"qk": qk, "scores": x, **dumps, "out": pieces.quotient(o, l).astype(q.dtype), "lse": lse}


def fa2_small_tiles(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The same exponent with tiles of 16, in float32 throughout; dumps the maxima, sums and acc alone."""
    scale_log2 = F32(scale) * LOG2E
    x, v32 = pieces.masked_scores(q, k, v, causal)
    dumps = pieces.slots(x, v.shape[3], -(-k.shape[2] // 16))
    m, l, o = pieces.online(
        x, v32, pieces.tiles(k.shape[2], 16), dumps, weigh=_by_fma(scale_log2), correct=_by_product(scale_log2)
    )
    kept = {name: dumps[name] for name in ("row_max", "correction", "row_sum", "acc")}
    lse = np.where(l == 0, -INF, pieces.finite(m) * F32(scale)) + pieces.log(l)
    return {**kept, "out": pieces.quotient(o, l).astype(q.dtype), "lse": lse}


def fa3_base2(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Dumps the arguments in units of log2, each rounded, while exp2 sees one fused multiply-add."""
    scale_log2 = F32(scale) * LOG2E
    raw, v32 = pieces.masked_scores(q, k, v, causal)
    scores = raw * scale_log2
    visits = pieces.tiles(k.shape[2], 128)
    dumps = pieces.slots(scores, v.shape[3], len(visits))
    m = np.full(q.shape[:3], -INF)
    l, o = np.zeros_like(m), np.zeros(q.shape[:3] + v.shape[3:], F32)
    for t, lo, hi in visits:
        above = np.maximum(m, raw[..., lo:hi].max(-1) * scale_log2)
        scaled = pieces.by_exp2(m, above)
        p = np.exp2(pieces.fma(raw[..., lo:hi], scale_log2, -pieces.finite(above)[..., None]))
        l = l * scaled + p.sum(-1)
        o = o * scaled[..., None] + p.astype(q.dtype).astype(F32) @ v32[..., lo:hi, :]
        m = above
        dumps["probs"][..., lo:hi], dumps["probs_cast"][..., lo:hi] = p, p.astype(q.dtype).astype(F32)
        for name, value in (("row_max", m), ("correction", scaled), ("row_sum", l), ("acc", o)):
            dumps[name][:, :, :, t] = value
    return {"scores": scores, **dumps, "out": pieces.quotient(o, l).astype(q.dtype), "lse": pieces.lse_of_base2(m, l)}


def fa2_split_kv(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """FlashAttention-2's exponent in 5 splits of tiles of 32, merged in units of log2."""
    scale_log2 = F32(scale) * LOG2E
    raw, v32 = pieces.masked_scores(q, k, v, causal)
    dumps = pieces.slots(raw, v.shape[3], -(-k.shape[2] // 32))
    how: dict[str, Any] = {"weigh": _by_fma(scale_log2), "correct": _by_product(scale_log2), "cast": q.dtype}
    parts = pieces.partials(
        [pieces.online(raw, v32, some, dumps, **how) for some in pieces.in_splits(k.shape[2], 32, 5)]
    )
    merge, o, total = pieces.merged(parts, _by_product(scale_log2))
    lse = np.where(total == 0, -INF, pieces.finite(merge["merge_max"]) * F32(scale)) + pieces.log(total)
    return {"scores": raw, **dumps, **parts, **merge, "out": pieces.quotient(o, total).astype(q.dtype), "lse": lse}


def fa4_lazy_rescale(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Rescales where the maximum grew by more than 8 in units of log2; else keeps the old one, below the running one.

    Its maxima, probs, sums and acc are all relative to that stale maximum and are therefore not dumped.
    """
    q32, k32, v32 = pieces.widened(q, k, v)
    x = pieces.masked(pieces.product(q32, k32), pieces.visible(q, k, causal)) * (F32(scale) * LOG2E)
    m = np.full(q.shape[:3], -INF)
    l, o = np.zeros_like(m), np.zeros(q.shape[:3] + v.shape[3:], F32)
    for _, lo, hi in pieces.tiles(k.shape[2], 32):
        above = np.maximum(m, x[..., lo:hi].max(-1))
        above = np.where(above - pieces.finite(m) > 8, above, np.where(m == -INF, above, m))
        scaled = pieces.by_exp2(m, above)
        p = pieces.by_exp2(x[..., lo:hi], above[..., None])
        l = l * scaled + p.sum(-1)
        o = o * scaled[..., None] + p.astype(q.dtype).astype(F32) @ v32[..., lo:hi, :]
        m = above
    return {"scores": x, "out": pieces.quotient(o, l).astype(q.dtype), "lse": pieces.lse_of_base2(m, l)}


_FMA = {"exp_argument": "fma", **BY_EXP2}
_FMA_BASE2 = {"exp_argument": "fma"}
_RAW = {"scores_scaled": False}

STYLES = (
    Style(
        fa2_forward,
        "exponent",
        ALL,
        {"block_k": 64, **_RAW, "empty_lse": float("inf")},
        {**CAST, **_FMA},
        "FlashAttention-2's forward: softmax_rescale_o on raw products and scale_apply_exp2; +inf as lse of no key.",
    ),
    Style(
        fa2_small_tiles,
        "exponent",
        ALL,
        {"block_k": 16, **_RAW},
        {**IEEE, **_FMA},
        "FlashAttention-2's exponent as small decode kernels copy it, probs staying in float32.",
    ),
    Style(
        fa3_base2,
        "exponent",
        ALL,
        {"block_k": 128, "base2": True},
        {**CAST, **_FMA_BASE2},
        "FlashAttention-3 with max_scaled kept instead of the raw maximum, tiles of 128.",
    ),
    Style(
        fa2_split_kv,
        "exponent",
        ALL,
        {"block_k": 32, "splits": 5, **_RAW},
        {**CAST, **_FMA},
        "FlashAttention-2's split-KV forward with num_splits=5, its partials left unnormalised.",
    ),
    Style(
        fa4_lazy_rescale,
        "exponent",
        ALL,
        {"base2": True},
        CAST,
        "FlashAttention-4 rescales only where the maximum grew by more than a factor 2^8.",
    ),
)
