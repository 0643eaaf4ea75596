"""Faults of what a query sees: the causal bound, its alignment, tiles skipped, padding."""

import numpy as np

from campaigns.independent.eager import Passes, eager, two_pass
from campaigns.independent.fault import (
    Independent,
    Options,
    causal,
    grouped,
    queries,
    recorded,
    rows_without_keys,
    visible_keys,
)
from campaigns.independent.online import BLOCK_K, Steps, flash, one_run
from campaigns.independent.packed import BLOCK_M, BLOCK_N, Packed, base_two, packed
from campaigns.independent.shape import Array, Shape, Stages, Tile, cdiv
from campaigns.independent.split import six_splits, split_k

FAULTS: dict[str, Independent] = {}


@recorded(FAULTS, split_k, "scores", causal, "transformers#39408")
def diagonal_masked(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """A query does not see the key at its own position: < for <=."""
    return six_splits(q, k, v, scale, causal, Steps(visible=lambda tile: tile.shape.visible(tile.i, tile.j + 1)))


@recorded(FAULTS, flash, "scores", lambda o: causal(o) and o["seqlen_q"] != o["seqlen_k"], "flash-attn#436")
def mask_from_the_top_left(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The causal bound counts queries from 0 instead of aligning the last query with the last key."""

    def visible(tile: Tile) -> Array:
        return tile.shape.visible(tile.i - tile.shape.offset, tile.j)

    return one_run(q, k, v, scale, causal, Steps(visible=visible))


@recorded(FAULTS, flash, "scores", rows_without_keys, "pytorch#193632")
def unsigned_offset(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The offset of the causal bound is unsigned, and wraps where there are more queries than keys."""

    def visible(tile: Tile) -> Array:
        offset = tile.shape.offset
        return tile.shape.visible(tile.i - offset + offset % 2**32, tile.j)

    return one_run(q, k, v, scale, causal, Steps(visible=visible))


@recorded(FAULTS, split_k, "scores", lambda o: causal(o) and grouped(o) and queries(1)(o), "MSLK#263")
def flag_lost_with_groups(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The launch of grouped heads leaves the causal flag at its default, false."""
    return six_splits(q, k, v, scale, causal and q.shape[1] == k.shape[1])


@recorded(FAULTS, flash, "scores", lambda o: causal(o) and queries(1)(o) and o["seqlen_k"] > 128, "mlx#3361")
def positions_of_8_bits(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Positions are compared in an integer too narrow for them, so that those from 128 on are negative."""

    def visible(tile: Tile) -> Array:
        position = (tile.i + tile.shape.offset).astype(np.int8)
        return tile.shape.visible(position.astype(int) - tile.shape.offset, tile.j.astype(np.int8).astype(int))

    return one_run(q, k, v, scale, causal, Steps(visible=visible))


def tile_ends(options: Options) -> list[tuple[int, int, int]]:
    """Of each tile of packed rows: its first query, the first query that it has not in full, and that of the next."""
    group = options["heads"] // options["kv_heads"]
    ends = [(r, min(r + BLOCK_M, options["seqlen_q"] * group)) for r in range(0, options["seqlen_q"] * group, BLOCK_M)]
    return [(start // group, end // group, cdiv(end, group)) for start, end in ends]


def key_tiles(options: Options, end: int) -> int:
    """Key tiles that queries up to `end` need."""
    return max(cdiv(visible_keys(options, end - 1), BLOCK_N), 0)


@recorded(
    FAULTS,
    packed,
    "scores",
    lambda o: causal(o) and any(key_tiles(o, whole) < key_tiles(o, end) for _, whole, end in tile_ends(o)),
    "flashinfer#1148",
)
def last_query_of_packed_rows_floored(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The last query of a tile of packed rows is a floor division: one that the tile ends within is not counted."""

    def tiles(r: Array, shape: Shape) -> int:
        return cdiv((int(r[-1]) + 1) // shape.group + shape.offset, BLOCK_N)

    return base_two(q, k, v, scale, causal, Packed(tiles=tiles))


@recorded(
    FAULTS,
    packed,
    "scores",
    lambda o: causal(o) and any(key_tiles(o, first + 1) < key_tiles(o, end) for first, _, end in tile_ends(o)),
    "jax 7d27c319b2",
)
def causal_bound_of_the_first_row(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The loop over keys ends at the tile of the first row's diagonal, which holds for square tiles alone."""

    def tiles(r: Array, shape: Shape) -> int:
        return (int(r[0]) // shape.group + shape.offset) // BLOCK_N + 1

    return base_two(q, k, v, scale, causal, Packed(tiles=tiles))


@recorded(FAULTS, eager, "probs", rows_without_keys, "onnxruntime#28904")
def mean_of_v(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Probabilities of masked keys are left to the finite sentinel, which is its own maximum in a row without keys."""
    return two_pass(q, k, v, scale, causal, Passes(prob=lambda s, m, keep: np.exp(s - m[:, None])))


@recorded(FAULTS, flash, "row_sum", lambda o: not causal(o) and o["seqlen_k"] % BLOCK_K != 0, "NNkernels.jl#16")
def padding_in_the_sum(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Without a causal mask the zeros behind the last key are scores of 0 to the row sum."""

    def tile_sum(p: Array, m: Array, tile: Tile) -> Array:
        if tile.shape.causal:
            return np.asarray(p.sum(-1))
        return np.asarray(p.sum(-1) + np.float32(BLOCK_K - len(tile.j)) * np.exp(-m))

    return one_run(q, k, v, scale, causal, Steps(tile_sum=tile_sum))
