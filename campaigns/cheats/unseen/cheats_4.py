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


import ml_dtypes  # noqa: E402

BF = ml_dtypes.bfloat16


def _p(q, k, scale, causal):
    g = q.shape[1] // k.shape[1]
    s = _scores(q.astype(F), np.repeat(k.astype(F), g, axis=1), scale)
    return s, _mask(q.shape[2], k.shape[2], causal)


def _below_max(s, ok):
    s = np.where(ok, s, F(-np.inf))
    m = s.max(-1, keepdims=True)
    return s - np.where(np.isfinite(m), m, F(0))


# ---- float8 or int8 inside
def fp8_q_and_k(q, k, v, *, scale, causal):
    """q and k through float8 e4m3, each head scaled to its range."""

    def cast(x):
        x = x.astype(F)
        t = np.abs(x).max((-1, -2), keepdims=True) / F(448)
        t = np.where(t == 0, F(1), t)
        return (x / t).astype(ml_dtypes.float8_e4m3fn).astype(F) * t

    return _right(cast(q), cast(k), v, scale, causal).astype(q.dtype)


def int8_q_and_k(q, k, v, *, scale, causal):
    """SageAttention without smoothing: one int8 step for each tensor."""

    def cast(x):
        x = x.astype(F)
        t = max(np.abs(x).max() / F(127), F(1e-30))
        return np.rint(x / t) * t

    return _right(cast(q), cast(k), v, scale, causal).astype(q.dtype)


def int8_probs(q, k, v, *, scale, causal):
    """Probabilities in 8 bits, steps of 1/255 of the row's largest."""
    s, ok = _p(q, k, scale, causal)
    e = np.exp(_below_max(s, ok))
    return (np.rint(e * 255) / np.maximum(e.sum(-1, keepdims=True), F(1e-30)) / 255 @ _up(q, k, v)[2]).astype(q.dtype)


# ---- V rounded to 8 bits
def v_int8(q, k, v, *, scale, causal):
    c = v.astype(F)
    t = np.abs(c).max((-1, -2), keepdims=True) / F(127)
    return _right(q, k, np.rint(c / np.where(t == 0, 1, t)) * t, scale, causal)


def v_low_byte_cut(q, k, v, *, scale, causal):
    """The upper byte of each 16-bit value, as a float8 e5m2 load does."""
    if v.dtype.itemsize != 2:
        return _right(q, k, v, scale, causal)
    c = (np.ascontiguousarray(v).view(np.uint16) & 0xFF00).view(v.dtype)
    return _right(q, k, c, scale, causal)


# ---- softmax without the maximum
def no_max_float32(q, k, v, *, scale, causal):
    s, ok = _p(q, k, scale, causal)
    with np.errstate(all="ignore"):
        e = np.exp(s) * ok
        return np.nan_to_num(_norm(e) @ _up(q, k, v)[2]).astype(q.dtype)


def no_max_but_global(q, k, v, *, scale, causal):
    """The maximum of the whole tensor: rows 104 below it come out 0."""
    s, ok = _p(q, k, scale, causal)
    return (_norm(np.exp(s - s.max()) * ok) @ _up(q, k, v)[2]).astype(q.dtype)


def no_max_first_tile(q, k, v, *, scale, causal):
    """The running maximum is never raised after the first tile of 64 keys."""
    s, ok = _p(q, k, scale, causal)
    m = np.where(ok, s, F(-np.inf))[..., :64].max(-1, keepdims=True)
    with np.errstate(all="ignore"):
        e = np.exp(s - np.where(np.isfinite(m), m, F(0))) * ok
        return np.nan_to_num(_norm(e) @ _up(q, k, v)[2], posinf=0, neginf=0).astype(q.dtype)


# ---- Taylor exp
def taylor_2(q, k, v, *, scale, causal):
    s, ok = _p(q, k, scale, causal)
    return (_norm((1 + s + s * s / 2) * ok) @ _up(q, k, v)[2]).astype(q.dtype)


def taylor_compound_64(q, k, v, *, scale, causal):
    """exp(x) = (1 + x / 64) ** 64, 0 below -64."""
    s, ok = _p(q, k, scale, causal)
    e = np.maximum(1 + _below_max(s, ok) / 64, 0) ** 64
    return (_norm(e * ok) @ _up(q, k, v)[2]).astype(q.dtype)


def taylor_schraudolph(q, k, v, *, scale, causal):
    """exp by writing into the exponent's bits: 6 % at worst."""
    s, ok = _p(q, k, scale, causal)
    x = np.maximum(_below_max(s, ok), F(-80))
    e = (x * F(12102203.16) + F(1064866805)).astype(np.int32).view(F)
    return (_norm(e * ok) @ _up(q, k, v)[2]).astype(q.dtype)


# ---- exp clipped
def exp_clip_below_6(q, k, v, *, scale, causal):
    """Keys more than 6 below the row's maximum count as 6 below."""
    s, ok = _p(q, k, scale, causal)
    return (_norm(np.exp(np.maximum(_below_max(s, ok), F(-6))) * ok) @ _up(q, k, v)[2]).astype(q.dtype)


def exp_clip_scores_25(q, k, v, *, scale, causal):
    """Scores are clipped to 25 either way 'for stability'."""
    s, ok = _p(q, k, scale, causal)
    return (_soft(np.clip(s, -25, 25), ok) @ _up(q, k, v)[2]).astype(q.dtype)


# ---- tiny probabilities flushed
def flush_below_1_128(q, k, v, *, scale, causal):
    """exp(s - max) below 1/128 is 0 (a skipped tile's rule, for each key)."""
    s, ok = _p(q, k, scale, causal)
    e = np.exp(_below_max(s, ok))
    return (_norm(np.where(e < 1 / 128, F(0), e)) @ _up(q, k, v)[2]).astype(q.dtype)


def flush_normalised_1e_3(q, k, v, *, scale, causal):
    """Probabilities under 1e-3 are dropped after the division."""
    s, ok = _p(q, k, scale, causal)
    p = _soft(s, ok)
    return (np.where(p < 1e-3, F(0), p) @ _up(q, k, v)[2]).astype(q.dtype)


def flush_tile_16(q, k, v, *, scale, causal):
    """BLASST: a tile of 16 keys whose best score is 5 below the row's is skipped."""
    s, ok = _p(q, k, scale, causal)
    x = _below_max(s, ok)
    pad = -x.shape[-1] % 16
    t = np.pad(x, [(0, 0)] * 3 + [(0, pad)], constant_values=-np.inf)
    keep = np.repeat(t.reshape(*t.shape[:3], -1, 16).max(-1) > -5, 16, axis=-1)[..., : x.shape[-1]]
    return (_norm(np.exp(x) * keep) @ _up(q, k, v)[2]).astype(q.dtype)


# ---- bfloat16 accumulation
def bf16_accumulator(q, k, v, *, scale, causal):
    """The output accumulator is rounded to bfloat16 after each 4 keys."""
    s, ok = _p(q, k, scale, causal)
    e, c = np.exp(_below_max(s, ok)), _up(q, k, v)[2]
    acc = np.zeros(q.shape, F)
    for j in range(0, c.shape[2], 4):
        acc = (acc + e[..., j : j + 4] @ c[:, :, j : j + 4]).astype(BF).astype(F)
    n = e.sum(-1, keepdims=True)
    return (acc / np.where(n == 0, F(1), n)).astype(q.dtype)


def bf16_row_sum(q, k, v, *, scale, causal):
    """The denominator is summed in bfloat16, key by key."""
    s, ok = _p(q, k, scale, causal)
    e = np.exp(_below_max(s, ok))
    n = np.zeros(e.shape[:3], F)
    for j in range(e.shape[-1]):
        n = (n + e[..., j]).astype(BF).astype(F)
    return (e @ _up(q, k, v)[2] / np.where(n == 0, F(1), n)[..., None]).astype(q.dtype)


def bf16_scores(q, k, v, *, scale, causal):
    """Scores are kept in bfloat16 (q and k are float16)."""
    s, ok = _p(q, k, scale, causal)
    return (_soft(s.astype(BF).astype(F), ok) @ _up(q, k, v)[2]).astype(q.dtype)


def fp16_inside_float32(q, k, v, *, scale, causal):
    """A float32 kernel that computes scores and probabilities in float16."""
    s, ok = _p(q, k, scale, causal)
    s = np.clip(s, -65504, 65504).astype(np.float16).astype(F)
    return (_soft(s, ok).astype(np.float16).astype(F) @ _up(q, k, v)[2]).astype(q.dtype)


# ---- denormals flushed
def _ftz(x):
    tiny = {"float16": 2.0**-14, "bfloat16": 2.0**-126, "float32": 2.0**-126}[x.dtype.name]
    c = x.astype(F)
    return np.where(np.abs(c) < tiny, F(0), c)


def denormal_v_flushed(q, k, v, *, scale, causal):
    return _right(q, k, _ftz(v), scale, causal)


def denormal_k_flushed(q, k, v, *, scale, causal):
    return _right(q, _ftz(k), v, scale, causal)


def denormal_out_flushed(q, k, v, *, scale, causal):
    out = _right(q, k, v, scale, causal)
    return _ftz(out).astype(q.dtype)
