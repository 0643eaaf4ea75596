"""Kernels whose out is right and whose lse is not."""

import numpy as np

from campaigns.reports.pieces import (
    F32,
    LOG2E,
    Array,
    Result,
    divide,
    fresh,
    hide,
    load,
    lse_of,
    merge_lse,
    outputs,
    pad,
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


def lse_in_base_two(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """lse is stored in units of log2; pytorch#181645."""
    qf, kf, vf = load(q, k, v)
    s = hide(scores(qf, kf, scale * LOG2E), visible(q.shape[2], k.shape[2], causal))
    m = s.max(-1)
    p = np.exp2(s - safe(m)[..., None])
    den = p.sum(-1)
    out = divide(rounded(p, q.dtype) @ vf, den).astype(q.dtype)
    return out, np.where(den > 0, m + np.log2(np.where(den > 0, den, F32(1))), F32(-np.inf))


def lse_never_written(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The store of lse is missing, the zeroed buffer is returned; flashinfer#3838."""
    qf, kf, vf = load(q, k, v)
    out, lse = outputs(q, v)
    mask = visible(q.shape[2], k.shape[2], causal)
    for lo, hi in tiles(q.shape[2], 64):
        s = hide(scores(rows(qf, lo, hi), kf, scale), mask[lo:hi])
        out[:, :, lo:hi], _ = store(*softmax_pv(s, vf, q.dtype), q.dtype)
    return out, lse


def lse_of_last_split(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Each split writes the final lse, so that of the last one stays; flashinfer#58."""
    sk = k.shape[2]
    po, plse = partials_lse(q, k, v, scale, visible(q.shape[2], sk, causal), tiles(sk, 40))
    out, lse = merge_lse(po, plse, q.dtype)
    for part in plse:
        lse = part
    return out, lse


def lse_query_major_of_mqa(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """lse of folded MQA rows is stored at query * heads + head, read head-major; xformers 41646dbb."""
    require(k.shape[1] == 1, "MQA only")
    qf, kf, vf = load(q, k, v)
    s = hide(scores(qf, kf, scale), visible(q.shape[2], k.shape[2], causal))
    out, lse = store(*softmax_pv(s, vf, q.dtype), q.dtype)
    return out, np.ascontiguousarray(lse.swapaxes(1, 2)).reshape(lse.shape)


def lse_padding_over_next_head(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Whole tiles of lse are written at a pitch of seqlen_q, over the head behind; flash-attn d11341fd."""
    require(not causal, "full attention only")
    qf, kf, vf = load(q, k, v)
    batch, heads, sq, _ = q.shape
    padded = -(-sq // 32) * 32
    m, den, acc = softmax_pv(scores(pad(qf, padded), kf, scale), vf, q.dtype)
    tile_lse = lse_of(m, den)
    flat = np.zeros((batch, heads * sq + padded), F32)
    for h in reversed(range(heads)):
        flat[:, h * sq : h * sq + padded] = tile_lse[:, h]
    return divide(acc, den)[:, :, :sq].astype(q.dtype), flat[:, : heads * sq].reshape(batch, heads, sq)


def lse_without_smoothed_mean(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """K is smoothed by its mean, lse lacks scale * q @ mean; SageAttention 9cd0915."""
    qf, kf, vf = load(q, k, v)
    kf = kf - kf.mean(-2, keepdims=True)
    mask = visible(q.shape[2], k.shape[2], causal)
    state = fresh(qf, vf)
    for a, b in tiles(k.shape[2], 64):
        state = step(state, hide(scores(qf, rows(kf, a, b), scale), mask[:, a:b]), rows(vf, a, b), q.dtype)
    return store(*state, q.dtype)


def lse_empty_rows_finite(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The max starts at -5e4, rows without a key keep it as their lse; flashinfer#4267."""
    qf, kf, vf = load(q, k, v)
    s = hide(scores(qf, kf, scale), visible(q.shape[2], k.shape[2], causal))
    m = np.maximum(s.max(-1), F32(-5e4))
    p = np.exp(s - m[..., None])
    den = p.sum(-1)
    lse = m + np.log(np.where(den > 0, den, F32(1)))
    return divide(rounded(p, q.dtype) @ vf, den).astype(q.dtype), lse


def lse_keeps_fp8_offset(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """P carries a factor 2 ** 8 for a narrow format, which lse keeps; SageAttention 3ec1f13."""
    qf, kf, vf = load(q, k, v)
    mask = visible(q.shape[2], k.shape[2], causal)
    s = hide(scores(qf, kf, scale * LOG2E), mask)
    m = s.max(-1)
    p = np.exp2(s - safe(m)[..., None] + F32(8))
    den = p.sum(-1)
    out = divide(rounded(p, q.dtype) @ vf, den).astype(q.dtype)
    return out, lse_of(m / F32(LOG2E), den)
