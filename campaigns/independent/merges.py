"""Faults of what splits leave and of how it is merged."""

import numpy as np

from campaigns.independent.fault import (
    Independent,
    Options,
    enough,
    keys,
    queries,
    recorded,
    rows_without_keys,
    visible_keys,
)
from campaigns.independent.shape import NO_KEY, Array, Stages, log_sum
from campaigns.independent.split import (
    CHUNK,
    SPLIT_BLOCK_K,
    SPLITS,
    Merge,
    Partials,
    chunks,
    decode,
    six_splits,
    split_k,
    split_runs,
    weights,
)

FAULTS: dict[str, Independent] = {}
LANES = 4


@recorded(FAULTS, split_k, "merge_weight lse", lambda o: o["scale"] != 1, "cutlass#2366")
def maximum_scaled_again(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The merge applies the scale to the maximum of all splits, which holds it already."""
    again = np.float32(scale)
    merge = Merge(weight=lambda maxima, highest: weights(maxima, again * highest))
    stages = six_splits(q, k, v, scale, causal, merge=merge)
    return stages | {"lse": log_sum(again * stages["merge_max"], stages["merge_sum"])}


@recorded(FAULTS, decode, "merge_sum", keys(CHUNK), "flashinfer 6cbaf6e26")
def denominator_of_the_last_split(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The merge's denominator is assigned where it has to be added to: the last split's remains."""
    with np.errstate(over="ignore"):  # out is what float16 may have no room for
        return chunks(q, k, v, scale, causal, merge=Merge(total=lambda weight, sums: (weight * sums)[:, :, -1]))


def whole_tiles_are_left_out(options: Options) -> bool:
    return queries(7)(options) and options["seqlen_k"] // SPLIT_BLOCK_K > split_runs(options["seqlen_k"])[LANES].start


@recorded(FAULTS, split_k, "merge_max merge_weight", whole_tiles_are_left_out, "mlx#3875")
def splits_beyond_whole_groups_left_out(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The merge goes over splits four at a time, a floor division of their number: the last two are left out."""
    whole = SPLITS // LANES * LANES

    def weight(maxima: Array, highest: Array) -> Array:
        left = np.zeros_like(maxima)
        left[:, :, :whole] = weights(maxima[:, :, :whole], highest)
        return left

    merge = Merge(maximum=lambda maxima: maxima[:, :, :whole].max(2), weight=weight)
    return six_splits(q, k, v, scale, causal, merge=merge)


@recorded(FAULTS, split_k, "partial_max", lambda o: len(split_runs(o["seqlen_k"])[-1]) == 0, "aiter#3641")
def empty_split_has_a_maximum(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """A split without tiles writes a maximum of 0."""
    empty = [not run for run in split_runs(k.shape[2])]

    def store(maxima: Array, sums: Array, partial: Array) -> Partials:
        maxima[:, :, empty] = 0
        return maxima, sums, partial

    return six_splits(q, k, v, scale, causal, store=store)


@recorded(FAULTS, decode, "merge_weight", rows_without_keys, "vllm#28181")
def weights_not_guarded(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """In a row without keys the weight of a split is exp(-inf - -inf)."""
    merge = Merge(weight=lambda maxima, highest: np.exp(maxima - highest[:, :, None]))
    with np.errstate(invalid="ignore"):
        return chunks(q, k, v, scale, causal, merge=merge)


@recorded(FAULTS, split_k, "merge_sum", queries(1), "flash-attn#2388")
def sums_in_another_layout(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The merge reads partial sums as if a query's splits were adjacent, which were written split by split."""

    def total(weight: Array, sums: Array) -> Array:
        batch, heads, splits, rows = sums.shape
        return np.asarray((weight * np.swapaxes(sums.reshape(batch, heads, rows, splits), 2, 3)).sum(2))

    return six_splits(q, k, v, scale, causal, merge=Merge(total=total))


@recorded(FAULTS, split_k, "out", lambda o: o["batch"] > 1, "flash-attn#2550")
def partials_of_the_first_batch(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The stride of the batch in the partial results is 0: all of them merge those of the first."""
    merge = Merge(combine=lambda weight, partial: (weight[..., None] * partial[:1]).sum(2))
    return six_splits(q, k, v, scale, causal, merge=merge)


@recorded(FAULTS, decode, "lse", keys(CHUNK), "flashinfer#58")
def lse_of_each_split(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Each split writes lse to the row's own place, and the last one that has a key leaves its own."""
    stages = decode(q, k, v, scale=scale, causal=causal)
    lse = np.full_like(stages["lse"], NO_KEY)
    for n in range(stages["partial_max"].shape[2]):
        own = log_sum(stages["partial_max"][:, :, n], stages["partial_sum"][:, :, n])
        lse = np.where(own == NO_KEY, lse, own)
    return stages | {"lse": lse}


@recorded(FAULTS, decode, "partial_max partial_sum partial_O", enough(8, CHUNK + 8), "flashinfer#1206")
def end_of_a_chunk_not_masked(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """What a chunk reads is masked behind the last key, and not behind the chunk: it has keys of the next one, too."""
    return chunks(q, k, v, scale, causal, end=lambda j, seqlen_k: seqlen_k)


@recorded(FAULTS, split_k, "partial_O", lambda o: o["heads"] > 1 and enough(2, 2)(o), "mlx#2152")
def partials_by_query_and_head(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Partial outputs are written at query * heads + head, where the buffer has head * queries + query."""

    def store(maxima: Array, sums: Array, partial: Array) -> Partials:
        apart = np.moveaxis(partial, 1, 3)  # [batch, split, query, head, dim], in the order of the writes
        batch, splits, rows, heads, dim = apart.shape
        return maxima, sums, np.moveaxis(apart.reshape(batch, splits, heads, rows, dim), 2, 1)

    return six_splits(q, k, v, scale, causal, store=store)


@recorded(FAULTS, decode, "merge_weight", lambda o: queries(8)(o) and visible_keys(o, 7) > 0, "CK#2934", known=False)
def maximum_of_the_lane_before(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Every eighth query weighs its splits against the maximum of the query before."""

    def weight(maxima: Array, highest: Array) -> Array:
        shuffled = highest.copy()
        shuffled[..., 8::8] = highest[..., 7:-1:8]
        return weights(maxima, shuffled)

    return chunks(q, k, v, scale, causal, merge=Merge(weight=weight))
