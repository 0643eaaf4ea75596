"""Faults of maxima, exponentials, sums and the state that a row carries from tile to tile."""

import numpy as np

from campaigns.independent.benign import backwards
from campaigns.independent.eager import ROWS, Passes, eager, two_pass
from campaigns.independent.fault import (
    Independent,
    Options,
    always,
    enough,
    queries,
    recorded,
    rows_without_keys,
    visible_keys,
)
from campaigns.independent.online import BLOCK_K, Steps, descending, flash, one_run
from campaigns.independent.packed import BLOCK_N, Packed, base_two, packed
from campaigns.independent.shape import NO_KEY, Array, Stages, Tile, cdiv, shifted
from campaigns.independent.split import six_splits, split_k

FAULTS: dict[str, Independent] = {}
WARP = 16


@recorded(FAULTS, eager, "probs", always, "HabanaAI/vllm-fork#275")
def fixed_maximum(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Probabilities subtract a fixed 10 from scores, and not their row's maximum."""
    return two_pass(q, k, v, scale, causal, Passes(prob=lambda s, m, keep: np.exp(s - np.float32(10)) * keep))


@recorded(FAULTS, flash, "probs", always, "tt-metal#51278")
def last_tile_not_shifted(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """In the last tile the maximum is not subtracted from the scores."""

    def prob(s: Array, m: Array, tile: Tile) -> Array:
        last = tile.j[-1] == tile.shape.seqlen_k - 1
        return np.exp(s if last else shifted(s, m))

    return one_run(q, k, v, scale, causal, Steps(prob=prob))


@recorded(FAULTS, flash, "row_max", enough(8, 2 * WARP), "llama.cpp#24451")
def maximum_of_one_warp(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Of the two warps that share a row's tile, the first one's maximum alone is read."""
    new_max = Steps(new_max=lambda m, s: np.maximum(m, s[:, :WARP].max(-1)))
    return one_run(q, k, v, scale, causal, new_max)


@recorded(FAULTS, split_k, "row_sum", enough(3, 3), "flashinfer 6c6417903")
def sum_of_two_rows(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The sum over lanes takes one step too many, and adds the sum of the row that has the warp's other half."""

    def tile_sum(p: Array, m: Array, tile: Tile) -> Array:
        own = p.sum(-1)
        return np.asarray(own + np.append(own, np.float32(0))[np.arange(len(own)) ^ 1])

    return six_splits(q, k, v, scale, causal, Steps(tile_sum=tile_sum))


def last_tile_masked(options: Options) -> bool:
    return visible_keys(options, 0) <= (cdiv(options["seqlen_k"], BLOCK_K) - 1) * BLOCK_K


@recorded(FAULTS, backwards, "row_max", last_tile_masked, "flash-attn#2174")
def guarded_maximum_kept(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The 0 that guards exp in a row without a key so far is kept for its maximum, which stays at 0 or above."""

    def new_max(m: Array, s: Array) -> Array:
        highest = np.maximum(m, s.max(-1))
        return np.where(highest == NO_KEY, np.float32(0), highest)

    return descending(q, k, v, scale, causal, Steps(new_max=new_max))


@recorded(FAULTS, flash, "row_max correction row_sum", rows_without_keys, "flashinfer#4267")
def finite_first_maximum(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The state begins at a maximum of -5e4 and a sum of 1, which decay in rows that see a key alone."""
    return one_run(q, k, v, scale, causal, Steps(initial_max=-5e4, initial_sum=1.0))


@recorded(FAULTS, flash, "row_sum", always, "flashinfer#27")
def sum_begins_at_one(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The first tile adds to a sum of 1 that nothing rescales: a phantom key at the tile's maximum."""
    tile_sum = Steps(tile_sum=lambda p, m, tile: p.sum(-1) + np.float32(tile.t == 0))
    return one_run(q, k, v, scale, causal, tile_sum)


@recorded(FAULTS, flash, "correction", rows_without_keys, "llama.cpp#12776")
def rescale_not_guarded(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The rescale of a row without a key so far is exp(-inf - -inf)."""
    with np.errstate(invalid="ignore"):
        return one_run(q, k, v, scale, causal, Steps(rescale=lambda m, new: np.exp(m - new)))


@recorded(FAULTS, packed, "correction", enough(8, 2 * BLOCK_N), "flashinfer#787")
def rescale_in_base_e(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The rescale is exp of a difference of maxima in units of log2, where exp2 is due."""
    return base_two(q, k, v, scale, causal, Packed(rescale=np.exp))


@recorded(FAULTS, packed, "scores", always, "flashinfer#787")
def no_log2e(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """exp2 takes scores to which log2(e) was not applied."""
    return base_two(q, k, v, scale, causal, Packed(scaled=lambda q, scale: q * np.float32(scale)))


def scale_is_another(options: Options) -> bool:
    usual = options["head_dim"] ** -0.5
    return options["scale"] is not None and abs(options["scale"] - usual) > 1e-6 * usual


@recorded(FAULTS, flash, "scores", scale_is_another, "flashinfer#1072")
def scale_of_the_head(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The kernel takes 1 / sqrt(head_dim) for the scale, whatever it was given."""
    return one_run(q, k, v, q.shape[3] ** -0.5, causal)


@recorded(FAULTS, eager, "acc", lambda o: queries(ROWS)(o) and visible_keys(o, 0) > 0, "flashinfer#5029")
def acc_not_reset(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The product with v is added to what the block of queries before left there."""
    return two_pass(q, k, v, scale, causal, Passes(product=lambda p, v, before: before + p @ v))


@recorded(FAULTS, flash, "scores", always, "flashinfer#4014", known=False)
def softcap_of_another_call(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Scores pass through the softcap of 50 of a kernel that was compiled for another call."""

    def score(qk: Array, scale: float) -> Array:
        return np.asarray(np.float32(50) * np.tanh(qk * np.float32(scale) / np.float32(50)))

    return one_run(q, k, v, scale, causal, Steps(score=score))


@recorded(FAULTS, packed, "probs", enough(32, 32), "flash-attn#2595", known=False)
def straight_exp_of_some_lanes(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Every fourth lane has a straight line for exp2 between -1 and -1/2."""

    def prob(x: Array) -> Array:
        straight = (np.arange(x.shape[1]) % 4 == 3) & (x > -1) & (x < -0.5)
        return np.where(straight, 1 + np.where(straight, x, np.float32(0)) / 2, np.exp2(x)).astype(np.float32)

    return base_two(q, k, v, scale, causal, Packed(prob=prob))
