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


# ---- softcap skipped
def softcap_skipped(q, k, v, *, scale, causal, softcap=None):
    return _right(q, k, v, scale, causal)


def softcap_as_clip(q, k, v, *, scale, causal, softcap=None):
    """clip(s, -cap, cap) for cap * tanh(s / cap)."""
    a, b, c = _up(q, k, v)
    s = _scores(a, b, scale)
    if softcap:
        s = np.clip(s, -F(softcap), F(softcap))
    return (_soft(s, _mask(q.shape[2], k.shape[2], causal)) @ c).astype(q.dtype)


def softcap_skipped_when_small(q, k, v, *, scale, causal, softcap=None):
    """Skipped where no score reaches a third of the cap."""
    a, b, _ = _up(q, k, v)
    if softcap and np.abs(_scores(a, b, scale)).max() < softcap / 3:
        softcap = None
    return _right(q, k, v, scale, causal, softcap=softcap)


# ---- window skipped or off by one
def window_skipped(q, k, v, *, scale, causal, window_size=None):
    return _right(q, k, v, scale, causal)


def window_left_off_by_one(q, k, v, *, scale, causal, window_size=None):
    window = window_size
    if window is not None and window[0] > 0:
        window = (window[0] - 1, window[1])
    return _right(q, k, v, scale, causal, window=window)


def window_rounded_to_tiles(q, k, v, *, scale, causal, window_size=None):
    """Whole tiles of 16 keys that a window touches are read whole."""
    window = window_size
    a, b, c = _up(q, k, v)
    sq, sk = q.shape[2], k.shape[2]
    ok = _mask(sq, sk, causal, window)
    pad = -sk % 16
    t = np.pad(ok, ((0, 0), (0, pad))).reshape(sq, -1, 16).any(-1)
    ok = np.repeat(t, 16, axis=-1)[:, :sk] & _mask(sq, sk, causal)
    return (_soft(_scores(a, b, scale), ok) @ c).astype(q.dtype)


def window_top_left(q, k, v, *, scale, causal, window_size=None):
    """The window is counted from key i, not from i + seqlen_k - seqlen_q."""
    window = window_size
    a, b, c = _up(q, k, v)
    sq, sk = q.shape[2], k.shape[2]
    ok = _mask(sq, sk, causal)
    if window is not None:
        d = np.arange(sk)[None] - np.arange(sq)[:, None]
        ok &= (d >= -window[0] if window[0] >= 0 else True) & (d <= window[1] if window[1] >= 0 else True)
    return (_soft(_scores(a, b, scale), ok) @ c).astype(q.dtype)


# ---- mask by adding a finite number
def mask_add_1e4(q, k, v, *, scale, causal):
    a, b, c = _up(q, k, v)
    ok = _mask(q.shape[2], k.shape[2], causal)
    p = _soft(_scores(a, b, scale) + np.where(ok, F(0), F(-1e4)), True)
    return (np.where(ok.any(-1)[:, None], p, F(0)) @ c).astype(q.dtype)


def mask_set_minus_30(q, k, v, *, scale, causal):
    """Masked scores are set to -30: enough while the row's own scores are above."""
    a, b, c = _up(q, k, v)
    ok = _mask(q.shape[2], k.shape[2], causal)
    p = _soft(np.where(ok, _scores(a, b, scale), F(-30)), True)
    return (np.where(ok.any(-1)[:, None], p, F(0)) @ c).astype(q.dtype)


def mask_after_max(q, k, v, *, scale, causal):
    """The row's maximum is taken over masked keys too: a row far below it underflows to 0."""
    a, b, c = _up(q, k, v)
    s = _scores(a, b, scale)
    p = np.exp(s - s.max(-1, keepdims=True)) * _mask(q.shape[2], k.shape[2], causal)
    return (_norm(p) @ c).astype(q.dtype)


# ---- hard-coded shape
def hard_128_64(q, k, v, *, scale, causal):
    """Grid and strides for seqlen 128, head_dim 64: what lies beyond is not touched."""
    d = min(64, q.shape[3])
    out = np.zeros(q.shape, q.dtype)
    out[:, :, :128, :d] = _right(q[..., :d], k[:, :, :128, :d], v[:, :, :128, :d], scale, causal)[:, :, :128]
    return out


def hard_64_dims_in_scores(q, k, v, *, scale, causal):
    """The K loop of q @ k is unrolled to 64: head_dim 128 loses half of each score."""
    return _right(q[..., :64], k[..., :64], v, scale, causal)


def hard_grid_of_8(q, k, v, *, scale, causal):
    """A grid of at most 8 (batch, head) pairs; later pairs stay 0."""
    out = _right(q, k, v, scale, causal)
    out.reshape(-1, *q.shape[2:])[8:] = 0
    return out


# ---- only the last batch or head
def last_batch_copies(q, k, v, *, scale, causal):
    out = _right(q, k, v, scale, causal)
    if q.shape[0] >= 3:
        out[-1] = out[-2]
    return out


def last_head_noncausal(q, k, v, *, scale, causal):
    """From 5 heads on, the last head ignores the causal mask for its last-but-one row."""
    out = _right(q, k, v, scale, causal)
    if q.shape[1] >= 5 and q.shape[2] >= 2:
        out[:, -1, -2] = _right(q[:, -1:], k[:, -1:], v[:, -1:], scale, False)[:, 0, -2]
    return out


def last_element_zero(q, k, v, *, scale, causal):
    out = _right(q, k, v, scale, causal)
    out[-1, -1, -1, -1] = 0
    return out


# ---- seqlen not a multiple of 64
def ragged_padding_counted(q, k, v, *, scale, causal):
    """Zero keys pad to a multiple of 64 and take part in full attention with score 0."""
    pad = -k.shape[2] % 64
    if causal or not pad:
        return _right(q, k, v, scale, causal)
    k, v = (np.pad(x.astype(F), ((0, 0), (0, 0), (0, pad), (0, 0))) for x in (k, v))
    return _right(q, k, v, scale, causal)


def ragged_rows_clamped(q, k, v, *, scale, causal):
    """Query rows past the last full tile of 64 are read at clamped addresses."""
    sq = q.shape[2]
    out = _right(q, k, v, scale, causal)
    if sq > 64 and sq % 64:
        out[:, :, sq // 64 * 64 :] = out[:, :, sq // 64 * 64 - 1][:, :, None]
    return out


# ---- seqlen_q != seqlen_k
def unequal_top_left(q, k, v, *, scale, causal):
    a, b, c = _up(q, k, v)
    ok = np.tri(q.shape[2], k.shape[2], dtype=bool) if causal else True
    return (_soft(_scores(a, b, scale), ok) @ c).astype(q.dtype)


def unequal_decode_drops_last(q, k, v, *, scale, causal):
    """One query on more than 32 keys: the newest key is not in the cache yet."""
    if q.shape[2] == 1 and k.shape[2] > 32:
        return _right(q, k[:, :, :-1], v[:, :, :-1], scale, False)
    return _right(q, k, v, scale, causal)


def unequal_more_queries(q, k, v, *, scale, causal):
    """seqlen_q > seqlen_k: rows that see nothing give the first value instead of 0."""
    out = _right(q, k, v, scale, causal)
    n = q.shape[2] - k.shape[2]
    if causal and n > 0:
        out[:, :, :n] = np.repeat(v, q.shape[1] // v.shape[1], axis=1)[:, :, :1]
    return out


# ---- causal off by one on ragged lengths
def causal_one_more_ragged(q, k, v, *, scale, causal):
    if not causal or k.shape[2] % 32 == 0:
        return _right(q, k, v, scale, causal)
    return _right(q, k, v, scale, False, window=(None, 1))


def causal_diagonal_lost_odd(q, k, v, *, scale, causal):
    """seqlen_q odd and unequal to seqlen_k: j < i in place of j <= i in the last row."""
    out = _right(q, k, v, scale, causal)
    sq, sk = q.shape[2], k.shape[2]
    if causal and sq % 2 and sq != sk and sk > 1:
        out[:, :, -1:] = _right(q[:, :, -1:], k[:, :, :-1], v[:, :, :-1], scale, False)
    return out


# ---- scale ignored
def scale_ignored(q, k, v, *, scale, causal):
    return _right(q, k, v, q.shape[3] ** -0.5, causal)


def scale_power_of_two(q, k, v, *, scale, causal):
    """Rounded to a power of two, to fold into exponents: right at head_dim 64."""
    return _right(q, k, v, 2.0 ** np.round(np.log2(abs(scale))) * np.sign(scale), causal)


# ---- grouped heads mapped wrongly
def gqa_modulo(q, k, v, *, scale, causal):
    m = np.arange(q.shape[1]) % k.shape[1]
    return _right(q, k[:, m], v[:, m], scale, causal)


def gqa_first_kv_head(q, k, v, *, scale, causal):
    return _right(q, k[:, :1], v[:, :1], scale, causal)


def gqa_v_of_next_group(q, k, v, *, scale, causal):
    """K of the right group; V of the right group but for the last head of each group."""
    h, g = q.shape[1], q.shape[1] // k.shape[1]
    mk = np.arange(h) // g
    mv = (np.arange(h) + (1 if g > 1 else 0)) // g % k.shape[1]
    return _right(q, k[:, mk], v[:, mv], scale, causal)
