"""Kernels with two faults: one of the mask or of a length, one of another stage."""

import numpy as np

from campaigns.reports.pieces import (
    F32,
    LN2,
    LOG2E,
    NO_WINDOW,
    Array,
    Result,
    divide,
    fresh,
    hide,
    load,
    log_or_neg_inf,
    lse_of,
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
    weights,
)


def next_key_and_lse_base_two(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Causal with one key too many, and lse in base 2; zml#763, pytorch#181645."""
    qf, kf, vf = load(q, k, v)
    sq, sk = q.shape[2], k.shape[2]
    state = fresh(qf, vf)
    for a, b in tiles(sk, 64):
        s = scores(qf, rows(kf, a, b), scale)
        if causal:
            s = hide(s, np.arange(a, b) <= np.arange(1, sq + 1)[:, None] + sk - sq)
        state = step(state, s, rows(vf, a, b), q.dtype)
    out, lse = store(*state, q.dtype)
    return out, lse * F32(LOG2E)


def top_left_and_sum_rescaled_twice(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Causal aligned top-left, and the sum is corrected twice in a tile; flash-attn#282, an exp2 kernel."""
    qf, kf, vf = load(q, k, v)
    mask = np.tri(q.shape[2], k.shape[2], dtype=bool) | (not causal)
    m, den, acc = fresh(qf, vf)
    for a, b in tiles(k.shape[2], 16):
        s = hide(scores(qf, rows(kf, a, b), scale * LOG2E), mask[:, a:b])
        m_new = np.maximum(m, s.max(-1))
        alpha = np.exp2(m - safe(m_new))
        den *= alpha
        p = np.exp2(s - safe(m_new)[..., None])
        den = den * alpha + p.sum(-1)
        acc = acc * alpha[..., None] + rounded(p, q.dtype) @ rows(vf, a, b)
        m = m_new
    return divide(acc, den).astype(q.dtype), lse_of(m * F32(LN2), den)


def unmasked_p_and_dim_tail(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The mask only enters the max, and the dot misses the last dims; aiter#3551, flash-attn#2745."""
    qf, kf, vf = load(q, k, v)
    d = q.shape[3] // 16 * 16
    s = scores(qf[..., :d], kf[..., :d], scale)
    m = hide(s, visible(q.shape[2], k.shape[2], causal)).max(-1)
    p = np.exp(s - safe(m)[..., None])
    den = p.sum(-1)
    return divide(rounded(p, q.dtype) @ vf, den).astype(q.dtype), lse_of(m, den)


def window_edge_and_old_k_tile(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, window_size: tuple[int, int] = NO_WINDOW
) -> Result:
    """The last key of the window is lost, and the last K tile is two tiles old; transformers#39408, csarofeen#2463."""
    require(k.shape[2] % 32 == 0 and k.shape[2] >= 96, "seqlen_k a multiple of 32, at least 96")
    qf, kf, vf = load(q, k, v)
    left = window_size[0] - 1 if window_size[0] > 0 else window_size[0]
    n = k.shape[2]
    mask = visible(q.shape[2], n, causal, (left, window_size[1]))
    state = fresh(qf, vf)
    for a, b in tiles(n, 32):
        at = a - 64 if b == n else a
        s = hide(scores(qf, rows(kf, at, at + 32), scale), mask[:, a:b])
        state = step(state, s, rows(vf, a, b), q.dtype)
    return store(*state, q.dtype)


def strict_causal_and_mean_of_partials(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The diagonal is masked, and merged weights are divided by the count of splits; zml#763, a combine."""
    require(k.shape[2] % 4 == 0, "4 equal splits")
    sq, sk = q.shape[2], k.shape[2]
    mask = visible(sq, sk, False)
    if causal:
        mask = np.arange(sk) < np.arange(sq)[:, None] + sk - sq
    po, plse = partials_lse(q, k, v, scale, mask, tiles(sk, sk // 4))
    m, w = weights(plse)
    acc = (w[..., None] * po).sum(0)
    return (acc / F32(4)).astype(q.dtype), lse_of(m, w.sum(0))


def right_window_and_alibi_sign(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool,
    alibi_slopes: Array,
    window_size: tuple[int, int] = NO_WINDOW,
) -> Result:
    """A right window of -1 is taken as a number, and ALiBi is added with a plus; ports of both."""
    qf, kf, vf = load(q, k, v)
    sq, sk = q.shape[2], k.shape[2]
    away = np.arange(sq)[:, None] + sk - sq - np.arange(sk)
    mask = visible(sq, sk, causal, (window_size[0], -1))
    if window_size != NO_WINDOW:
        mask &= -away <= window_size[1]
    s = scores(qf, kf, scale) + alibi_slopes.astype(F32)[:, None, None] * np.abs(away).astype(F32)
    return store(*softmax_pv(hide(s, mask), vf, q.dtype), q.dtype)


def length_inclusive_and_no_scale(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, seqlens_k: Array
) -> Result:
    """A key too many per sequence, and no scale in decode; vllm#641, flashinfer#1023."""
    require(q.shape[2] <= 4 and not causal, "at most 4 queries, no mask")
    qf, kf, vf = load(q, k, v)
    mask = (np.arange(k.shape[2]) <= np.asarray(seqlens_k)[:, None])[:, None, None, :]
    vf = np.where(mask.swapaxes(-1, -2), vf, F32(0))
    s = hide(np.einsum("bhid,bhjd->bhij", qf, kf), mask)
    return store(*softmax_pv(s, vf, q.dtype), q.dtype)


def lost_remainder_and_maxima_weights(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Keys behind 3 splits of floor(n / 3) are lost, and normalised partials are weighted by exp(max)."""
    sk = k.shape[2]
    require(sk >= 3, "at least 3 keys")
    size = sk // 3
    bounds = [(t * size, t * size + size) for t in range(3)]
    pm, pl, po = partials(q, k, v, scale, visible(q.shape[2], sk, causal), bounds)
    m, w = weights(pm)
    out = divide((w[..., None] * divide(po, pl)).sum(0), w.sum(0))
    return out.astype(q.dtype), safe(m) + log_or_neg_inf((w * pl).sum(0))
