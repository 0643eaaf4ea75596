"""Faulty kernels that see other keys than they should, or other scores: masks, padding, windows, softcaps."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from campaigns.styles import pieces
from campaigns.styles.correct_eager import scaled_query
from campaigns.styles.correct_masks import bert_minus_1e4
from campaigns.styles.fault import Faulty
from campaigns.styles.pieces import F32
from campaigns.styles.style import Array, Stages

Options = Mapping[str, Any]


def _scores(q: Array, k: Array, scale: float) -> Array:
    q32, k32, _ = pieces.widened(q, k, k)
    return pieces.product(q32 * F32(scale), k32)


def _attended(scores: Array, q: Array, v: Array) -> Stages:
    """The rest of scaled_query, from masked scores."""
    v32 = pieces.widened(q, v, v)[2]
    m = scores.max(-1)
    p = pieces.by_exp(scores, m[..., None])
    l = p.sum(-1)
    return {"out": pieces.quotient(pieces.nearest(p, q.dtype) @ v32, l).astype(q.dtype), "lse": pieces.lse_of(m, l)}


def _shifted(q: Array, k: Array, shift: int) -> Array:
    """The causal mask with its diagonal moved by `shift` keys."""
    m, n = q.shape[2], k.shape[2]
    return np.tri(m, n, n - m + shift, dtype=bool)


def drops_last_key(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    seen = pieces.visible(q, k, causal) & (np.arange(k.shape[2]) < k.shape[2] - 1)
    return _attended(pieces.masked(_scores(q, k, scale), seen), q, v)


def drops_last_key_of_ragged_tile(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The last key is lost where the last tile of 64 is not full."""
    n = k.shape[2]
    seen = pieces.visible(q, k, causal) & (np.arange(n) < n - (n % 64 != 0))
    return _attended(pieces.masked(_scores(q, k, scale), seen), q, v)


def drops_ragged_tile(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The number of tiles of 32 is rounded down."""
    n = k.shape[2]
    seen = pieces.visible(q, k, causal) & (np.arange(n) < max(n // 32 * 32, 1))
    return _attended(pieces.masked(_scores(q, k, scale), seen), q, v)


def causal_without_diagonal(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    seen = _shifted(q, k, -1) if causal else pieces.visible(q, k, causal)
    return _attended(pieces.masked(_scores(q, k, scale), seen), q, v)


def causal_one_key_too_many(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    seen = _shifted(q, k, 1) if causal else pieces.visible(q, k, causal)
    return _attended(pieces.masked(_scores(q, k, scale), seen), q, v)


def causal_from_the_top(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The mask is aligned at the first query and key."""
    seen = _shifted(q, k, q.shape[2] - k.shape[2]) if causal else pieces.visible(q, k, causal)
    return _attended(pieces.masked(_scores(q, k, scale), seen), q, v)


def causal_by_tiles(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The tile of 16 on the diagonal is not masked inside."""
    seen = pieces.visible(q, k, causal)
    whole = np.repeat(np.maximum.reduceat(seen, np.arange(0, k.shape[2], 16), axis=1), 16, axis=1)[:, : k.shape[2]]
    return _attended(pieces.masked(_scores(q, k, scale), whole), q, v)


def window_of_64(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """A sliding window that nobody asked for: keys more than 64 before the query's own are not seen."""
    seen = pieces.visible(q, k, causal) & ~_shifted(q, k, -65)
    return _attended(pieces.masked(_scores(q, k, scale), seen), q, v)


def weak_mask(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """-10 is added where -10000 should be: masked keys keep a weight."""
    return _attended(_scores(q, k, scale) + np.where(pieces.visible(q, k, causal), F32(0), F32(-10)), q, v)


def rows_without_keys_get_the_mean(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """A finite mask, and no care for rows in which all is masked."""
    return _attended(pieces.masked(_scores(q, k, scale), pieces.visible(q, k, causal), -1e9), q, v)


def padding_counts(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Keys that pad the last tile of 64 are zeros, whose scores of 0 nobody masks unless the mask is causal."""
    pad = -k.shape[2] % 64
    x = pieces.masked(_scores(q, k, scale), pieces.visible(q, k, causal))
    x = np.pad(x, [(0, 0)] * 3 + [(0, pad)], constant_values=-np.inf if causal else 0.0)
    return _attended(x, q, np.pad(v, [(0, 0), (0, 0), (0, pad), (0, 0)]))


def nan_in_padding(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """V's padding in the last tile of 64 was never written: 0 * NaN."""
    pad = -k.shape[2] % 64
    x = pieces.masked(_scores(q, k, scale), pieces.visible(q, k, causal))
    x = np.pad(x, [(0, 0)] * 3 + [(0, pad)], constant_values=-np.inf)
    return _attended(x, q, np.pad(v, [(0, 0), (0, 0), (0, pad), (0, 0)], constant_values=np.nan))


def garbage_in_padding(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The sum leaves out the padding of the last tile of 32, the product with V and its old values does not."""
    pad = -k.shape[2] % 32
    x = pieces.masked(_scores(q, k, scale), pieces.visible(q, k, causal))
    m = x.max(-1)
    p = pieces.by_exp(x, m[..., None])
    garbage = np.pad(v.astype(F32), [(0, 0), (0, 0), (0, pad), (0, 0)], constant_values=0.75).astype(v.dtype)
    padded = np.pad(p, [(0, 0)] * 3 + [(0, pad)], mode="edge")
    l = p.sum(-1)
    o = pieces.nearest(padded, q.dtype) @ pieces.widened(q, garbage, garbage)[2]
    return {"out": pieces.quotient(o, l).astype(q.dtype), "lse": pieces.lse_of(m, l)}


def _softcapped(q: Array, k: Array, v: Array, scale: float, causal: bool, cap: float) -> Stages:
    x = F32(cap) * np.tanh(_scores(q, k, scale) / F32(cap))
    return _attended(pieces.masked(x, pieces.visible(q, k, causal)), q, v)


def softcap_30(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    return _softcapped(q, k, v, scale, causal, 30.0)


def softcap_50(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    return _softcapped(q, k, v, scale, causal, 50.0)


def scores_clamped_at_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """exp's argument is clamped at -8, so that small probs are too large; masked ones stay 0."""
    x = pieces.masked(_scores(q, k, scale), pieces.visible(q, k, causal))
    m = x.max(-1)
    return _attended(np.where(x == -np.inf, x, np.maximum(x, m[..., None] - F32(8))), q, v)


def _causal(case: Options) -> bool:
    return bool(case["causal"])


def _flat(case: Options) -> bool:
    """Whether every key has a weight that counts."""
    return bool(case["input_std"] <= 1)


def _large(case: Options) -> bool:
    return bool(case["input_std"] >= 4 and case["seqlen_k"] > 1)


FAULTY = (
    Faulty(drops_last_key, scaled_query, "the last key is not seen", _flat),
    Faulty(
        drops_last_key_of_ragged_tile,
        scaled_query,
        "the last key of a tile that is not full is not seen",
        lambda c: _flat(c) and c["seqlen_k"] % 64 != 0,
    ),
    Faulty(
        drops_ragged_tile,
        scaled_query,
        "a tile that is not full is not visited",
        lambda c: _flat(c) and c["seqlen_k"] > 1 and c["seqlen_k"] % 32 != 0,
    ),
    Faulty(causal_without_diagonal, scaled_query, "the diagonal is masked", _causal),
    Faulty(
        causal_one_key_too_many,
        scaled_query,
        "one key beyond the diagonal is seen",
        lambda c: c["causal"] and min(c["seqlen_q"], c["seqlen_k"]) > 1,
    ),
    Faulty(
        causal_from_the_top,
        scaled_query,
        "causal mask aligned top-left",
        lambda c: c["causal"] and c["seqlen_q"] != c["seqlen_k"],
    ),
    Faulty(
        causal_by_tiles,
        scaled_query,
        "the diagonal tile is not masked",
        lambda c: c["causal"] and min(c["seqlen_q"], c["seqlen_k"]) > 16,
    ),
    Faulty(window_of_64, scaled_query, "a window of 64 keys", lambda c: _flat(c) and c["seqlen_k"] > 66),
    Faulty(
        weak_mask,
        bert_minus_1e4,
        "a mask of -10 lets masked keys through",
        lambda c: _flat(c) and c["causal"] and min(c["seqlen_q"], c["seqlen_k"]) > 64,
    ),
    Faulty(
        rows_without_keys_get_the_mean,
        scaled_query,
        "rows without keys get the mean of V",
        lambda c: c["causal"] and c["seqlen_q"] > c["seqlen_k"],
    ),
    Faulty(
        padding_counts,
        scaled_query,
        "padding has scores of 0",
        lambda c: _flat(c) and not c["causal"] and c["seqlen_k"] % 64 != 0,
    ),
    Faulty(nan_in_padding, scaled_query, "NaN in V's padding", lambda c: c["seqlen_k"] % 64 != 0),
    Faulty(
        garbage_in_padding,
        scaled_query,
        "old values in V's padding are added",
        lambda c: _flat(c) and not c["causal"] and c["seqlen_k"] % 32 != 0,
    ),
    Faulty(softcap_30, scaled_query, "a softcap of 30", _large),
    Faulty(softcap_50, scaled_query, "a softcap of 50", _large),
    Faulty(scores_clamped_at_8, scaled_query, "exp clamped at -8", lambda c: _large(c) and c["seqlen_k"] > 32),
)
