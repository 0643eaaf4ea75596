import numpy as np

F = np.float32


def _mask(sq, sk, causal, window=None):
    i = np.arange(sq)[:, None] + (sk - sq)
    j = np.arange(sk)[None, :]
    ok = np.ones((sq, sk), bool)
    if causal:
        ok &= j <= i
    if window is not None:
        left, right = window
        if left is not None and left >= 0:
            ok &= j >= i - left
        if right is not None and right >= 0:
            ok &= j <= i + right
    return ok


def _up(q, k, v):
    g = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x.astype(F), g, axis=1) for x in (k, v))
    return q.astype(F), k, v


def _scores(q, k, scale):
    return (q @ np.swapaxes(k, -1, -2)) * F(scale)


def _soft(s, ok):
    s = np.where(ok, s, F(-np.inf))
    m = s.max(-1, keepdims=True)
    p = np.exp(s - np.where(np.isfinite(m), m, F(0)))
    n = p.sum(-1, keepdims=True)
    return p / np.where(n == 0, F(1), n)


def _norm(p):
    n = p.sum(-1, keepdims=True)
    return p / np.where(n == 0, F(1), n)


def _right(q, k, v, scale, causal, softcap=None, window=None):
    a, b, c = _up(q, k, v)
    s = _scores(a, b, scale)
    if softcap:
        s = F(softcap) * np.tanh(s / F(softcap))
    return (_soft(s, _mask(s.shape[-2], s.shape[-1], causal, window)) @ c).astype(q.dtype)


# ---- constant output
def const_zero(q, k, v, *, scale, causal):
    return np.zeros(q.shape, q.dtype)


def const_pattern(q, k, v, *, scale, causal):
    """Noise of the spread that softmax(normal) @ normal has."""
    sq, sk = q.shape[2], k.shape[2]
    seen = np.maximum(_mask(sq, sk, causal).sum(-1), 1)[:, None]
    noise = np.random.default_rng(1).standard_normal(q.shape)
    return (noise * np.sqrt(2.7 / (seen + 1.7))).astype(q.dtype)


# ---- mean of V
def mean_v(q, k, v, *, scale, causal):
    _, _, c = _up(q, k, v)
    ok = _mask(q.shape[2], k.shape[2], causal).astype(F)
    return (_norm(ok) @ c).astype(q.dtype)


def mean_v_if_scores_small(q, k, v, *, scale, causal):
    """Cauchy-Schwarz says |score| < 1: call softmax uniform."""
    a, b = q.astype(F), k.astype(F)
    bound = np.sqrt((a * a).sum(-1).max() * (b * b).sum(-1).max()) * abs(scale)
    if bound < 1:
        return mean_v(q, k, v, scale=scale, causal=causal)
    return _right(q, k, v, scale, causal)


# ---- q unread
def q_unread_k_instead(q, k, v, *, scale, causal):
    a, b, c = _up(q, k, v)
    sq, sk = q.shape[2], k.shape[2]
    a = b[:, :, np.arange(sk - sq, sk) % sk]
    return (_soft(_scores(a, b, scale), _mask(sq, sk, causal)) @ c).astype(q.dtype)


def q_unread_beyond_first_row(q, k, v, *, scale, causal):
    """One query row of each tile of 16 serves the whole tile."""
    rows = np.arange(q.shape[2]) // 16 * 16
    return _right(q[:, :, rows], k, v, scale, causal)


# ---- k unread
def k_unread_v_instead(q, k, v, *, scale, causal):
    return _right(q, v, v, scale, causal)


def k_unread_beyond_tile(q, k, v, *, scale, causal):
    """Reads the keys of the first tile only and wraps around."""
    sk = k.shape[2]
    return _right(q, k[:, :, np.arange(sk) % 64], v, scale, causal)


# ---- first half of keys
def first_half_keys(q, k, v, *, scale, causal):
    a, b, c = _up(q, k, v)
    sq, sk = q.shape[2], k.shape[2]
    ok = _mask(sq, sk, causal) & (np.arange(sk) < (sk + 1) // 2)
    return (_soft(_scores(a, b, scale), ok) @ c).astype(q.dtype)


def first_half_keys_when_long(q, k, v, *, scale, causal):
    """Full attention, beyond 200 keys: the first 128 only."""
    if causal or k.shape[2] <= 200:
        return _right(q, k, v, scale, causal)
    return _right(q, k[:, :, :128], v[:, :, :128], scale, causal)


# ---- last block of keys
def last_block_only(q, k, v, *, scale, causal):
    """The accumulator is overwritten by each tile: the last tile a row sees survives."""
    a, b, c = _up(q, k, v)
    sq, sk = q.shape[2], k.shape[2]
    ok = _mask(sq, sk, causal)
    last = np.where(ok.any(-1), sk - 1 - ok[:, ::-1].argmax(-1), 0) // 64 * 64
    ok &= np.arange(sk) >= last[:, None]
    return (_soft(_scores(a, b, scale), ok) @ c).astype(q.dtype)


def last_block_dropped(q, k, v, *, scale, causal):
    """Tiles = seqlen // 64: the ragged last block is never read."""
    a, b, c = _up(q, k, v)
    sq, sk = q.shape[2], k.shape[2]
    ok = _mask(sq, sk, causal)
    if sk > 64:
        ok &= np.arange(sk) < sk // 64 * 64
    return (_soft(_scores(a, b, scale), ok) @ c).astype(q.dtype)


# ---- low-rank scores
def low_rank_half_dims(q, k, v, *, scale, causal):
    d = q.shape[3] // 2
    return _right(q[..., :d] * q.dtype.type(2), k[..., :d], v, scale, causal)[..., : q.shape[3]]


def low_rank_svd(q, k, v, *, scale, causal):
    """Keys through their 24 largest singular directions."""
    b = k.astype(F)
    if k.shape[2] > 24:
        u, s, w = np.linalg.svd(b, full_matrices=False)
        b = (u[..., :24] * s[..., None, :24]) @ w[..., :24, :]
    return _right(q, b, v, scale, causal)


# ---- subsampled keys
def subsample_every_second(q, k, v, *, scale, causal):
    a, b, c = _up(q, k, v)
    sq, sk = q.shape[2], k.shape[2]
    ok = _mask(sq, sk, causal) & ((np.arange(sk)[::-1] % 2 == 0) | (np.arange(sk) == 0))
    return (_soft(_scores(a, b, scale), ok) @ c).astype(q.dtype)


def subsample_drop_tenth(q, k, v, *, scale, causal):
    """From 100 keys on, a fixed tenth is dropped."""
    sk = k.shape[2]
    if sk < 100:
        return _right(q, k, v, scale, causal)
    a, b, c = _up(q, k, v)
    ok = _mask(q.shape[2], sk, causal) & (np.arange(sk) % 10 != 7)
    return (_soft(_scores(a, b, scale), ok) @ c).astype(q.dtype)


# ---- truncated history
def history_64(q, k, v, *, scale, causal):
    return _right(q, k, v, scale, causal, window=(63, None)) if causal else _right(q, k, v, scale, causal)


def history_with_sink(q, k, v, *, scale, causal):
    """StreamingLLM: the first 4 keys and the last 160."""
    a, b, c = _up(q, k, v)
    sq, sk = q.shape[2], k.shape[2]
    ok = _mask(sq, sk, causal)
    if causal:
        ok &= _mask(sq, sk, True, (159, None)) | (np.arange(sk) < 4)
    return (_soft(_scores(a, b, scale), ok) @ c).astype(q.dtype)


# ---- rows sampled, the rest interpolated
def rows_interpolated(q, k, v, *, scale, causal):
    sq = q.shape[2]
    out = _right(q, k, v, scale, causal)
    if sq >= 3:
        o = out.astype(F)
        mid = np.arange(1, sq - 1, 2)
        out[:, :, mid] = ((o[:, :, mid - 1] + o[:, :, mid + 1]) / 2).astype(q.dtype)
    return out


def rows_nearest_deep(q, k, v, *, scale, causal):
    """Rows from 128 on: one in four is computed and copied to the next three."""
    out = _right(q, k, v, scale, causal)
    if q.shape[2] > 128:
        r = np.arange(128, q.shape[2])
        out[:, :, r] = out[:, :, r // 4 * 4]
    return out


# ---- single head computed, then broadcast
def head0_broadcast(q, k, v, *, scale, causal):
    out = _right(q[:, :1], k[:, :1], v[:, :1], scale, causal)
    return np.broadcast_to(out, q.shape).copy()


def batch0_broadcast(q, k, v, *, scale, causal):
    out = _right(q[:1], k[:1], v[:1], scale, causal)
    return np.broadcast_to(out, q.shape).copy()


# ---- top-k attention
def top_k_32(q, k, v, *, scale, causal):
    a, b, c = _up(q, k, v)
    s = np.where(_mask(q.shape[2], k.shape[2], causal), _scores(a, b, scale), F(-np.inf))
    if s.shape[-1] > 32:
        s = np.where(s >= np.partition(s, -32, axis=-1)[..., -32:-31], s, F(-np.inf))
    return (_soft(s, True) @ c).astype(q.dtype)


def top_p_99(q, k, v, *, scale, causal):
    """Keeps the largest probabilities that make up 99 % of a row."""
    a, b, c = _up(q, k, v)
    p = _soft(_scores(a, b, scale), _mask(q.shape[2], k.shape[2], causal))
    o = np.argsort(-p, axis=-1, kind="stable")
    kept = np.take_along_axis(p, o, -1)
    kept = np.where(np.cumsum(kept, -1) - kept < 0.99, kept, F(0))
    np.put_along_axis(p, o, kept, -1)
    return (_norm(p) @ c).astype(q.dtype)


# ---- linear attention in place of softmax
def linear_elu(q, k, v, *, scale, causal):
    a, b, c = _up(q, k, v)
    phi = lambda x: np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))  # noqa: E731
    p = phi(a) @ np.swapaxes(phi(b), -1, -2) * _mask(q.shape[2], k.shape[2], causal)
    return (_norm(p) @ c).astype(q.dtype)


def linear_performer(q, k, v, *, scale, causal):
    """Positive random features; more features than keys."""
    a, b, c = _up(q, k, v)
    w = np.random.default_rng(7).standard_normal((512, q.shape[3])).astype(F)
    r = F(np.sqrt(abs(scale)))
    fa = (a * r) @ w.T - (a * a).sum(-1, keepdims=True) * (r * r / 2)
    fb = (b * r) @ w.T - (b * b).sum(-1, keepdims=True) * (r * r / 2)
    p = np.exp(fa - fa.max(-1, keepdims=True)) @ np.swapaxes(np.exp(fb - fb.max()), -1, -2)
    return (_norm(p * _mask(q.shape[2], k.shape[2], causal)) @ c).astype(q.dtype)
