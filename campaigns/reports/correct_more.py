"""More correct kernels: falling maxima, windows, softcap, sinks, ALiBi, lengths, tails."""

import numpy as np

from campaigns.reports.pieces import (
    F16,
    F32,
    LN2,
    LOG2E,
    NO_WINDOW,
    Array,
    Result,
    cdiv,
    divide,
    fresh,
    hide,
    load,
    log_or_neg_inf,
    lse_of,
    merge,
    outputs,
    pad,
    partials,
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


def right_max_may_fall(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The running max is that of the latest tile, so corrections exceed 1; exact but for overflow, aiter#4216."""
    require(not causal, "full attention only")
    qf, kf, vf = load(q, k, v)
    m, den, acc = fresh(qf, vf)
    for a, b in tiles(k.shape[2], 32):
        s = scores(qf, rows(kf, a, b), scale)
        m_new = s.max(-1)
        alpha, p = np.exp(m - m_new), np.exp(s - m_new[..., None])
        den, m = den * alpha + p.sum(-1), m_new
        acc = acc * alpha[..., None] + rounded(p, q.dtype) @ rows(vf, a, b)
    return store(m, den, acc, q.dtype)


def right_max_of_tile(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """One maximum for all rows of a query tile of 4."""
    require(q.shape[2] == k.shape[2], "self-attention only")
    qf, kf, vf = load(q, k, v)
    mask = visible(q.shape[2], k.shape[2], causal)
    out, lse = outputs(q, v)
    for lo, hi in tiles(q.shape[2], 4):
        s = hide(scores(rows(qf, lo, hi), kf, scale), mask[lo:hi])
        m = np.broadcast_to(s.max((-2, -1), keepdims=True)[..., 0], s.shape[:-1])
        p = np.exp(s - m[..., None])
        out[:, :, lo:hi], lse[:, :, lo:hi] = store(m, p.sum(-1), rounded(p, q.dtype) @ vf, q.dtype)
    return out, lse


def right_window_skips_tiles(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, window_size: tuple[int, int] = NO_WINDOW
) -> Result:
    """A sliding window whose masked tiles are skipped on both sides."""
    qf, kf, vf = load(q, k, v)
    mask = visible(q.shape[2], k.shape[2], causal, window_size)
    out, lse = outputs(q, v)
    for lo, hi in tiles(q.shape[2], 16):
        state = fresh(rows(qf, lo, hi), vf)
        for a, b in tiles(k.shape[2], 16):
            if mask[lo:hi, a:b].any():
                s = hide(scores(rows(qf, lo, hi), rows(kf, a, b), scale), mask[lo:hi, a:b])
                state = step(state, s, rows(vf, a, b), q.dtype)
        out[:, :, lo:hi], lse[:, :, lo:hi] = store(*state, q.dtype)
    return out, lse


def right_softcap(q: Array, k: Array, v: Array, *, scale: float, causal: bool, softcap: float) -> Result:
    """Scale, cap, mask."""
    qf, kf, vf = load(q, k, v)
    s = F32(softcap) * np.tanh(scores(qf, kf, scale) / F32(softcap))
    s = hide(s, visible(q.shape[2], k.shape[2], causal))
    return store(*softmax_pv(s, vf, q.dtype), q.dtype)


def right_sink_starts_state(q: Array, k: Array, v: Array, *, scale: float, causal: bool, sinks: Array) -> Result:
    """The sink is the first key of the online softmax, with a value of zero."""
    qf, kf, vf = load(q, k, v)
    mask = visible(q.shape[2], k.shape[2], causal)
    _, den, acc = fresh(qf, vf)
    state = np.broadcast_to(sinks.astype(F32)[None, :, None], den.shape), den + F32(1), acc
    for a, b in tiles(k.shape[2], 32):
        state = step(state, hide(scores(qf, rows(kf, a, b), scale), mask[:, a:b]), rows(vf, a, b), q.dtype)
    return store(*state, q.dtype)


def right_sink_at_reduce(q: Array, k: Array, v: Array, *, scale: float, causal: bool, sinks: Array) -> Result:
    """Split-K, the sink joins once in the reduce."""
    sk = k.shape[2]
    m, den, acc = merge(*partials(q, k, v, scale, visible(q.shape[2], sk, causal), tiles(sk, 32)))
    return store(m, den + np.exp(sinks.astype(F32)[None, :, None] - safe(m)), acc, q.dtype)


def right_alibi(q: Array, k: Array, v: Array, *, scale: float, causal: bool, alibi_slopes: Array) -> Result:
    """ALiBi in an exp2 kernel, the bias times log2(e) too."""
    qf, kf, vf = load(q, k, v)
    sq, sk = q.shape[2], k.shape[2]
    apart = np.abs(np.arange(sq)[:, None] + sk - sq - np.arange(sk)).astype(F32)
    slope = alibi_slopes.astype(F32)[:, None, None] * F32(LOG2E)
    s = hide(scores(qf, kf, scale * LOG2E) - slope * apart, visible(sq, sk, causal))
    m = s.max(-1)
    p = np.exp2(s - safe(m)[..., None])
    den = p.sum(-1)
    return divide(rounded(p, q.dtype) @ vf, den).astype(q.dtype), lse_of(m * F32(LN2), den)


def right_lengths(q: Array, k: Array, v: Array, *, scale: float, causal: bool, seqlens_k: Array) -> Result:
    """A length for each sequence, each in tiles up to its own end."""
    require(not causal, "full attention only")
    qf, kf, vf = load(q, k, v)
    out, lse = outputs(q, v)
    for n, length in enumerate(np.asarray(seqlens_k)):
        state = fresh(qf[n : n + 1], vf)
        for a, b in tiles(int(length), 16):
            s = scores(qf[n : n + 1], kf[n : n + 1, :, a:b], scale)
            state = step(state, s, vf[n : n + 1, :, a:b], q.dtype)
        out[n : n + 1], lse[n : n + 1] = store(*state, q.dtype)
    return out, lse


def right_tail_padded(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Zero-filled tails of K and V, masked."""
    qf, kf, vf = load(q, k, v)
    sk = k.shape[2]
    end = cdiv(sk, 64) * 64
    kf, vf = pad(kf, end), pad(vf, end)
    mask = np.pad(visible(q.shape[2], sk, causal), ((0, 0), (0, end - sk)))
    state = fresh(qf, vf)
    for a, b in tiles(end, 64):
        state = step(state, hide(scores(qf, rows(kf, a, b), scale), mask[:, a:b]), rows(vf, a, b), q.dtype)
    return store(*state, q.dtype)


def right_dot_in_slices(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """q scaled at load, the dot in slices of 16, V columns in tiles of 32."""
    require(q.shape[3] % 16 == 0, "head_dim a multiple of 16")
    qf, kf, vf = load(q, k, v)
    qf = qf * F32(scale)
    s = np.zeros((*q.shape[:3], k.shape[2]), F32)
    for c in range(0, q.shape[3], 16):
        s += qf[..., c : c + 16] @ kf[..., c : c + 16].swapaxes(-1, -2)
    s = hide(s, visible(q.shape[2], k.shape[2], causal))
    m = s.max(-1)
    p = np.exp(s - safe(m)[..., None])
    den = p.sum(-1)
    out, lse = outputs(q, v)
    for c in range(0, v.shape[3], 32):
        out[..., c : c + 32] = divide(rounded(p, q.dtype) @ vf[..., c : c + 32], den).astype(q.dtype)
    lse[...] = safe(m) + log_or_neg_inf(den)
    return out, lse


def right_smooth_k(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """K smoothed by its mean, lse corrected by scale * q @ mean."""
    qf, kf, vf = load(q, k, v)
    mean = kf.mean(-2, keepdims=True)
    s = hide(scores(qf, kf - mean, scale), visible(q.shape[2], k.shape[2], causal))
    out, lse = store(*softmax_pv(s, vf, q.dtype), q.dtype)
    return out, lse + scores(qf, mean, scale)[..., 0]


def right_row_loop(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """A row at a time, float16 as a CUDA-core kernel would."""
    require(q.dtype in (F16, F32), "float16 and float32 only")
    qf, kf, vf = load(q, k, v)
    sq, sk = q.shape[2], k.shape[2]
    out, lse = outputs(q, v)
    for i in range(sq):
        end = min(sk, max(0, i + 1 + sk - sq)) if causal else sk
        if end == 0:
            lse[:, :, i] = -np.inf
            continue
        s = np.einsum("bhd,bhjd->bhj", qf[:, :, i], kf[:, :, :end]) * F32(scale)
        m = s.max(-1, keepdims=True)
        p = np.exp(s - m)
        den = p.sum(-1, keepdims=True)
        out[:, :, i] = (np.einsum("bhj,bhjd->bhd", rounded(p, q.dtype), vf[:, :, :end]) / den).astype(q.dtype)
        lse[:, :, i] = (m + np.log(den))[..., 0]
    return out, lse
