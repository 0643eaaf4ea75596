"""Faulty kernels that are correct ones on inputs that they should not have read: other tiles, heads, scales, codes."""

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from campaigns.styles.correct_eager import grouped_einsum, scaled_query
from campaigns.styles.correct_merges import flash_decoding, ring_sigmoid
from campaigns.styles.correct_orders import descending, even_then_odd
from campaigns.styles.correct_sequences import fused_sum, head_dim_in_chunks, packed_groups, pairwise_sums
from campaigns.styles.correct_sums import sums_cast_probs
from campaigns.styles.fault import Faulty, ends
from campaigns.styles.pieces import nearest
from campaigns.styles.style import Array, Stages

Options = Mapping[str, Any]


def scale_half_percent_off(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    return ends(descending(q, k, v, scale=scale * 1.005, causal=causal))


def scale_of_padded_dim(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The scale of a head_dim that was padded by 16."""
    dim = q.shape[3]
    return ends(sums_cast_probs(q, k, v, scale=scale * (dim / (dim + 16)) ** 0.5, causal=causal))


def scale_twice(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    return ends(scaled_query(q, k, v, scale=scale * scale, causal=causal))


def scale_missing(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    return ends(pairwise_sums(q, k, v, scale=1.0, causal=causal))


def heads_interleaved(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Query head h reads kv head h % kv_heads, where it belongs to h // group."""
    some = np.arange(q.shape[1]) % k.shape[1]
    return ends(grouped_einsum(q, k[:, some], v[:, some], scale=scale, causal=causal))


def first_kv_head(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Every query head reads kv head 0 of V."""
    return ends(packed_groups(q, k, np.repeat(v[:, :1], v.shape[1], axis=1), scale=scale, causal=causal))


def first_batch(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The batch stride of K is forgotten."""
    return ends(fused_sum(q, np.repeat(k[:1], len(k), axis=0), v, scale=scale, causal=causal))


def _repeated(x: Array, tile: int, block: int) -> Array:
    """x with the keys of `tile` also where the next tile is."""
    x = x.copy()
    after = x[:, :, (tile + 1) * block : (tile + 2) * block]
    after[...] = x[:, :, tile * block : (tile + 1) * block][:, :, : after.shape[2]]
    return x


def key_tile_twice(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The second tile of 64 keys was not loaded: K is still the first's."""
    return ends(descending(q, _repeated(k, 0, 64), v, scale=scale, causal=causal))


def value_tile_twice(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The third tile of 32 values was not loaded: V is still the second's."""
    return ends(even_then_odd(q, k, _repeated(v, 1, 32), scale=scale, causal=causal))


def stale_last_page(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The last page of 16 keys and values is another sequence's."""
    k, v = k.copy(), v.copy()
    first = (k.shape[2] - 1) // 16 * 16
    for x in (k, v):
        x[:, :, first:] = np.roll(x[:, :, first:], 1, axis=0)
    return ends(flash_decoding(q, k, v, scale=scale, causal=causal))


def values_swizzled(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """V is read with a swizzle that it was not stored with: odd groups of 8 keys have groups of 8 dims exchanged."""
    odd = np.arange(k.shape[2]) // 8 % 2 == 1
    other = v[..., np.arange(v.shape[3]) ^ 8]
    return ends(head_dim_in_chunks(q, k, np.where(odd[:, None], other, v), scale=scale, causal=causal))


def last_dims_missing(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The loop over head_dim ends 8 dimensions early."""
    q = q.copy()
    q[..., -8:] = 0
    return ends(head_dim_in_chunks(q, k, v, scale=scale, causal=causal))


def keys_in_e4m3(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """K went through float8 e4m3."""
    return ends(ring_sigmoid(q, nearest(k, ml_dtypes.float8_e4m3fn).astype(k.dtype), v, scale=scale, causal=causal))


def last_key_is_the_one_before(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """An index is clamped to seqlen_k - 2."""
    k, v = k.copy(), v.copy()
    for x in (k, v):
        x[:, :, -1] = x[:, :, max(0, x.shape[2] - 2)]
    return ends(sums_cast_probs(q, k, v, scale=scale, causal=causal))


def _spread(case: Options) -> bool:
    """Whether scores differ enough for their scale to count."""
    return bool(case["seqlen_k"] > 1 and case["input_std"] >= 1)


FAULTY = (
    Faulty(scale_half_percent_off, descending, "the scale is 0.5 % too large", _spread),
    Faulty(scale_of_padded_dim, sums_cast_probs, "the scale is that of a padded head_dim", _spread),
    Faulty(scale_twice, scaled_query, "the scale is applied to q and to the scores", _spread),
    Faulty(scale_missing, pairwise_sums, "no scale", _spread),
    Faulty(
        heads_interleaved, grouped_einsum, "query heads grouped the other way", lambda c: 1 < c["kv_heads"] < c["heads"]
    ),
    Faulty(first_kv_head, packed_groups, "V of kv head 0 for all heads", lambda c: c["kv_heads"] > 1),
    Faulty(
        first_batch,
        fused_sum,
        "K of batch 0 for all batches",
        lambda c: c["batch"] > 1 and c["seqlen_k"] > 1 and c["input_std"] >= 1,
    ),
    Faulty(
        key_tile_twice,
        descending,
        "a tile of K of another block",
        lambda c: c["seqlen_k"] > 64 and c["input_std"] == 1,
    ),
    Faulty(
        value_tile_twice,
        even_then_odd,
        "a tile of V of another block",
        lambda c: c["seqlen_k"] > 64 and c["input_std"] <= 1,
    ),
    Faulty(stale_last_page, flash_decoding, "the last page is another sequence's", lambda c: c["batch"] > 1),
    Faulty(values_swizzled, head_dim_in_chunks, "V read with a wrong swizzle", lambda c: c["seqlen_k"] > 8),
    Faulty(last_dims_missing, head_dim_in_chunks, "8 dimensions of q.k are missing", _spread),
    Faulty(keys_in_e4m3, ring_sigmoid, "K lost bits in float8", _spread),
    Faulty(
        last_key_is_the_one_before,
        sums_cast_probs,
        "the last key and value are read one too early",
        lambda c: c["seqlen_k"] > 1 and c["input_std"] <= 1,
    ),
)
