"""Split-K: partial attention of runs of keys, and the merge of what they leave."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from campaigns.independent.online import Steps, contract, sweep
from campaigns.independent.shape import (
    NO_KEY,
    Array,
    Shape,
    Stages,
    blocks,
    cdiv,
    divided,
    float32,
    log_sum,
    shifted,
    unwritten,
)

SPLITS = 6
SPLIT_BLOCK_K = 16
CHUNK = 40
READ = 16
Partials = tuple[Array, Array, Array]


def weights(partial_max: Array, merge_max: Array) -> Array:
    """What a split's numbers are multiplied by to stand on the scale of all splits."""
    return np.exp(np.swapaxes(shifted(np.swapaxes(partial_max, 2, 3), merge_max), 2, 3))


@dataclass(frozen=True)
class Merge:
    """The lines of a merge, each of which a kernel may have another of; splits are axis 2."""

    maximum: Callable[[Array], Array] = lambda partial_max: partial_max.max(2)
    weight: Callable[[Array, Array], Array] = weights
    total: Callable[[Array, Array], Array] = lambda weight, partial_sum: (weight * partial_sum).sum(2)
    combine: Callable[[Array, Array], Array] = lambda weight, partial: (weight[..., None] * partial).sum(2)


def merged(partials: Partials, dtype: np.dtype, merge: Merge) -> Stages:
    """The stages of a merge, of partial results as they were stored."""
    maxima, sums, partial = partials
    highest = merge.maximum(maxima)
    weight = merge.weight(maxima, highest)
    total = merge.total(weight, sums)
    stages = {"partial_max": maxima, "partial_sum": sums, "partial_O": partial}
    stages |= {"merge_max": highest, "merge_weight": weight, "merge_sum": total}
    return stages | {"out": divided(merge.combine(weight, partial), total, dtype), "lse": log_sum(highest, total)}


def split_runs(seqlen_k: int) -> list[range]:
    """Tiles of each split: as many as the first has, as long as there are any; the last splits may have none."""
    tiles = cdiv(seqlen_k, SPLIT_BLOCK_K)
    each = cdiv(tiles, SPLITS)
    return [range(min(s * each, tiles), min((s + 1) * each, tiles)) for s in range(SPLITS)]


def six_splits(
    q: Array,
    k: Array,
    v: Array,
    scale: float,
    causal: bool,
    steps: Steps | None = None,
    store: Callable[..., Partials] = lambda *partials: partials,
    merge: Merge | None = None,
) -> Stages:
    """Six splits of tiles of 16 keys, what `store` makes of their results, and the merge of that."""
    runs = split_runs(k.shape[2])
    stages = sweep(q, k, v, scale, causal, steps or Steps(), runs, block_k=SPLIT_BLOCK_K)
    partials = store(*(stages.pop(name) for name in ("partial_max", "partial_sum", "partial_O")))
    told = contract(SPLIT_BLOCK_K, "float32") | {"splits": SPLITS}
    return stages | merged(partials, q.dtype, merge or Merge()) | {"contract": told}


def split_k(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Flash-Decoding in six splits of whole tiles."""
    return six_splits(q, k, v, scale, causal)


def chunks(
    q: Array,
    k: Array,
    v: Array,
    scale: float,
    causal: bool,
    end: Callable[[Array, int], int] = lambda j, seqlen_k: int(j[-1]) + 1,
    merge: Merge | None = None,
) -> Stages:
    """Chunks of 40 keys, read in rows of 16; `end` says of a chunk's own keys where those end that it does not mask."""
    shape = Shape.of(q, k, causal)
    dtype = q.dtype
    q, k, v = float32(q, np.repeat(k, shape.group, 1), np.repeat(v, shape.group, 1))
    own = list(blocks(shape.seqlen_k, CHUNK))
    rows = shape.batch, shape.heads, len(own), shape.seqlen_q
    scores = unwritten(shape.batch, shape.heads, shape.seqlen_q, shape.seqlen_k)
    maxima, sums, partials = unwritten(*rows), unwritten(*rows), unwritten(*rows, shape.head_dim)
    for n, j in enumerate(own):
        read = np.arange(j[0], min(j[0] + cdiv(len(j), READ) * READ, shape.seqlen_k))
        s = q @ np.swapaxes(k[:, :, read], 2, 3) * np.float32(scale)
        within = read < end(j, shape.seqlen_k)
        s = np.where(shape.visible(np.arange(shape.seqlen_q), read) & within, s, NO_KEY)
        maxima[:, :, n] = s.max(-1)
        p = np.exp(shifted(s, maxima[:, :, n]))
        scores[..., j], sums[:, :, n], partials[:, :, n] = s[..., : len(j)], p.sum(-1), p @ v[:, :, read]
    told = contract(None, "float32") | {"split_bounds": [0, *(int(j[-1]) + 1 for j in own)]}
    return {"scores": scores} | merged((maxima, sums, partials), dtype, merge or Merge()) | {"contract": told}


def decode(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Flash-Decoding in chunks of 40 keys, which tells no more than its scores and what it merges."""
    return chunks(q, k, v, scale, causal)
