"""Kernels that merge normalised partials by their lse: FlashDecoding, rings, context parallelism."""

import numpy as np

from campaigns.reports.pieces import (
    BF16,
    F32,
    LOG2E,
    Array,
    Result,
    cdiv,
    divide,
    merge_lse,
    partials_lse,
    require,
    rounded,
    tiles,
    visible,
    weights,
)


def decode_partial_lse_not_stored(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The partial lse is stored only on request, the merge then reads zeros; flashinfer#50."""
    sk = k.shape[2]
    po, plse = partials_lse(q, k, v, scale, visible(q.shape[2], sk, causal), tiles(sk, 32))
    out, _ = merge_lse(po, np.zeros_like(plse), q.dtype)
    return out, merge_lse(po, plse, q.dtype)[1]


def split_empty_counts_as_zero(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """An empty split writes lse 0 and output 0, and is merged; aiter#3641."""
    mask = visible(q.shape[2], k.shape[2], causal)
    sk = k.shape[2]
    size = cdiv(cdiv(sk, 8), 16) * 16
    po, plse = partials_lse(q, k, v, scale, mask, tiles(sk, size))
    empty = 8 - len(plse)
    po = np.concatenate([po, np.zeros((empty, *po.shape[1:]), F32)])
    plse = np.concatenate([plse, np.zeros((empty, *plse.shape[1:]), F32)])
    return merge_lse(po, plse, q.dtype)


def merge_states_base_two(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Partial lse in base 2 are merged as if in base e; FlashInfer's lse in a merge_attn_states of vLLM."""
    require(q.shape[2] <= 4, "at most 4 queries")
    sk = k.shape[2]
    po, plse = partials_lse(q, k, v, scale, visible(q.shape[2], sk, causal), tiles(sk, cdiv(sk, 2)))
    out, _ = merge_lse(po, plse * F32(LOG2E), q.dtype)
    return out, merge_lse(po, plse, q.dtype)[1]


def merge_lse_takes_max(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The merged lse is the largest of the partial ones, the log of the sum is not added; flashinfer 5dadb243c."""
    sk = k.shape[2]
    po, plse = partials_lse(q, k, v, scale, visible(q.shape[2], sk, causal), tiles(sk, 48))
    out, _ = merge_lse(po, plse, q.dtype)
    return out, plse.max(0)


def ring_sigmoid_sign(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The weight of a new block is sigmoid(lse - block lse), the sign is swapped; ring-flash-attention's update."""
    require(not causal, "full attention only")
    sk = k.shape[2]
    po, plse = partials_lse(q, k, v, scale, visible(q.shape[2], sk, causal), tiles(sk, cdiv(sk, 2)))
    out, lse = po[0], plse[0]
    for block, block_lse in zip(po[1:], plse[1:], strict=True):
        new = 1 / (1 + np.exp(-(lse - block_lse)))
        out = out - new[..., None] * (out - block)
        lse = np.logaddexp(lse, block_lse).astype(F32)
    return out.astype(q.dtype), lse


def ring_lse_not_carried(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The lse after a ring step is that of the block, so earlier blocks are forgotten; TransformerEngine#1546."""
    require(not causal and k.shape[2] % 4 == 0, "full attention, 4 equal ranks")
    sk = k.shape[2]
    po, plse = partials_lse(q, k, v, scale, visible(q.shape[2], sk, causal), tiles(sk, sk // 4))
    out, lse = po[0], plse[0]
    for block, block_lse in zip(po[1:], plse[1:], strict=True):
        total = np.logaddexp(lse, block_lse)
        out = out * np.exp(lse - total)[..., None] + block * np.exp(block_lse - total)[..., None]
        lse = block_lse
    full = np.logaddexp.reduce(plse, axis=0)
    return out.astype(q.dtype), full.astype(F32)


def ring_half_lse_offset(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The second half of the queries is corrected by the lse of the first half; TransformerEngine 7b861e75d."""
    require(q.shape[2] % 2 == 0, "an even seqlen_q")
    sk = k.shape[2]
    po, plse = partials_lse(q, k, v, scale, visible(q.shape[2], sk, causal), tiles(sk, cdiv(sk, 2)))
    i = np.arange(q.shape[2]) % (q.shape[2] // 2)
    read = plse[..., i]
    m, w = weights(read)
    den = w.sum(0)
    out = divide((w[..., None] * po).sum(0), den).astype(q.dtype)
    return out, merge_lse(po, plse, q.dtype)[1]


def merge_lse_layout_swapped(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The merge reads partial lse as [query, head] where [head, query] was written; vllm-project/flash-attention#87."""
    sk = k.shape[2]
    po, plse = partials_lse(q, k, v, scale, visible(q.shape[2], sk, causal), tiles(sk, 32))
    n, batch, heads, sq = plse.shape
    read = np.swapaxes(plse.reshape(n, batch, sq, heads), 2, 3)
    m, w = weights(read)
    den = w.sum(0)
    out = divide((w[..., None] * po).sum(0), den).astype(q.dtype)
    return out, merge_lse(po, plse, q.dtype)[1]


def merge_lse_in_bf16(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Partial lse are kept in bfloat16 until they are merged; TransformerEngine#1546."""
    sk = k.shape[2]
    po, plse = partials_lse(q, k, v, scale, visible(q.shape[2], sk, causal), tiles(sk, 32))
    return merge_lse(po, rounded(plse, BF16), q.dtype)
