"""Attention as plain functions, as a project would write them: the two algorithms of `workbench.reference.attention`."""

from collections.abc import Iterator

import numpy as np

from workbench.reference.graph import stage

#: stage -> how its turns make up the whole array: joined along an axis of theirs, or stacked along a new one
JOINED = {"qk": -1, "scores": -1, "probs": -1}
STACKED = {"row_max": -1, "correction": -1, "row_sum": -1, "acc": -2} | dict.fromkeys(
    ("partial_max", "partial_sum", "partial_O", "merge_weight"), 2
)


def seen(maximum):
    """A maximum, 0 of a row that has seen no key."""
    return np.where(maximum == -np.inf, 0.0, maximum)


def tiles(q, k, v, *, scale, mask, block):
    """Online softmax over tiles of keys: the last maximum, sum and accumulator."""
    row_max = np.full(q.shape[:3], -np.inf, q.dtype)
    row_sum = np.zeros(q.shape[:3], q.dtype)
    acc = np.zeros((*q.shape[:3], v.shape[-1]), q.dtype)
    for first in range(0, k.shape[2], block):
        some = slice(first, first + block)
        qk = stage("qk", q @ np.swapaxes(k[:, :, some], -1, -2))
        scores = stage("scores", np.where(mask[..., some], qk * scale, -np.inf))
        new = stage("row_max", np.maximum(row_max, np.max(scores, axis=-1)))
        correction = stage("correction", np.exp(row_max - seen(new)))
        probs = stage("probs", np.exp(scores - seen(new)[..., None]))
        row_sum = stage("row_sum", correction * row_sum + np.sum(probs, axis=-1))
        acc = stage("acc", correction[..., None] * acc + probs @ v[:, :, some])
        row_max = new
    return row_max, row_sum, acc


def flash(q, k, v, *, scale, mask, block):
    row_max, row_sum, acc = tiles(q, k, v, scale=scale, mask=mask, block=block)
    out = stage("out", acc / row_sum[..., None])
    lse = stage("lse", row_max + np.log(row_sum))
    return out, lse


def split_k(q, k, v, *, scale, mask, block, splits):
    parts = []
    for keys in split_keys(k.shape[2], block, splits):
        parts.append(tiles(q, k[:, :, keys], v[:, :, keys], scale=scale, mask=mask[..., keys], block=block))
    maxima = [stage("partial_max", part[0]) for part in parts]
    sums = [stage("partial_sum", part[1]) for part in parts]
    numerators = [stage("partial_O", part[2]) for part in parts]
    top = maxima[0]
    for one in maxima[1:]:
        top = np.maximum(top, one)
    top = stage("merge_max", top)
    weights = [stage("merge_weight", np.exp(one - seen(top))) for one in maxima]
    total = stage("merge_sum", sum(np.exp(m - seen(top)) * l for m, l in zip(maxima, sums, strict=True)))
    out = stage("out", sum(w[..., None] * o for w, o in zip(weights, numerators, strict=True)) / total[..., None])
    lse = stage("lse", top + np.log(total))
    return out, lse


def naive(q, k, v, *, scale, mask):
    scores = np.where(mask, (q @ np.swapaxes(k, -1, -2)) * scale, -np.inf)
    row_max = np.max(scores, axis=-1)
    probs = np.exp(scores - row_max[..., None])
    row_sum = np.sum(probs, axis=-1)
    out = probs @ v / row_sum[..., None]
    lse = row_max + np.log(row_sum)
    return out, lse


def split_keys(keys: int, block: int, splits: int) -> Iterator[slice]:
    """The keys of each split, in whole tiles."""
    tiles = -(-keys // block)
    n = -(-tiles // splits) * block
    yield from (slice(first, min(first + n, keys)) for first in range(0, keys, n))
