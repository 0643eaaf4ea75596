"""Correct kernels of group arithmetic: narrow accumulators and operands, TF32, casts that lose more."""

from typing import Any

import ml_dtypes
import numpy as np

from campaigns.styles import pieces
from campaigns.styles.pieces import F32, LOG2E
from campaigns.styles.style import SIXTEEN, Array, Stages, input_dtype, of_arithmetic

BF16 = ml_dtypes.bfloat16


def _mma(a: Array, b: Array, start: Array, dtype: object, depth: int) -> Array:
    """a @ b added to `start`, whose sum is rounded to `dtype` after every `depth` products."""
    total = start
    for at in range(0, a.shape[-1], depth):
        total = pieces.nearest(total + a[..., at : at + depth] @ b[..., at : at + depth, :], dtype)
    return total


def _narrow(q: Array, k: Array, v: Array, scale: float, causal: bool, dtype: object, depth: int, block: int) -> Stages:
    q32, k32, v32 = pieces.widened(q, k, v)
    qk = _mma(q32, np.swapaxes(k32, -1, -2), np.zeros((*q.shape[:3], k.shape[2]), F32), dtype, depth)
    x = pieces.masked(qk * F32(scale), pieces.visible(q, k, causal))
    visits = pieces.tiles(k.shape[2], block)
    dumps = pieces.slots(x, v.shape[3], len(visits))
    m, l, _ = pieces.online(x, v32, visits, dumps, cast=q.dtype)
    o = np.zeros(q.shape[:3] + v.shape[3:], F32)
    for t, lo, hi in visits:
        o = pieces.nearest(o * dumps["correction"][..., t, None], dtype)
        o = _mma(dumps["probs_cast"][..., lo:hi], v32[:, :, lo:hi], o, dtype, depth)
        dumps["acc"][..., t, :] = o
    return {"qk": qk, "scores": x, **dumps, "out": pieces.quotient(o, l).astype(q.dtype), "lse": pieces.lse_of(m, l)}


def float16_accumulators(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """mma with float16 accumulators, 16 products at a time, tiles of 64."""
    return _narrow(q, k, v, scale, causal, np.float16, 16, 64)


def float16_hfma(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Two products at a time added in float16, as half2 arithmetic does in vector kernels; tiles of 32."""
    return _narrow(q, k, v, scale, causal, np.float16, 2, 32)


def bfloat16_accumulators(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Sums of 32 products rounded to bfloat16; tiles of 128."""
    return _narrow(q, k, v, scale, causal, BF16, 32, 128)


def scaled_q(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """q * scale rounded to the dtype of q before the product."""
    q32, k32, v32 = pieces.widened(q, k, v)
    x = pieces.masked(pieces.product(pieces.nearest(q32 * F32(scale), q.dtype), k32), pieces.visible(q, k, causal))
    visits = pieces.tiles(k.shape[2], 64)
    dumps = pieces.slots(x, v.shape[3], len(visits))
    m, l, o = pieces.online(x, v32, visits, dumps, cast=q.dtype)
    return {"scores": x, **dumps, "out": pieces.quotient(o, l).astype(q.dtype), "lse": pieces.lse_of(m, l)}


def scaled_q_base2(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """q * scale * log2(e) rounded to the dtype of q, 4 splits of tiles of 16."""
    q32, k32, v32 = pieces.widened(q, k, v)
    x = pieces.masked(
        pieces.product(pieces.nearest(q32 * (F32(scale) * LOG2E), q.dtype), k32), pieces.visible(q, k, causal)
    )
    dumps = pieces.slots(x, v.shape[3], -(-k.shape[2] // 16))
    how: dict[str, Any] = {"weigh": pieces.by_exp2, "cast": q.dtype}
    parts = pieces.partials([pieces.online(x, v32, some, dumps, **how) for some in pieces.in_splits(k.shape[2], 16, 4)])
    merge, o, total = pieces.merged(parts, pieces.by_exp2)
    out, lse = pieces.quotient(o, total).astype(q.dtype), pieces.lse_of_base2(merge["merge_max"], total)
    return {"scores": x, **dumps, **parts, **merge, "out": out, "lse": lse}


def scaled_q_one_pass(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """q * scale rounded to its dtype, softmax in one pass, normalised before v; dumps scores alone."""
    q32, k32, v32 = pieces.widened(q, k, v)
    x = pieces.masked(pieces.product(pieces.nearest(q32 * F32(scale), q.dtype), k32), pieces.visible(q, k, causal))
    m = x.max(-1)
    p = pieces.by_exp(x, m[..., None])
    l = p.sum(-1)
    out = pieces.nearest(pieces.quotient(p, l), q.dtype) @ v32
    return {"scores": x, "out": out.astype(q.dtype), "lse": pieces.lse_of(m, l)}


def _narrow_probs(q: Array, k: Array, v: Array, scale: float, causal: bool, dtype: object, block: int) -> Stages:
    x, v32 = pieces.masked_scores(q, k, v, causal, F32(scale))
    visits = pieces.tiles(k.shape[2], block)
    dumps = pieces.slots(x, v.shape[3], len(visits))
    m, l, o = pieces.online(x, v32, visits, dumps, cast=dtype)
    return {"scores": x, **dumps, "out": pieces.quotient(o, l).astype(q.dtype), "lse": pieces.lse_of(m, l)}


def probs_e4m3(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """probs cast to float8 e4m3 before they meet v; the sum is of uncast probs."""
    return _narrow_probs(q, k, v, scale, causal, ml_dtypes.float8_e4m3fn, 64)


def probs_e5m2(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """probs cast to float8 e5m2; tiles of 128."""
    return _narrow_probs(q, k, v, scale, causal, ml_dtypes.float8_e5m2, 128)


def probs_bfloat16(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """probs cast to bfloat16, whatever the dtype of v; tiles of 32."""
    return _narrow_probs(q, k, v, scale, causal, BF16, 32)


def partials_in_16_bits(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """partial_O of 4 splits of tiles of 32 stored unnormalised in the dtype of q."""
    x, v32 = pieces.masked_scores(q, k, v, causal, F32(scale))
    dumps = pieces.slots(x, v.shape[3], -(-k.shape[2] // 32))
    parts = pieces.partials(
        [pieces.online(x, v32, some, dumps, cast=q.dtype) for some in pieces.in_splits(k.shape[2], 32, 4)]
    )
    parts["partial_O"] = parts["partial_O"].astype(q.dtype)
    merge, o, total = pieces.merged(parts)
    out, lse = pieces.quotient(o, total).astype(q.dtype), pieces.lse_of(merge["merge_max"], total)
    return {"scores": x, **dumps, **parts, **merge, "out": out, "lse": lse}


def _toward_zero(x: Array, dtype: np.dtype) -> Array:
    """x cut off to `dtype`: where rounding to nearest went away from zero, the neighbour before."""
    near = x.astype(dtype)
    away = np.abs(near.astype(F32)) > np.abs(x)
    bits = near.view(np.uint16)
    return np.where(away, bits - np.uint16(1), bits).view(dtype)


def out_toward_zero(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """out cut off to 16 bits, where others round."""
    x, v32 = pieces.masked_scores(q, k, v, causal, F32(scale))
    visits = pieces.tiles(k.shape[2], 64)
    dumps = pieces.slots(x, v.shape[3], len(visits))
    m, l, o = pieces.online(x, v32, visits, dumps, cast=q.dtype)
    return {"scores": x, **dumps, "out": _toward_zero(pieces.quotient(o, l), q.dtype), "lse": pieces.lse_of(m, l)}


STYLES = (
    of_arithmetic(
        float16_accumulators,
        ("float16",),
        {"block_k": 64},
        {"accumulator_dtype": "float16"},
        "mma with f16 accumulators, as SageAttention's and llama.cpp's fp16 variants choose them; sums stay in range.",
    ),
    of_arithmetic(
        float16_hfma,
        ("float16",),
        {"block_k": 32},
        {"accumulator_dtype": "float16"},
        "llama.cpp's flash attention vector kernels multiply and add in half2.",
    ),
    of_arithmetic(
        bfloat16_accumulators,
        ("bfloat16",),
        {"block_k": 128},
        {"accumulator_dtype": "bfloat16"},
        "CPU and TPU kernels whose dot products of bfloat16 return bfloat16 for each block.",
    ),
    of_arithmetic(
        scaled_q,
        SIXTEEN,
        {"block_k": 64},
        {"scaled_q_dtype": input_dtype},
        "vLLM, PyTorch's older math attention and Triton's first tutorial scale q in its own dtype.",
    ),
    of_arithmetic(
        scaled_q_base2,
        SIXTEEN,
        {"block_k": 16, "splits": 4, "base2": True},
        {"scaled_q_dtype": input_dtype},
        "Triton's second tutorial and FlashInfer fold scale * log2(e) into q in 16 bits.",
    ),
    of_arithmetic(
        scaled_q_one_pass,
        SIXTEEN,
        {},
        {"scaled_q_dtype": input_dtype},
        "Fairseq's multi-head attention scales q after its projection, in its dtype.",
    ),
    of_arithmetic(
        probs_e4m3,
        SIXTEEN,
        {"block_k": 64},
        {"probs_dtype": "float8_e4m3fn"},
        "FlashAttention-3's FP8 forward and SageAttention2 cast P to e4m3.",
    ),
    of_arithmetic(
        probs_e5m2,
        SIXTEEN,
        {"block_k": 128},
        {"probs_dtype": "float8_e5m2"},
        "Triton's fused attention tutorial in float8 casts p to e5m2.",
    ),
    of_arithmetic(
        probs_bfloat16,
        ("float32", "float16"),
        {"block_k": 32},
        {"probs_dtype": "bfloat16"},
        "TPU kernels cast p to bfloat16 for the matrix unit at any precision.",
    ),
    of_arithmetic(
        partials_in_16_bits,
        SIXTEEN,
        {"block_k": 32, "splits": 4},
        {"partials_dtype": input_dtype, "partials_rounding": "nearest"},
        "Split-KV kernels whose temporary output has the dtype of out (vLLM's paged attention v2).",
    ),
    of_arithmetic(
        out_toward_zero,
        SIXTEEN,
        {"block_k": 64},
        {"out_rounding": "toward-zero"},
        "bfloat16 stores that keep the upper half of a float32, as on chips without a rounding conversion.",
    ),
)
