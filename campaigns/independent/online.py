"""Tiled online softmax: each block of queries sweeps over tiles of keys, once for all or once in each split."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from campaigns.independent.shape import (
    NO_KEY,
    Array,
    Shape,
    Stages,
    Tile,
    blocks,
    cdiv,
    divided,
    float32,
    log_sum,
    shifted,
    unwritten,
)

BLOCK_Q = 32
BLOCK_K = 32


@dataclass(frozen=True)
class Steps:
    """The lines of the inner loop, each of which a kernel may have another of."""

    kv_head: Callable[[int, int, Shape], tuple[int, int]] = lambda b, h, shape: (b, h // shape.group)
    k_rows: Callable[[Tile], Array] = lambda tile: tile.j
    v_rows: Callable[[Tile], Array] = lambda tile: tile.j
    dot: Callable[[Array, Array], Array] = lambda q, k: q @ k.T
    score: Callable[[Array, float], Array] = lambda qk, scale: qk * np.float32(scale)
    visible: Callable[[Tile], Array] = lambda tile: tile.shape.visible(tile.i, tile.j)
    initial_max: float = -np.inf
    initial_sum: float = 0.0
    new_max: Callable[[Array, Array], Array] = lambda m, s: np.maximum(m, s.max(-1))
    rescale: Callable[[Array, Array], Array] = lambda m, new: np.exp(shifted(m[:, None], new)[:, 0])
    prob: Callable[[Array, Array, Tile], Array] = lambda s, m, tile: np.exp(shifted(s, m))
    tile_sum: Callable[[Array, Array, Tile], Array] = lambda p, m, tile: p.sum(-1)
    cast: Callable[[Array], Array] = lambda p: p.astype(np.float16)
    accumulate: Callable[[Array, Array, Array, Array], Array] = lambda acc, alpha, p, v: alpha[:, None] * acc + p @ v


def sweep(
    q: Array,
    k: Array,
    v: Array,
    scale: float,
    causal: bool,
    steps: Steps,
    runs: Sequence[Sequence[int]],
    block_q: int = BLOCK_Q,
    block_k: int = BLOCK_K,
    cast: bool = False,
) -> Stages:
    """Stages of sweeps over runs of key tiles, each run in its order and from an empty state, and what each run leaves.

    `cast`: whether probabilities meet v in float16.
    """
    shape = Shape.of(q, k, causal)
    q, k, v = float32(q, k, v)
    heads, tiles = (shape.batch, shape.heads), list(blocks(shape.seqlen_k, block_k))
    pairs = {
        name: unwritten(*heads, shape.seqlen_q, shape.seqlen_k) for name in ("qk", "scores", "probs", "probs_cast")
    }
    rows = {name: unwritten(*heads, shape.seqlen_q, len(tiles)) for name in ("row_max", "correction", "row_sum")}
    accs = unwritten(*heads, shape.seqlen_q, len(tiles), shape.head_dim)
    maxima, sums = (unwritten(*heads, len(runs), shape.seqlen_q) for _ in range(2))
    partials = unwritten(*heads, len(runs), shape.seqlen_q, shape.head_dim)
    everywhere = product(range(shape.batch), range(shape.heads), blocks(shape.seqlen_q, block_q), enumerate(runs))
    for b, h, i, (n, run) in everywhere:
        kv = steps.kv_head(b, h, shape)
        m, l = np.full(len(i), steps.initial_max, np.float32), np.full(len(i), steps.initial_sum, np.float32)
        acc = np.zeros((len(i), shape.head_dim), np.float32)
        for t in run:
            tile = Tile(shape, t, i, tiles[t])
            qk = steps.dot(q[b, h, i], k[kv][steps.k_rows(tile)])
            s = np.where(steps.visible(tile), steps.score(qk, scale), NO_KEY)
            new = steps.new_max(m, s)
            alpha = steps.rescale(m, new)
            p = steps.prob(s, new, tile)
            met = steps.cast(p).astype(np.float32) if cast else p
            l = alpha * l + steps.tile_sum(p, new, tile)
            acc = steps.accumulate(acc, alpha, met, v[kv][steps.v_rows(tile)])
            m = new
            for name, part in zip(pairs, (qk, s, p, met), strict=True):
                pairs[name][b, h][np.ix_(i, tile.j)] = part
            for name, part in zip(rows, (m, alpha, l), strict=True):
                rows[name][b, h, i, t] = part
            accs[b, h, i, t] = acc
        maxima[b, h, n, i], sums[b, h, n, i], partials[b, h, n, i] = m, l, acc
    left = {"partial_max": maxima, "partial_sum": sums, "partial_O": partials}
    return pairs | rows | {"acc": accs} | left


def contract(block_k: int | None, probs_dtype: str) -> dict[str, object]:
    """What the kernels promise of their arithmetic; without `block_k` they have no tiles of equal size."""
    tiles: dict[str, object] = {} if block_k is None else {"block_k": block_k}
    return tiles | {
        "scores_dtype": "float32",
        "scale_in": "scores",
        "probs_dtype": probs_dtype,
        "probs_rounding": "nearest",
        "probs_normalised": False,
        "row_sum_of_cast": False,
        "partials_dtype": "float32",
        "accumulation": "nearest",
        "exp_argument": "difference",
        "exp_ulps_per_x": 0.0,
        "exp_flushes": False,
        "normalisation": "division",
        "out_rounding": "nearest",
        "fast_math": False,
    }


def one_run(
    q: Array,
    k: Array,
    v: Array,
    scale: float,
    causal: bool,
    steps: Steps | None = None,
    run: Sequence[int] | None = None,
    block_q: int = BLOCK_Q,
    block_k: int = BLOCK_K,
) -> Stages:
    """FlashAttention: one sweep over all key tiles, or those of `run`; float16 inputs have float16 probabilities."""
    run = range(cdiv(k.shape[2], block_k)) if run is None else run
    cast = bool(q.dtype == np.float16)
    stages = sweep(q, k, v, scale, causal, steps or Steps(), [run], block_q, block_k, cast)
    m, l, acc = (stages.pop(name)[:, :, 0] for name in ("partial_max", "partial_sum", "partial_O"))
    out = {"out": divided(acc, l, q.dtype), "lse": log_sum(m, l)}
    return stages | out | {"contract": contract(block_k, str(q.dtype))}


def flash(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """FlashAttention in tiles of 32 queries and 32 keys."""
    return one_run(q, k, v, scale, causal)


def descending(q: Array, k: Array, v: Array, scale: float, causal: bool, steps: Steps | None = None) -> Stages:
    """FlashAttention that visits the last key tile first, as kernels do that mask the tiles at the end apart."""
    stages = one_run(q, k, v, scale, causal, steps, range(cdiv(k.shape[2], BLOCK_K))[::-1])
    stages["contract"]["tile_order"] = "descending"
    return stages
