"""Correct pieces that the kernels share: loads, masks, steps of the online softmax, partials, merges, stores."""

import ml_dtypes
import numpy as np

Array = np.ndarray
Result = tuple[Array, Array]
State = tuple[Array, Array, Array]

F32 = np.float32
F16 = np.float16
BF16 = ml_dtypes.bfloat16
E4M3 = ml_dtypes.float8_e4m3fn
LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453
NO_WINDOW = (-1, -1)


def require(condition: bool, message: str) -> None:
    """Refuse what a kernel does not support, as a launcher would."""
    if not condition:
        raise NotImplementedError(message)


def cdiv(a: int, b: int) -> int:
    """Quotient rounded up."""
    return -(-a // b)


def tiles(stop: int, size: int, start: int = 0) -> list[tuple[int, int]]:
    """Half-open ranges of at most `size` that cover start..stop."""
    return [(a, min(a + size, stop)) for a in range(start, stop, size)]


def rows(x: Array, a: int, b: int) -> Array:
    """Positions a..b of the sequence axis of [batch, heads, seqlen, ...]."""
    return x[:, :, a:b]


def rounded(x: Array, dtype: np.dtype) -> Array:
    """What float32 numbers are after a trip through `dtype`."""
    return x.astype(dtype).astype(F32)


def junk(shape: tuple[int, ...], dtype: np.dtype = F32) -> Array:
    """Deterministic numbers in place of memory that nobody wrote."""
    count = int(np.prod(shape))
    return ((np.arange(count) * 7919 % 1009) / 126.0 - 4.0).reshape(shape).astype(dtype)


def repeat_kv(x: Array, heads: int) -> Array:
    """K or V with each head repeated for the query heads of its group."""
    return np.repeat(x, heads // x.shape[1], axis=1)


def load(q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    """float32 q, k, v with a K/V head for each query head."""
    heads = q.shape[1]
    return q.astype(F32), repeat_kv(k.astype(F32), heads), repeat_kv(v.astype(F32), heads)


def outputs(q: Array, v: Array) -> Result:
    """Zeroed out and lse."""
    return np.zeros((*q.shape[:3], v.shape[3]), q.dtype), np.zeros(q.shape[:3], F32)


def pad(x: Array, length: int, fill: float = 0.0) -> Array:
    """The sequence axis lengthened to `length` by rows of `fill`."""
    tail = np.full((*x.shape[:2], length - x.shape[2], x.shape[3]), fill, x.dtype)
    return np.concatenate([x, tail], axis=2)


def scores(q: Array, k: Array, scale: float) -> Array:
    """q @ k^T * scale in float32."""
    return (q @ np.swapaxes(k, -1, -2)) * F32(scale)


def visible(sq: int, sk: int, causal: bool, window: tuple[int, int] = NO_WINDOW) -> Array:
    """[sq, sk], True where a query may see a key; aligned bottom-right."""
    i = np.arange(sq)[:, None] + sk - sq
    j = np.arange(sk)[None, :]
    mask = np.ones((sq, sk), bool)
    if causal:
        mask &= j <= i
    if window[0] >= 0:
        mask &= j >= i - window[0]
    if window[1] >= 0:
        mask &= j <= i + window[1]
    return mask


def hide(s: Array, mask: Array) -> Array:
    """Scores with -inf where the mask is False."""
    return np.where(mask, s, F32(-np.inf))


def safe(m: Array) -> Array:
    """A maximum to subtract: 0 where no key was seen."""
    return np.where(np.isneginf(m), F32(0), m)


def fresh(q: Array, v: Array) -> State:
    """Maximum, sum and accumulator before the first tile."""
    shape = q.shape[:-1]
    return np.full(shape, -np.inf, F32), np.zeros(shape, F32), np.zeros((*shape, v.shape[-1]), F32)


def step(state: State, s: Array, v: Array, dtype: np.dtype) -> State:
    """One tile of the online softmax, P cast to `dtype` before P @ V."""
    m, den, acc = state
    m_new = np.maximum(m, s.max(-1))
    alpha = np.exp(m - safe(m_new))
    p = np.exp(s - safe(m_new)[..., None])
    return m_new, den * alpha + p.sum(-1), acc * alpha[..., None] + rounded(p, dtype) @ v


def softmax_pv(s: Array, v: Array, dtype: np.dtype) -> State:
    """Maximum, sum and unnormalised output of a whole row of scores."""
    m = s.max(-1)
    p = np.exp(s - safe(m)[..., None])
    return m, p.sum(-1), rounded(p, dtype) @ v


def log_or_neg_inf(den: Array) -> Array:
    """log, -inf where nothing was summed."""
    return np.where(den > 0, np.log(np.where(den > 0, den, F32(1))), F32(-np.inf)).astype(F32)


def divide(acc: Array, den: Array) -> Array:
    """acc / den, 0 where nothing was summed."""
    return acc / np.where(den > 0, den, F32(1))[..., None]


def lse_of(m: Array, den: Array) -> Array:
    """m + log(den), -inf for rows without a visible key."""
    return safe(m) + log_or_neg_inf(den)


def store(m: Array, den: Array, acc: Array, dtype: np.dtype) -> Result:
    """The epilogue: normalise, cast, and the natural-log lse."""
    return divide(acc, den).astype(dtype), lse_of(m, den)


def partials(q: Array, k: Array, v: Array, scale: float, mask: Array, bounds: list[tuple[int, int]]) -> State:
    """Stacked maxima, sums and unnormalised outputs of key ranges; the first axis is the split."""
    qf, kf, vf = load(q, k, v)
    parts = []
    for a, b in bounds:
        s = hide(scores(qf, rows(kf, a, b), scale), mask[:, a:b])
        parts.append(softmax_pv(s, rows(vf, a, b), q.dtype))
    return tuple(np.stack(x) for x in zip(*parts, strict=True))


def partials_lse(q: Array, k: Array, v: Array, scale: float, mask: Array, bounds: list[tuple[int, int]]) -> Result:
    """Stacked normalised outputs (float32) and lse of key ranges."""
    pm, pl, po = partials(q, k, v, scale, mask, bounds)
    return divide(po, pl), lse_of(pm, pl)


def weights(pm: Array) -> tuple[Array, Array]:
    """The maximum over splits and the weight of each."""
    m = pm.max(0)
    return m, np.exp(pm - safe(m))


def merge(pm: Array, pl: Array, po: Array) -> State:
    """Unnormalised partials merged to one state."""
    m, w = weights(pm)
    return m, (w * pl).sum(0), (w[..., None] * po).sum(0)


def merge_lse(po: Array, plse: Array, dtype: np.dtype) -> Result:
    """Normalised partials merged by their lse."""
    m, w = weights(plse)
    den = w.sum(0)
    return divide((w[..., None] * po).sum(0), den).astype(dtype), lse_of(m, den)
