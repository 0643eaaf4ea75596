# as a project would write them, without types
# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Attention as plain NumPy functions, as a project would write its references: whole rows, by tiles, by splits.

q [b, h, q, d], k and v [b, kv head, k, d]; mask bool, True where a key is seen, [q, k] or with heads before it; every
row sees a key. All return out and the natural lse. Their local variables are what kernels dump under the same names.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from workbench.reference.graph import stage

LOG2E, LN2 = math.log2(math.e), math.log(2)


def seen(maximum):
    """A maximum, 0 of a row that has seen no key."""
    return np.where(maximum == -np.inf, 0.0, maximum)


def natural(x, m):
    """exp(x - m)."""
    return np.exp(x - seen(m))


def base2(x, m):
    """The same of scores in units of log2."""
    return np.exp2(x - seen(m))


def product(x, m, log2_e=LOG2E):
    """exp as exp2 of a product."""
    return np.exp2((x - seen(m)) * log2_e)


def raw(x, m, scale, log2_e=LOG2E):
    """FlashAttention-2's, of scores without their scale."""
    return np.exp2(x * scale * log2_e - seen(m) * scale * log2_e)


def lse_natural(m, l):
    return m + np.log(l)


def lse_base2(m, l):
    return (m + np.log2(l)) * LN2


def lse_raw(m, l, scale):
    return m * scale + np.log(l)


class Units(NamedTuple):
    """In which units scores are, and what they are multiplied by where."""

    of_q: tuple[float, ...] = ()
    of_k: tuple[float, ...] = ()
    of_scores: tuple[float, ...] = ()
    softcap: float | None = None
    weigh: Callable[..., Any] = natural
    lse: Callable[..., Any] = lse_natural


def times(x, factors):
    """x times all of the factors."""
    for one in factors:
        x = x * one
    return x


def scored(qk, mask, units, slopes, distance, some=slice(None)):
    """Scores of some keys: scaled, capped, plus slope times distance as ALiBi has it, -inf where unseen."""
    x = times(qk, units.of_scores)
    x = x if units.softcap is None else units.softcap * np.tanh(x / units.softcap)
    x = x if slopes is None else x + slopes[:, None, None] * distance[:, some]
    return np.where(mask[..., some], x, -np.inf)


def operands(q, k, v, units):
    """q and k scaled, where units say so; k and v once for each query head."""
    scaled_q = times(q, units.of_q)
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (times(k, units.of_k), v))
    return scaled_q, k, v


def naive(q, k, v, *, mask, units, slopes=None, distance=None):
    """Softmax attention of whole rows, divided at the end."""
    q, k, v = operands(q, k, v, units)
    qk = q @ np.swapaxes(k, -1, -2)
    scores = scored(qk, mask, units, slopes, distance)
    row_max = np.max(scores, axis=-1)
    probs = units.weigh(scores, row_max[..., None])
    row_sum = np.sum(probs, axis=-1)
    acc = stage("probs_cast", probs) @ v
    out = acc / row_sum[..., None]
    lse = units.lse(row_max, row_sum)
    return out, lse


def softmax(q, k, v, *, mask, units, slopes=None, distance=None):
    """The same, weights normalised before they meet v."""
    q, k, v = operands(q, k, v, units)
    qk = q @ np.swapaxes(k, -1, -2)
    scores = scored(qk, mask, units, slopes, distance)
    row_max = np.max(scores, axis=-1)
    weights = units.weigh(scores, row_max[..., None])
    row_sum = np.sum(weights, axis=-1)
    probs = weights / row_sum[..., None]
    out = stage("probs_cast", probs) @ v
    lse = units.lse(row_max, row_sum)
    return out, lse


def tiles(q, k, v, mask, units, slopes, distance, visits):
    """Online softmax over tiles of keys: the last maximum, sum and accumulator."""
    row_max, row_sum = np.full(q.shape[:3], -np.inf, q.dtype), np.zeros(q.shape[:3], q.dtype)
    acc = np.zeros((*q.shape[:3], v.shape[-1]), q.dtype)
    for some in visits:
        qk = q @ np.swapaxes(k[:, :, some], -1, -2)
        scores = scored(qk, mask, units, slopes, distance, some)
        new = np.maximum(row_max, np.max(scores, axis=-1))
        correction = units.weigh(row_max, new)
        probs = units.weigh(scores, new[..., None])
        row_sum = correction * row_sum + np.sum(probs, axis=-1)
        acc = correction[..., None] * acc + stage("probs_cast", probs) @ v[:, :, some]
        row_max = new
    return row_max, row_sum, acc


def flash(q, k, v, *, mask, units, visits, slopes=None, distance=None):
    """FlashAttention: one run over the tiles `visits`, slices of keys."""
    row_max, row_sum, acc = tiles(*operands(q, k, v, units), mask, units, slopes, distance, visits)
    out = acc / row_sum[..., None]
    lse = units.lse(row_max, row_sum)
    return out, lse


def split_k(q, k, v, *, mask, units, splits, slopes=None, distance=None):
    """Flash-Decoding: a run for each of `splits`, lists of tiles, and a merge."""
    q, k, v = operands(q, k, v, units)
    parts = [tiles(q, k, v, mask, units, slopes, distance, visits) for visits in splits]
    maxima = [stage("partial_max", part[0]) for part in parts]
    sums = [stage("partial_sum", part[1]) for part in parts]
    numerators = [stage("partial_O", part[2]) for part in parts]
    merge_max = maxima[0]
    for one in maxima[1:]:
        merge_max = np.maximum(merge_max, one)
    weights = [stage("merge_weight", units.weigh(one, merge_max)) for one in maxima]
    merge_sum = sum(w * l for w, l in zip(weights, sums, strict=True))
    out = sum(w[..., None] * o for w, o in zip(weights, numerators, strict=True)) / merge_sum[..., None]
    lse = units.lse(merge_max, merge_sum)
    return out, lse
