"""Correct kernels of group additive-mask: a large negative number is added to masked scores or replaces them."""

from collections.abc import Callable

import numpy as np

from campaigns.styles import pieces
from campaigns.styles.pieces import F32, INF, LOG2E, Weigh
from campaigns.styles.style import ALL, CAST, IEEE, Array, Stages, Style, every_row_has_keys

LOWEST = float(np.finfo(F32).min)


def _zeroed(out: Array, lse: Array, seen: Array, dtype: np.dtype) -> Stages:
    """out and lse with 0 and -inf in rows without keys, where a finite mask leaves the mean of v."""
    some = np.any(seen, axis=-1)
    return {"out": np.where(some[:, None], out, F32(0)).astype(dtype), "lse": np.where(some, lse, -INF)}


def _flash(
    scores: Array, v32: Array, seen: Array, block: int, dtype: np.dtype, weigh: Weigh, end: Callable[..., Array]
) -> Stages:
    dumps = pieces.slots(scores, v32.shape[3], -(-v32.shape[2] // block))
    m, l, o = pieces.online(scores, v32, pieces.tiles(v32.shape[2], block), dumps, weigh=weigh, cast=dtype)
    return {"scores": scores, **dumps, **_zeroed(pieces.quotient(o, l), end(m, l), seen, dtype)}


def triton_tutorial(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """qk * scale_log2 + (0 or -1e6), tiles of 64, base 2. A row without keys would get the mean of v."""
    q32, k32, v32 = pieces.widened(q, k, v)
    seen = pieces.visible(q, k, causal)
    scores = pieces.product(q32, k32) * (F32(scale) * LOG2E) + np.where(seen, F32(0), F32(-1e6))
    dumps = pieces.slots(scores, v.shape[3], -(-k.shape[2] // 64))
    m, l, o = pieces.online(scores, v32, pieces.tiles(k.shape[2], 64), dumps, weigh=pieces.by_exp2, cast=q.dtype)
    return {"scores": scores, **dumps, "out": (o / l[..., None]).astype(q.dtype), "lse": pieces.lse_of_base2(m, l)}


def bert_minus_1e4(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Eager attention with (1 - mask) * -10000 added, in one pass."""
    q32, k32, v32 = pieces.widened(q, k, v)
    seen = pieces.visible(q, k, causal)
    qk = pieces.product(q32, k32)
    scores = qk * F32(scale) + (F32(1) - seen.astype(F32)) * F32(-10000)
    m = scores.max(-1)
    probs = np.exp(scores - m[..., None])
    l = probs.sum(-1)
    out = pieces.nearest(probs / l[..., None], q.dtype) @ v32
    return {
        "qk": qk,
        "scores": scores,
        "row_max": m[..., None],
        "probs": probs,
        "row_sum": l[..., None],
        **_zeroed(out, pieces.lse_of(m, l), seen, q.dtype),
    }


def added_1e9_splits(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """-1e9 added, 4 splits of tiles of 32: a split that sees nothing has a sum of its own, with weight 0."""
    q32, k32, v32 = pieces.widened(q, k, v)
    seen = pieces.visible(q, k, causal)
    scores = pieces.product(q32, k32) * F32(scale) + np.where(seen, F32(0), F32(-1e9))
    dumps = pieces.slots(scores, v.shape[3], -(-k.shape[2] // 32))
    parts = pieces.partials(
        [pieces.online(scores, v32, some, dumps, cast=q.dtype) for some in pieces.in_splits(k.shape[2], 32, 4)]
    )
    merge, o, total = pieces.merged(parts)
    ends = _zeroed(pieces.quotient(o, total), pieces.lse_of(merge["merge_max"], total), seen, q.dtype)
    return {"scores": scores, **dumps, **parts, **merge, **ends}


def jax_mask_value(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """0.7 of the lowest float32 in place of masked scores, tiles of 128."""
    q32, k32, v32 = pieces.widened(q, k, v)
    seen = pieces.visible(q, k, causal)
    scores = np.where(seen, pieces.product(q32, k32) * F32(scale), F32(0.7 * LOWEST))
    return _flash(scores, v32, seen, 128, q.dtype, pieces.by_exp, pieces.lse_of)


def half_of_lowest(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Half of the lowest float32 added, so that no sum overflows; tiles of 16."""
    q32, k32, v32 = pieces.widened(q, k, v)
    seen = pieces.visible(q, k, causal)
    scores = pieces.product(q32, k32) * F32(scale) + np.where(seen, F32(0), F32(LOWEST / 2))
    return _flash(scores, v32, seen, 16, q.dtype, pieces.by_exp, pieces.lse_of)


def minus_30000_float16(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Scores and mask in float16, whose range holds -30000 and what scores may add to it."""
    q32, k32, v32 = pieces.widened(q, k, v)
    seen = pieces.visible(q, k, causal)
    scores = pieces.nearest(pieces.product(q32, k32) * F32(scale), np.float16) + np.where(seen, F32(0), F32(-30000))
    scores = pieces.nearest(scores, np.float16)
    m = scores.max(-1)
    probs = np.exp(scores - m[..., None])
    l = probs.sum(-1)
    ends = _zeroed(pieces.quotient(pieces.nearest(probs, q.dtype) @ v32, l), pieces.lse_of(m, l), seen, q.dtype)
    return {"scores": scores.astype(np.float16), "row_max": m[..., None], "probs": probs, **ends}


def flashinfer_5e4(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """-5e4 for masked scores and for the first maximum, in base 2 with tiles of 32."""
    q32, k32, v32 = pieces.widened(q, k, v)
    seen = pieces.visible(q, k, causal)
    scores = np.where(seen, pieces.product(q32, k32) * (F32(scale) * LOG2E), F32(-5e4))
    return _flash(scores, v32, seen, 32, q.dtype, pieces.by_exp2, pieces.lse_of_base2)


def llama_cpp_half_lowest(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Masked scores are -inf, and the maxima begin at half of the lowest float32, so that no difference is a NaN."""
    q32, k32, v32 = pieces.widened(q, k, v)
    seen = pieces.visible(q, k, causal)
    scores = np.where(seen, pieces.product(q32, k32) * F32(scale), -INF)
    dumps = pieces.slots(scores, v.shape[3], -(-k.shape[2] // 32))
    m, l, o = pieces.online(scores, v32, pieces.tiles(k.shape[2], 32), dumps, cast=q.dtype, start=LOWEST / 2)
    return {"scores": scores, **dumps, "out": pieces.quotient(o, l).astype(q.dtype), "lse": pieces.lse_of(m, l)}


def opt_clamped(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The lowest float32 added, then the larger of that and the lowest: masked scores are one number."""
    q32, k32, v32 = pieces.widened(q, k, v)
    seen = pieces.visible(q, k, causal)
    scores = np.maximum(pieces.product(q32, k32) * F32(scale) + np.where(seen, F32(0), F32(LOWEST)), F32(LOWEST))
    m = scores.max(-1)
    weights = np.exp(scores - m[..., None])
    l = weights.sum(-1)
    return {"scores": scores, **_zeroed((weights / l[..., None]) @ v32, pieces.lse_of(m, l), seen, q.dtype)}


def added_1e9_descending(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """-1e9 added, tiles of 64 from the last: what fully masked tiles sum up the first visible key corrects away."""
    q32, k32, v32 = pieces.widened(q, k, v)
    seen = pieces.visible(q, k, causal)
    scores = pieces.product(q32, k32) * F32(scale) + np.where(seen, F32(0), F32(-1e9))
    dumps = pieces.slots(scores, v.shape[3], -(-k.shape[2] // 64))
    m, l, o = pieces.online(scores, v32, pieces.tiles(k.shape[2], 64)[::-1], dumps, cast=q.dtype)
    return {"scores": scores, **dumps, **_zeroed(pieces.quotient(o, l), pieces.lse_of(m, l), seen, q.dtype)}


def _units(value: float, **others: object) -> dict[str, object]:
    return {"mask_sentinel": value, **others}


STYLES = (
    Style(
        triton_tutorial,
        "additive-mask",
        ALL,
        _units(-1e6, block_k=64, base2=True),
        CAST,
        "Triton's fused attention tutorial adds -1e6; every row must see a key, as there.",
        fits=every_row_has_keys,
    ),
    Style(
        bert_minus_1e4,
        "additive-mask",
        ALL,
        _units(-1e4, block_k=512),
        CAST,
        "BERT's original (1 - mask) * -10000; scores are a few hundred at most.",
    ),
    Style(
        added_1e9_splits,
        "additive-mask",
        ALL,
        _units(-1e9, block_k=32, splits=4),
        CAST,
        "Keras and many TensorFlow models add -1e9 (tensor2tensor's large_compatible_negative).",
    ),
    Style(
        jax_mask_value,
        "additive-mask",
        ALL,
        _units(float(F32(0.7 * LOWEST)), block_k=128),
        CAST,
        "JAX's Pallas flash attention has DEFAULT_MASK_VALUE = -0.7 * finfo.max.",
    ),
    Style(
        half_of_lowest,
        "additive-mask",
        ALL,
        _units(LOWEST / 2, block_k=16),
        CAST,
        "Half of finfo.min, since two additions of finfo.min overflow.",
    ),
    Style(
        minus_30000_float16,
        "additive-mask",
        ("float16",),
        _units(-30000.0, block_k=512),
        {**CAST, "scores_dtype": "float16"},
        "xformers' and DeepSpeed's float16 kernels mask with numbers such as -30000 that float16 holds.",
    ),
    Style(
        flashinfer_5e4,
        "additive-mask",
        ALL,
        _units(-5e4, block_k=32, base2=True),
        CAST,
        "FlashInfer's math::inf is 5e4, for masked logits and for the first maximum.",
    ),
    Style(
        llama_cpp_half_lowest,
        "additive-mask",
        ALL,
        _units(LOWEST / 2, block_k=32),
        CAST,
        "llama.cpp's CUDA flash attention masks with -inf and starts maxima at -FLT_MAX/2.",
    ),
    Style(
        opt_clamped,
        "additive-mask",
        ALL,
        _units(LOWEST),
        IEEE,
        "Hugging Face's OPT adds finfo.min and takes the maximum with finfo.min.",
    ),
    Style(
        added_1e9_descending,
        "additive-mask",
        ALL,
        _units(-1e9, block_k=64, tile_order="descending"),
        CAST,
        "-1e9 added in FlashAttention-2's order, from the last tile to the first.",
    ),
)
