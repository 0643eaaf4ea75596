"""Correct kernels in the styles of the faulty ones."""

import numpy as np

from campaigns.reports.pieces import (
    F32,
    LN2,
    LOG2E,
    Array,
    Result,
    cdiv,
    divide,
    fresh,
    hide,
    load,
    lse_of,
    merge,
    merge_lse,
    outputs,
    partials,
    partials_lse,
    require,
    rounded,
    rows,
    safe,
    scores,
    softmax_pv,
    step,
    store,
    tiles,
    visible,
)


def right_eager(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Whole score matrix, unnormalised P."""
    qf, kf, vf = load(q, k, v)
    s = hide(scores(qf, kf, scale), visible(q.shape[2], k.shape[2], causal))
    return store(*softmax_pv(s, vf, q.dtype), q.dtype)


def right_eager_normalised_p(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Whole score matrix, P normalised before its cast."""
    qf, kf, vf = load(q, k, v)
    s = np.einsum("bhid,bhjd->bhij", qf, kf) * F32(scale)
    s = hide(s, visible(q.shape[2], k.shape[2], causal))
    m = s.max(-1)
    p = np.exp(s - safe(m)[..., None])
    den = p.sum(-1)
    p = rounded(divide(p, den), q.dtype)
    return np.einsum("bhij,bhjd->bhid", p, vf).astype(q.dtype), lse_of(m, den)


def right_flash_64(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """FlashAttention-2 with key tiles of 64."""
    qf, kf, vf = load(q, k, v)
    mask = visible(q.shape[2], k.shape[2], causal)
    state = fresh(qf, vf)
    for a, b in tiles(k.shape[2], 64):
        state = step(state, hide(scores(qf, rows(kf, a, b), scale), mask[:, a:b]), rows(vf, a, b), q.dtype)
    return store(*state, q.dtype)


def right_flash_32_16_skips_tiles(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """FlashAttention-2 with tiles of 32 x 16 and the causal bound of the key loop."""
    qf, kf, vf = load(q, k, v)
    sq, sk = q.shape[2], k.shape[2]
    mask = visible(sq, sk, causal)
    out, lse = outputs(q, v)
    for lo, hi in tiles(sq, 32):
        end = min(sk, max(0, hi + sk - sq)) if causal else sk
        state = fresh(rows(qf, lo, hi), vf)
        for a, b in tiles(end, 16):
            s = hide(scores(rows(qf, lo, hi), rows(kf, a, b), scale), mask[lo:hi, a:b])
            state = step(state, s, rows(vf, a, b), q.dtype)
        out[:, :, lo:hi], lse[:, :, lo:hi] = store(*state, q.dtype)
    return out, lse


def right_flash_backwards(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Key tiles from the last to the first."""
    qf, kf, vf = load(q, k, v)
    mask = visible(q.shape[2], k.shape[2], causal)
    state = fresh(qf, vf)
    for a, b in reversed(tiles(k.shape[2], 16)):
        state = step(state, hide(scores(qf, rows(kf, a, b), scale), mask[:, a:b]), rows(vf, a, b), q.dtype)
    return store(*state, q.dtype)


def right_exp2_flash(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """exp2, log2(e) folded into the scale, online."""
    qf, kf, vf = load(q, k, v)
    mask = visible(q.shape[2], k.shape[2], causal)
    m, den, acc = fresh(qf, vf)
    for a, b in tiles(k.shape[2], 32):
        s = hide(scores(qf, rows(kf, a, b), scale * LOG2E), mask[:, a:b])
        m_new = np.maximum(m, s.max(-1))
        alpha, p = np.exp2(m - safe(m_new)), np.exp2(s - safe(m_new)[..., None])
        den, m = den * alpha + p.sum(-1), m_new
        acc = acc * alpha[..., None] + rounded(p, q.dtype) @ rows(vf, a, b)
    return divide(acc, den).astype(q.dtype), lse_of(m * F32(LN2), den)


def right_split_unnormalised(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Split-K with unnormalised partials."""
    sk = k.shape[2]
    return store(*merge(*partials(q, k, v, scale, visible(q.shape[2], sk, causal), tiles(sk, 40))), q.dtype)


def right_split_lse(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """FlashDecoding with normalised partials and their lse."""
    sk = k.shape[2]
    po, plse = partials_lse(q, k, v, scale, visible(q.shape[2], sk, causal), tiles(sk, cdiv(sk, 4)))
    return merge_lse(po, plse, q.dtype)


def right_split_with_empty_split(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Split-K whose last splits may be empty: max -inf, sum 0, weight 0."""
    sk = k.shape[2]
    size = cdiv(cdiv(sk, 8), 16) * 16
    pm, pl, po = partials(q, k, v, scale, visible(q.shape[2], sk, causal), tiles(sk, size))
    empty = 8 - len(pm)
    pm = np.concatenate([pm, np.full((empty, *pm.shape[1:]), -np.inf, F32)])
    pl = np.concatenate([pl, np.zeros((empty, *pl.shape[1:]), F32)])
    po = np.concatenate([po, np.zeros((empty, *po.shape[1:]), F32)])
    return store(*merge(pm, pl, po), q.dtype)


def right_ring_sigmoid(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Ring attention: a block is mixed in by sigmoid(block lse - lse)."""
    require(not causal, "full attention only")
    sk = k.shape[2]
    po, plse = partials_lse(q, k, v, scale, visible(q.shape[2], sk, causal), tiles(sk, cdiv(sk, 4)))
    out, lse = po[0], plse[0]
    for block, block_lse in zip(po[1:], plse[1:], strict=True):
        new = 1 / (1 + np.exp(lse - block_lse))
        out = out - new[..., None] * (out - block)
        lse = np.logaddexp(lse, block_lse)
    return out.astype(q.dtype), lse.astype(F32)


def right_two_pass(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """First pass: a max, a sum and P per tile; second pass: weights to the max of all tiles."""
    qf, kf, vf = load(q, k, v)
    mask = visible(q.shape[2], k.shape[2], causal)
    blocks = tiles(k.shape[2], 32)
    s = [hide(scores(qf, rows(kf, a, b), scale), mask[:, a:b]) for a, b in blocks]
    tops = np.stack([x.max(-1) for x in s])
    p = [np.exp(x - safe(t)[..., None]) for x, t in zip(s, tops, strict=True)]
    m = tops.max(0)
    w = np.exp(tops - safe(m))
    den = sum(x.sum(-1) * y for x, y in zip(p, w, strict=True))
    acc = sum(rounded(x, q.dtype) @ rows(vf, a, b) * y[..., None] for x, y, (a, b) in zip(p, w, blocks, strict=True))
    return store(m, den, acc, q.dtype)


def right_decode(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Decode in a loop over sequences and K/V heads, the group's queries together."""
    require(q.shape[2] <= 4, "at most 4 queries")
    batch, heads, sq, d = q.shape
    kv_heads, sk = k.shape[1], k.shape[2]
    group = heads // kv_heads
    out, lse = outputs(q, v)
    mask = np.tile(visible(sq, sk, causal), (group, 1))
    for b in range(batch):
        for h in range(kv_heads):
            these = slice(h * group, h * group + group)
            s = hide(scores(q[b, these].astype(F32).reshape(-1, d), k[b, h].astype(F32), scale), mask)
            o, z = store(*softmax_pv(s, v[b, h].astype(F32), q.dtype), q.dtype)
            out[b, these], lse[b, these] = o.reshape(group, sq, -1), z.reshape(group, sq)
    return out, lse


def right_gqa_packed_rows(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """GQA with the queries of a group packed into rows, query-major."""
    (batch, heads, sq, d), kv_heads, sk = q.shape, k.shape[1], k.shape[2]
    group, dv = heads // kv_heads, v.shape[3]
    packed = q.astype(F32).reshape(batch, kv_heads, group, sq, d).swapaxes(2, 3).reshape(batch, kv_heads, -1, d)
    mask = visible(sq, sk, causal)[np.arange(sq * group) // group]
    s = hide(scores(packed, k.astype(F32), scale), mask)
    o, z = store(*softmax_pv(s, v.astype(F32), q.dtype), q.dtype)
    out = o.reshape(batch, kv_heads, sq, group, dv).swapaxes(2, 3).reshape(batch, heads, sq, dv)
    return out, z.reshape(batch, kv_heads, sq, group).swapaxes(2, 3).reshape(batch, heads, sq)
