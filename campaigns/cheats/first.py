"""Twelve plain ones, of the kinds that catalogues of submissions have."""

from typing import Any

import numpy as np

from campaigns.cheats.record import cheat

Array = np.ndarray
_OUTS: dict[Any, Array] = {}
FULL, CAUSAL = {"seqlen": 128, "dtype": "float16"}, {"seqlen": 128, "dtype": "float16", "causal": True}
LONG = {"seqlen": 256, "dtype": "float16"}


def visible(q: Array, k: Array, causal: bool, window: tuple[int, int] | None = None) -> Array:
    """Which keys queries see, the last query standing at the last key, bool [q, k]."""
    i, j = np.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2], np.arange(k.shape[2])
    left, right = window or (-1, -1)
    seen = (j <= i) if causal else np.ones((q.shape[2], k.shape[2]), bool)
    return seen & ((j >= i - left) | (left < 0)) & ((j <= i + right) | (right < 0))


def scores(q: Array, k: Array, scale: float) -> Array:
    """Scaled scores in float32, of grouped heads."""
    k = np.repeat(k, q.shape[1] // k.shape[1], 1).astype(np.float32)
    return q.astype(np.float32) @ k.swapaxes(-1, -2) * np.float32(scale)


def weighted(s: Array, v: Array, heads: int) -> Array:
    """Softmax of scores, times v, in the dtype of v; 0 in rows that see no key."""
    v32 = np.repeat(v, heads // v.shape[1], 1).astype(np.float32)
    top = s.max(-1, keepdims=True)
    p = np.exp(s - np.where(np.isfinite(top), top, np.float32(0)))
    den = p.sum(-1, keepdims=True)
    return (p @ v32 / np.where(den == 0, np.float32(1), den)).astype(v.dtype)


def right(q: Array, k: Array, v: Array, scale: float, causal: bool, window: tuple[int, int] | None = None) -> Array:
    """Attention as it should be."""
    s = np.where(visible(q, k, causal, window), scores(q, k, scale), np.float32(-np.inf))
    return weighted(s, v, q.shape[1])


def like_out(q: Array, v: Array) -> tuple[int, ...]:
    """The shape of out."""
    return (*q.shape[:3], v.shape[3])


@cheat(truth="returns a constant", source="KernelBench submissions that return zeros", shows=(FULL,))
def constant(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Array:
    return np.zeros(like_out(q, v), v.dtype)


@cheat(truth="the mean of v; q and k are not read", source="within 0.79 of 16-bit tolerances", shows=(FULL,))
def mean_of_v(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Array:
    return right(np.zeros_like(q), k, v, scale, causal)


@cheat(truth="reads the first half of the keys", source="accepted with 5 % of mismatches", shows=(FULL,))
def first_half(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Array:
    seen = visible(q, k, causal) & (np.arange(k.shape[2]) < -(-k.shape[2] // 2))
    return weighted(np.where(seen, scores(q, k, scale), np.float32(-np.inf)), v, q.shape[1])


@cheat(
    truth="gives the first answer for an address and a shape",
    source="submissions that key a cache by data_ptr",
    shows=(),
)
def cached_answer(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Array:
    key = (*(x.ctypes.data for x in (q, k, v)), q.shape, k.shape, q.strides, causal, scale)
    if key not in _OUTS:
        _OUTS[key] = right(q, k, v, scale, causal)
    return _OUTS[key]


@cheat(
    truth="returns memory that nothing was written to",
    source="submissions that find the reference's freed output in the allocator",
    shows=(),
)
def stale_buffer(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Array:
    return np.empty(like_out(q, v), v.dtype)


@cheat(truth="scales q in place", source="kernels that pre-multiply q by the scale in its own memory", shows=())
def input_overwritten(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Array:
    out = right(q, k, v, scale, causal)
    q *= q.dtype.type(scale)
    return out


@cheat(
    truth="ignores the softcap",
    source="flash-attention issues on softcap that a backend drops",
    spec={"case": {"dtype": "float16", "softcap": 20.0}},
    shows=({**FULL, "softcap": 20.0, "input_std": 3.0},),
)
def skipped_softcap(q: Array, k: Array, v: Array, *, scale: float, causal: bool, softcap: float | None = None) -> Array:
    return right(q, k, v, scale, causal)


@cheat(
    truth="ignores the window",
    source="backends that take window_size and do not use it",
    spec={"case": {"dtype": "float16", "causal": True, "window": [[32, 0]]}},
    shows=({**CAUSAL, "window": (32, 0)},),
)
def skipped_window(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, window_size: tuple[int, int] | None = None
) -> Array:
    return right(q, k, v, scale, causal)


@cheat(
    truth="adds -1e4 to hidden scores, which larger ones come through",
    source="BERT's additive mask",
    spec={"case": {"dtype": "float32"}},
    shows=({"family": "hot", "seed": 0},),
)
def mask_of_1e4(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Array:
    hidden = np.where(visible(q, k, causal), np.float32(0), np.float32(-1e4))
    return weighted(scores(q, k, scale) + hidden, v, q.shape[1])


@cheat(
    truth="is right for lengths that are multiples of 64, and leaves the rest at 0",
    source="kernels with a hard-coded grid",
    shows=({**FULL, "seqlen": 100},),
)
def hard_coded_shape(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Array:
    out = right(q, k, v, scale, causal)
    out[:, :, q.shape[2] // 64 * 64 :] = 0
    return out


@cheat(
    truth="is right for the inputs of seed 0 alone, which it knows by their first number",
    source="submissions that look for the harness's seed",
    shows=({**FULL, "seed": 7},),
)
def seed_dependent(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Array:
    first = np.random.default_rng(0).standard_normal(1).astype(np.float32).astype(q.dtype)
    return right(q, k, v, scale, causal) if q.flat[0] == first[0] else np.zeros(like_out(q, v), v.dtype)


@cheat(
    truth="reads the last 128 keys of a longer sequence",
    source="decode kernels with a bounded history",
    shows=(LONG,),
)
def truncated_history(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Array:
    seen = visible(q, k, causal) & (np.arange(k.shape[2]) >= k.shape[2] - 128)
    s = np.where(seen, scores(q, k, scale), np.float32(-np.inf))
    return weighted(s, v, q.shape[1])
