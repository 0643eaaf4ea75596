"""Correct kernels of group exponent whose maximum is a bound that no score passes."""

import numpy as np

from campaigns.styles import pieces
from campaigns.styles.pieces import F32, LOG2E
from campaigns.styles.style import ALL, CAST, IEEE, Array, Stages, Style, small_inputs


def headroom(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Whenever a score passes the bound, the bound goes 4 above it, so that it seldom has to move again."""
    scores, v32 = pieces.masked_scores(q, k, v, causal, F32(scale))
    visits = pieces.tiles(k.shape[2], 16)
    dumps = pieces.slots(scores, v.shape[3], len(visits))

    def bound(m: Array, x: Array, t: int) -> Array:
        top = x.max(-1)
        return np.where(top > m, top + F32(4), m)

    m, l, o = pieces.online(scores, v32, visits, dumps, bound=bound, cast=q.dtype)
    return {"scores": scores, **dumps, "out": pieces.quotient(o, l).astype(q.dtype), "lse": pieces.lse_of(m, l)}


def _norms(q: Array, k: Array, scale: float) -> tuple[Array, Array]:
    """|q| scale, a little too large, [b h q], and |k| [b h k]."""
    lengths = [np.sqrt((x * x).sum(-1)) for x in (q, k)]
    return lengths[0] * F32(scale) * F32(1.00001), lengths[1]


def bound_by_norms(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The maximum of a tile is Cauchy and Schwarz's bound, the product of the norms, running over tiles of 32."""
    q32, k32, v32 = pieces.widened(q, k, v)
    q_norm, k_norm = _norms(q32, k32, scale)
    scores = pieces.masked(pieces.product(q32, k32) * F32(scale), pieces.visible(q, k, causal))
    visits = pieces.tiles(k.shape[2], 32)
    dumps = pieces.slots(scores, v.shape[3], len(visits))

    def bound(m: Array, x: Array, t: int) -> Array:
        return np.maximum(m, q_norm * k_norm[..., None, 32 * t : 32 * t + 32].max(-1))

    m, l, o = pieces.online(scores, v32, visits, dumps, bound=bound)
    return {"scores": scores, **dumps, "out": pieces.quotient(o, l).astype(q.dtype), "lse": pieces.lse_of(m, l)}


def bound_by_head(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """One bound for a head, from its longest query and key, over 4 splits: no split ever rescales."""
    q32, k32, v32 = pieces.widened(q, k, v)
    q_norm, k_norm = _norms(q32, k32, scale)
    top = q_norm.max(-1) * k_norm.max(-1) * LOG2E * F32(1.00001)
    scores = pieces.masked(pieces.product(q32, k32), pieces.visible(q, k, causal)) * (F32(scale) * LOG2E)
    dumps = pieces.slots(scores, v.shape[3], -(-k.shape[2] // 16))

    def bound(m: Array, x: Array, t: int) -> Array:
        return np.broadcast_to(top[..., None], m.shape)

    visits = pieces.in_splits(k.shape[2], 16, 4)
    parts = pieces.partials(
        [pieces.online(scores, v32, some, dumps, bound=bound, weigh=pieces.by_exp2, cast=q.dtype) for some in visits]
    )
    merge, o, total = pieces.merged(parts, pieces.by_exp2)
    out = pieces.quotient(o, total).astype(q.dtype)
    return {
        "scores": scores,
        **dumps,
        **parts,
        **merge,
        "out": out,
        "lse": pieces.lse_of_base2(merge["merge_max"], total),
    }


def bound_over_all_keys(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The maximum over all keys, masked ones too: one reduction before the mask, in one tile."""
    q32, k32, v32 = pieces.widened(q, k, v)
    qk = pieces.product(q32, k32)
    top = (qk * F32(scale)).max(-1, keepdims=True)
    scores = pieces.masked(qk * F32(scale), pieces.visible(q, k, causal))
    probs = np.exp(scores - top)
    l = probs.sum(-1)
    o = probs @ v32
    per_row = {"row_max": top, "row_sum": l[..., None], "acc": o[..., None, :]}
    out, lse = pieces.quotient(o, l).astype(q.dtype), pieces.lse_of(top[..., 0], l)
    return {"qk": qk, "scores": scores, "probs": probs, **per_row, "out": out, "lse": lse}


_UPPER = {"row_max": "upper_bound"}

STYLES = (
    Style(
        headroom,
        "exponent",
        ALL,
        {"block_k": 16, **_UPPER},
        CAST,
        "Lazy rescaling with headroom, a variant of FlashAttention-4's threshold that stays above the scores.",
    ),
    Style(
        bound_by_norms,
        "exponent",
        ALL,
        {"block_k": 32, **_UPPER},
        IEEE,
        "Softmax with a bound by the norms of q and k in place of the maximum (as unified-max decoding, "
        "FlashDecoding++); input_std up to 1, since a bound far above all scores would underflow every prob.",
        fits=small_inputs,
    ),
    Style(
        bound_by_head,
        "exponent",
        ("float32", "bfloat16"),
        {"block_k": 16, "splits": 4, "base2": True, **_UPPER},
        CAST,
        "FlashDecoding++'s unified maximum for all splits; input_std up to 1, since the bound is far above the "
        "scores, and no float16, in which probs that small lose bits.",
        fits=small_inputs,
    ),
    Style(
        bound_over_all_keys,
        "exponent",
        ALL,
        {"block_k": 512, **_UPPER},
        IEEE,
        "Fused causal softmax kernels (Megatron's) that reduce before they mask; input_std up to 1, since a masked "
        "score far above the visible ones would underflow every prob.",
        fits=small_inputs,
    ),
)
