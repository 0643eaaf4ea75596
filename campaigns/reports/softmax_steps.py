"""Kernels with faults of the softmax: maxima, corrections, sums, initial values."""

import numpy as np

from campaigns.reports.pieces import (
    F32,
    Array,
    Result,
    cdiv,
    fresh,
    hide,
    load,
    outputs,
    pad,
    require,
    rounded,
    rows,
    safe,
    scores,
    store,
    tiles,
    visible,
)


def flash_sum_not_rescaled(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The running sum is not multiplied by the correction; an online softmax of a course repository."""
    qf, kf, vf = load(q, k, v)
    mask = visible(q.shape[2], k.shape[2], causal)
    m, den, acc = fresh(qf, vf)
    for a, b in tiles(k.shape[2], 32):
        s = hide(scores(qf, rows(kf, a, b), scale), mask[:, a:b])
        m_new = np.maximum(m, s.max(-1))
        alpha = np.exp(m - safe(m_new))
        p = np.exp(s - safe(m_new)[..., None])
        den = den + p.sum(-1)
        acc = acc * alpha[..., None] + rounded(p, q.dtype) @ rows(vf, a, b)
        m = m_new
    return store(m, den, acc, q.dtype)


def flash_acc_not_rescaled(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The accumulator is not multiplied by the correction; aiter#4216 around the lazy rescale."""
    qf, kf, vf = load(q, k, v)
    mask = visible(q.shape[2], k.shape[2], causal)
    m, den, acc = fresh(qf, vf)
    for a, b in tiles(k.shape[2], 16):
        s = hide(scores(qf, rows(kf, a, b), scale), mask[:, a:b])
        m_new = np.maximum(m, s.max(-1))
        p = np.exp(s - safe(m_new)[..., None])
        den = den * np.exp(m - safe(m_new)) + p.sum(-1)
        acc += rounded(p, q.dtype) @ rows(vf, a, b)
        m = m_new
    return store(m, den, acc, q.dtype)


def flash_alpha_of_tile_max(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The correction is exp(old max - max of the tile), P uses the running max; lazy rescale, aiter#4216."""
    qf, kf, vf = load(q, k, v)
    mask = visible(q.shape[2], k.shape[2], causal)
    m, den, acc = fresh(qf, vf)
    for a, b in tiles(k.shape[2], 32):
        s = hide(scores(qf, rows(kf, a, b), scale), mask[:, a:b])
        tile_max = s.max(-1)
        m_new = np.maximum(m, tile_max)
        alpha = np.where(np.isneginf(tile_max), F32(1), np.exp(m - safe(tile_max)))
        p = np.exp(s - safe(m_new)[..., None])
        den = den * alpha + p.sum(-1)
        acc = acc * alpha[..., None] + rounded(p, q.dtype) @ rows(vf, a, b)
        m = m_new
    return store(m, den, acc, q.dtype)


def flash_phantom_key(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The sum starts at 1 and the max at that of the first tile: a key too many; flashinfer c6fdbd6d5."""
    qf, kf, vf = load(q, k, v)
    mask = visible(q.shape[2], k.shape[2], causal)
    first = hide(scores(qf, rows(kf, 0, 32), scale), mask[:, :32])
    m, den, acc = first.max(-1), np.ones(q.shape[:3], F32), fresh(qf, vf)[2]
    for a, b in tiles(k.shape[2], 32):
        s = hide(scores(qf, rows(kf, a, b), scale), mask[:, a:b])
        m_new = np.maximum(m, s.max(-1))
        alpha = np.exp(m - safe(m_new))
        p = np.exp(s - safe(m_new)[..., None])
        den = den * alpha + p.sum(-1)
        acc = acc * alpha[..., None] + rounded(p, q.dtype) @ rows(vf, a, b)
        m = m_new
    return store(m, den, acc, q.dtype)


def flash_sum_over_two_rows(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """A shuffle over 32 lanes sums two rows of 16 lanes each; flashinfer 6c6417903."""
    require(q.shape[2] % 2 == 0, "an even seqlen_q")
    qf, kf, vf = load(q, k, v)
    mask = visible(q.shape[2], k.shape[2], causal)
    m, den, acc = fresh(qf, vf)
    for a, b in tiles(k.shape[2], 16):
        s = hide(scores(qf, rows(kf, a, b), scale), mask[:, a:b])
        m_new = np.maximum(m, s.max(-1))
        alpha = np.exp(m - safe(m_new))
        p = np.exp(s - safe(m_new)[..., None])
        lanes = p.sum(-1).reshape(*m.shape[:2], -1, 2).sum(-1)
        den = den * alpha + np.repeat(lanes, 2, axis=-1)
        acc = acc * alpha[..., None] + rounded(p, q.dtype) @ rows(vf, a, b)
        m = m_new
    return store(m, den, acc, q.dtype)


def flash_warps_keep_own_max(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The max over the two warps of a tile is not taken before exp; llama.cpp#24451."""
    require(k.shape[2] % 32 == 0 and not causal, "full attention, seqlen_k a multiple of 32")
    qf, kf, vf = load(q, k, v)
    m, den, acc = fresh(qf, vf)
    for a, b in tiles(k.shape[2], 32):
        s = scores(qf, rows(kf, a, b), scale)
        warp_max = s.reshape(*s.shape[:-1], 2, 16).max(-1)
        m_new = np.maximum(m, warp_max.max(-1))
        alpha = np.exp(m - m_new)
        own = np.maximum(m[..., None], warp_max)
        p = np.exp(s - np.repeat(own, 16, axis=-1))
        den = den * alpha + p.sum(-1)
        acc = acc * alpha[..., None] + rounded(p, q.dtype) @ rows(vf, a, b)
        m = m_new
    return store(m, den, acc, q.dtype)


def two_pass_last_tile_unshifted(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The last key tile is exponentiated without subtracting the row max; tt-metal#51278."""
    qf, kf, vf = load(q, k, v)
    mask = visible(q.shape[2], k.shape[2], causal)
    blocks = tiles(k.shape[2], 32)
    s = [hide(scores(qf, rows(kf, a, b), scale), mask[:, a:b]) for a, b in blocks]
    m = np.max([x.max(-1) for x in s], axis=0)
    shift = safe(m)[..., None]
    p = [np.exp(x - shift) for x in s[:-1]] + [np.exp(s[-1])]
    den = sum(x.sum(-1) for x in p)
    acc = sum(rounded(x, q.dtype) @ rows(vf, a, b) for x, (a, b) in zip(p, blocks, strict=True))
    return store(m, den, acc, q.dtype)


def flash_tail_in_sum(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The tail is masked for the max but not in the loop of exp and sum; NNkernels.jl#16."""
    require(not causal, "full attention only")
    qf, kf, vf = load(q, k, v)
    sk = k.shape[2]
    end = cdiv(sk, 32) * 32
    kf, vf = pad(kf, end), pad(vf, end)
    m, den, acc = fresh(qf, vf)
    for a, b in tiles(end, 32):
        s = scores(qf, rows(kf, a, b), scale)
        m_new = np.maximum(m, hide(s, np.arange(a, b) < sk).max(-1))
        alpha = np.exp(m - m_new)
        p = np.exp(s - m_new[..., None])
        den = den * alpha + p.sum(-1)
        acc = acc * alpha[..., None] + rounded(p, q.dtype) @ rows(vf, a, b)
        m = m_new
    return store(m, den, acc, q.dtype)


def two_pass_weight_to_running_max(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Each tile is weighted to the running max of its time and never again; after flash-attn#2717."""
    qf, kf, vf = load(q, k, v)
    mask = visible(q.shape[2], k.shape[2], causal)
    m, den, acc = fresh(qf, vf)
    for a, b in tiles(k.shape[2], 16):
        s = hide(scores(qf, rows(kf, a, b), scale), mask[:, a:b])
        m = np.maximum(m, s.max(-1))
        p = np.exp(s - safe(m)[..., None])
        den = den + p.sum(-1)
        acc = acc + rounded(p, q.dtype) @ rows(vf, a, b)
    return store(m, den, acc, q.dtype)


def flash_p_of_old_max(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """P subtracts the max from before the tile, the correction that from after it; llama.cpp#13438."""
    require(q.shape[2] == k.shape[2] or not causal, "causal with equal lengths only")
    qf, kf, vf = load(q, k, v)
    mask = visible(q.shape[2], k.shape[2], causal)
    m, den, acc = fresh(qf, vf)
    for a, b in tiles(k.shape[2], 64):
        s = hide(scores(qf, rows(kf, a, b), scale), mask[:, a:b])
        m_new = np.maximum(m, s.max(-1))
        shift = m if a else m_new
        alpha = np.exp(m - safe(m_new))
        p = np.exp(s - safe(shift)[..., None])
        den = den * alpha + p.sum(-1)
        acc = acc * alpha[..., None] + rounded(p, q.dtype) @ rows(vf, a, b)
        m = m_new
    return store(m, den, acc, q.dtype)


def eager_softmax_over_queries(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The softmax normalises over the queries of a key; a wrong axis in an einsum port."""
    require(q.shape[2] == k.shape[2] and not causal, "self-attention without mask")
    qf, kf, vf = load(q, k, v)
    s = np.einsum("bhid,bhjd->bhij", qf, kf) * F32(scale)
    m = s.max(-2)
    p = np.exp(s - m[..., None, :])
    den = p.sum(-2)
    out = np.einsum("bhij,bhjd->bhid", rounded(p / den[..., None, :], q.dtype), vf)
    return out.astype(q.dtype), m + np.log(den)


def flash_alpha_of_first_row(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """All rows of a query tile get the correction of its first row; after flash-attn#2229, a slot of row_max."""
    qf, kf, vf = load(q, k, v)
    mask = visible(q.shape[2], k.shape[2], causal)
    out, lse = outputs(q, v)
    for lo, hi in tiles(q.shape[2], 16):
        m, den, acc = fresh(rows(qf, lo, hi), vf)
        for a, b in tiles(k.shape[2], 16):
            s = hide(scores(rows(qf, lo, hi), rows(kf, a, b), scale), mask[lo:hi, a:b])
            m_new = np.maximum(m, s.max(-1))
            alpha = np.exp(m - safe(m_new))
            p = np.exp(s - safe(m_new)[..., None])
            den = den * alpha + p.sum(-1)
            acc = acc * alpha[..., :1, None] + rounded(p, q.dtype) @ rows(vf, a, b)
            m = m_new
        out[:, :, lo:hi], lse[:, :, lo:hi] = store(m, den, acc, q.dtype)
    return out, lse
