"""Faults of where q, k and v are read: heads, strides, pages, loop bounds, widths of integers."""

import numpy as np

from campaigns.independent.benign import backwards
from campaigns.independent.eager import Passes, eager, two_pass
from campaigns.independent.fault import (
    Independent,
    Options,
    grouped,
    keys,
    recorded,
    visible_keys,
)
from campaigns.independent.online import BLOCK_K, BLOCK_Q, Steps, descending, flash, one_run
from campaigns.independent.shape import Array, Shape, Stages, Tile, blocks, cdiv
from campaigns.independent.split import six_splits, split_k

FAULTS: dict[str, Independent] = {}
PAGE = 16


@recorded(FAULTS, flash, "qk acc", lambda o: grouped(o) and o["kv_heads"] > 1, "fla#384")
def kv_head_by_modulo(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Query heads take kv heads in turn (h % kv_heads), instead of in groups."""
    return one_run(q, k, v, scale, causal, Steps(kv_head=lambda b, h, shape: (b, h % shape.kv_heads)))


@recorded(FAULTS, flash, "qk acc", lambda o: grouped(o) and o["kv_heads"] > 1, "aiter#612")
def group_of_one_head_less(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The size of a group is computed from the last head's index instead of the number of heads."""

    def kv_head(b: int, h: int, shape: Shape) -> tuple[int, int]:
        group = max((shape.heads - 1) // shape.kv_heads, 1)
        return b, min(h // group, shape.kv_heads - 1)

    return one_run(q, k, v, scale, causal, Steps(kv_head=kv_head))


@recorded(FAULTS, split_k, "qk acc", lambda o: o["batch"] > 1 and o["heads"] > 1, "cutlass#2291")
def batch_and_head_swapped(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The index of a block is taken apart with the batch innermost, to find k and v."""

    def kv_head(b: int, h: int, shape: Shape) -> tuple[int, int]:
        h, b = divmod(b * shape.heads + h, shape.batch)
        return b, h // shape.group

    return six_splits(q, k, v, scale, causal, Steps(kv_head=kv_head))


@recorded(FAULTS, split_k, "qk acc", lambda o: o["batch"] > 1, "mlx#4431")
def no_offset_of_the_batch(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The addresses of k and v lack the offset of the batch."""
    return six_splits(q, k, v, scale, causal, Steps(kv_head=lambda b, h, shape: (0, h // shape.group)))


@recorded(FAULTS, flash, "acc", lambda o: o["kv_heads"] > 1 and o["seqlen_k"] > 1, "mlx#1558")
def v_with_strides_of_k(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """v, whose heads are interleaved in memory, is read with the strides of k, whose heads are not."""
    return one_run(q, k, np.swapaxes(v, 1, 2).reshape(v.shape), scale, causal)


@recorded(FAULTS, flash, "qk", lambda o: cdiv(o["seqlen_q"], BLOCK_K) < cdiv(o["seqlen_k"], BLOCK_K), "jax bd9a10e4eb")
def as_many_tiles_as_queries_have(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The loop over key tiles ends at the length of the queries."""
    run = range(cdiv(min(q.shape[2], k.shape[2]), BLOCK_K))
    return one_run(q, k, v, scale, causal, run=run)


@recorded(FAULTS, flash, "acc", keys(PAGE), "TRT-LLM#18244")
def page_of_v_hoisted(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The page of v is looked up once a tile, which has two pages: the second half of it reads the first page."""

    def v_rows(tile: Tile) -> Array:
        return tile.j[0] + (tile.j - tile.j[0]) % PAGE

    return one_run(q, k, v, scale, causal, Steps(v_rows=v_rows))


def a_tile_is_skipped(options: Options) -> bool:
    before_last = (cdiv(options["seqlen_k"], BLOCK_K) - 1) * BLOCK_K
    ends = [int(i[-1]) for i in blocks(options["seqlen_q"], BLOCK_Q)]
    return any(0 < visible_keys(options, end) <= before_last for end in ends)


@recorded(FAULTS, backwards, "qk acc", a_tile_is_skipped, "llama.cpp#14916")
def pointers_stay_at_a_skipped_tile(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """A tile without a visible key is left by `continue`, past the line that moves the pointers to the next one."""

    def rows(tile: Tile) -> Array:
        shape = tile.shape
        starts = np.arange(tile.t + 1, cdiv(shape.seqlen_k, BLOCK_K)) * BLOCK_K
        skipped = np.sum(starts > tile.i[-1] + shape.offset) if shape.causal else 0
        return np.minimum(tile.j + skipped * BLOCK_K, shape.seqlen_k - 1)

    return descending(q, k, v, scale, causal, Steps(k_rows=rows, v_rows=rows))


@recorded(FAULTS, flash, "qk", lambda o: o["head_dim"] % 16 != 0, "flash-attn#2745")
def whole_vectors_of_the_head(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """A row is loaded in vectors of 16 numbers, as many as fit in whole: the rest is not in the product."""

    def dot(q: Array, k: Array) -> Array:
        whole = q.shape[1] // 16 * 16
        return np.asarray(q[:, :whole] @ k[:, :whole].T)

    return one_run(q, k, v, scale, causal, Steps(dot=dot))


@recorded(FAULTS, eager, "scores", lambda o: o["seqlen_q"] * o["seqlen_k"] > 2**15, "aiter#4774")
def offsets_of_16_bits(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Offsets into the matrix of scores wrap to below 0, where the guard of the bounds returns a 0."""

    def score(qk: Array, scale: float, i: Array) -> Array:
        offset = (i[:, None] * qk.shape[1] + np.arange(qk.shape[1])).astype(np.int16)
        return np.where(offset < 0, np.float32(0), qk * np.float32(scale))

    return two_pass(q, k, v, scale, causal, Passes(score=score))


@recorded(FAULTS, split_k, "acc", keys(2), "vllm#46329", known=False)
def rows_of_v_swizzled(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Of every four rows of v the two in the middle change places, as a swizzled store has them."""

    def v_rows(tile: Tile) -> Array:
        step = np.select([tile.j % 4 == 1, tile.j % 4 == 2], [1, -1], 0)
        return np.minimum(tile.j + step, tile.shape.seqlen_k - 1)

    return six_splits(q, k, v, scale, causal, Steps(v_rows=v_rows))
