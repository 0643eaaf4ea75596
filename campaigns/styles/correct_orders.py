"""Correct kernels of group order: tiles descending or in an order of their own, masked ones not visited."""

from collections.abc import Callable

import numpy as np

from campaigns.styles import pieces
from campaigns.styles.pieces import F32, INF, LOG2E, Tiles, Weigh
from campaigns.styles.style import ALL, CAST, Array, Stages, Style


def _in_order(
    q: Array, k: Array, v: Array, scale: float, causal: bool, block: int, order: Callable[[int], list[int]]
) -> Stages:
    x, v32 = pieces.masked_scores(q, k, v, causal, F32(scale))
    visits = pieces.tiles(k.shape[2], block)
    dumps = pieces.slots(x, v.shape[3], len(visits))
    m, l, o = pieces.online(x, v32, [visits[t] for t in order(len(visits))], dumps, cast=q.dtype)
    return {"scores": x, **dumps, "out": pieces.quotient(o, l).astype(q.dtype), "lse": pieces.lse_of(m, l)}


def descending(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """All tiles of 64 from the last to the first: the first ones visited may be fully masked."""
    return _in_order(q, k, v, scale, causal, 64, lambda n: list(range(n))[::-1])


def _even_then_odd(n: int) -> list[int]:
    return [*range(0, n, 2), *range(1, n, 2)]


def even_then_odd(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Tiles of 32, those of even number first, as two warpgroups share them."""
    return _in_order(q, k, v, scale, causal, 32, _even_then_odd)


def _sink_first(n: int) -> list[int]:
    return [0, *range(n - 1, 0, -1)]


def sink_first(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Tiles of 16: the first, which holds the attention sink, then the others from the last."""
    return _in_order(q, k, v, scale, causal, 16, _sink_first)


def _from_the_middle(n: int) -> list[int]:
    return [*range(n // 2, n), *range(n // 2)]


def from_the_middle(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Tiles of 64 from the middle on and around, as a rank of a ring sees them."""
    return _in_order(q, k, v, scale, causal, 64, _from_the_middle)


def _skipping(
    q: Array,
    k: Array,
    v: Array,
    scale: np.floating,
    causal: bool,
    blocks: tuple[int, int],
    fill: float,
    step: int = 1,
    weigh: Weigh = pieces.by_exp,
) -> tuple[Stages, Array, Array]:
    """Stages whose slots of tiles that a block of rows does not visit hold `fill`; the last maximum and sum."""
    q32, k32, v32 = pieces.widened(q, k, v)
    seen = pieces.visible(q, k, causal)
    visits = pieces.tiles(k.shape[2], blocks[1])
    b, h, rows, dim = q.shape
    dumps = pieces.slots(np.empty((b, h, rows, k.shape[2]), F32), dim, len(visits), fill)
    dumps["scores"] = np.full((b, h, rows, k.shape[2]), fill, F32)
    m, l, o = np.empty((b, h, rows), F32), np.empty((b, h, rows), F32), np.empty((b, h, rows, dim), F32)
    for first in range(0, rows, blocks[0]):
        some = slice(first, first + blocks[0])
        last = int(
            np.flatnonzero(np.any(seen[some], axis=0)).max(initial=-1)
        )  # the last key that any of these rows sees
        near = [x for x in visits if x[1] <= last][::step]
        x = np.full((b, h, *seen[some].shape), -INF)
        for _, lo, hi in near:
            x[..., lo:hi] = pieces.masked(pieces.product(q32[:, :, some], k32[:, :, lo:hi]) * scale, seen[some, lo:hi])
            dumps["scores"][:, :, some, lo:hi] = x[..., lo:hi]
        views = {name: a[:, :, some] for name, a in dumps.items()}
        m[:, :, some], l[:, :, some], o[:, :, some] = pieces.online(x, v32, near, views, cast=q.dtype, weigh=weigh)
    return {**dumps, "out": pieces.quotient(o, l).astype(q.dtype)}, m, l


def skips_to_diagonal(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Blocks of 64 rows stop at their last visible tile of 64; the other slots are NaN. Rows without keys: no tile."""
    stages, m, l = _skipping(q, k, v, F32(scale), causal, (64, 64), np.nan)
    del stages["probs_cast"]
    return {**stages, "lse": pieces.lse_of(m, l)}


def skips_stale(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Blocks of 32 rows and tiles of 16 in base 2; slots that are not visited hold what was there before, here 7."""
    stages, m, l = _skipping(q, k, v, F32(scale) * LOG2E, causal, (32, 16), 7.0, weigh=pieces.by_exp2)
    del stages["probs_cast"]
    return {**stages, "lse": pieces.lse_of_base2(m, l)}


def skips_descending(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Blocks of 128 rows go from their last visible tile of 64 down to the first, as FlashAttention-2 does."""
    stages, m, l = _skipping(q, k, v, F32(scale), causal, (128, 64), np.nan, step=-1)
    kept = ("scores", "row_max", "correction", "row_sum", "acc", "out")
    return {**{name: stages[name] for name in kept}, "lse": pieces.lse_of(m, l)}


def skips_short_rows(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Blocks of 8 rows stop at their last visible tile of 32, as decode kernels do; zeros elsewhere."""
    stages, m, l = _skipping(q, k, v, F32(scale), causal, (8, 32), 0.0)
    kept = ("row_max", "row_sum", "acc", "out")
    return {**{name: stages[name] for name in kept}, "lse": pieces.lse_of(m, l)}


def splits_descending(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """3 splits of tiles of 32, each from its last tile to its first."""
    x, v32 = pieces.masked_scores(q, k, v, causal, F32(scale))
    dumps = pieces.slots(x, v.shape[3], -(-k.shape[2] // 32))
    visits: list[Tiles] = [some[::-1] for some in pieces.in_splits(k.shape[2], 32, 3)]
    parts = pieces.partials([pieces.online(x, v32, some, dumps, cast=q.dtype) for some in visits])
    merge, o, total = pieces.merged(parts)
    out, lse = pieces.quotient(o, total).astype(q.dtype), pieces.lse_of(merge["merge_max"], total)
    return {"scores": x, **dumps, **parts, **merge, "out": out, "lse": lse}


def _listed(block: int, order: Callable[[int], list[int]]) -> Callable[[Array, Array], list[int]]:
    return lambda q, k: order(-(-k.shape[2] // block))


_SKIPS = {"skips_masked_tiles": True}

STYLES = tuple(
    Style(function, "order", ALL, units, CAST, why)
    for function, units, why in (
        (descending, {"block_k": 64, "tile_order": "descending"}, "FlashAttention-2 and 3 go from n_block_max down."),
        (
            even_then_odd,
            {"block_k": 32, "tile_order": _listed(32, _even_then_odd)},
            "Kernels that interleave tiles between two warpgroups (FlashAttention-3's ping-pong, serialised).",
        ),
        (
            sink_first,
            {"block_k": 16, "tile_order": _listed(16, _sink_first)},
            "StreamingLLM-like kernels load the sink tokens first.",
        ),
        (
            from_the_middle,
            {"block_k": 64, "tile_order": _listed(64, _from_the_middle)},
            "Ring attention: each rank begins with its own keys.",
        ),
        (skips_to_diagonal, {"block_k": 64, **_SKIPS}, "Triton's tutorial stops at the diagonal tile."),
        (
            skips_stale,
            {"block_k": 16, "base2": True, **_SKIPS},
            "Kernels that dump into buffers of an earlier run and skip masked tiles.",
        ),
        (
            skips_descending,
            {"block_k": 64, "tile_order": "descending", **_SKIPS},
            "FlashAttention-2: descending from the last tile that the row block sees.",
        ),
        (skips_short_rows, {"block_k": 32, **_SKIPS}, "Decode kernels walk the length of their own few rows."),
        (
            splits_descending,
            {"block_k": 32, "splits": 3, "tile_order": "descending"},
            "FlashAttention-2's split-KV kernel goes down within each split.",
        ),
    )
)
