"""Correct kernels of group exponent whose splits are unequal, by the keys where they begin and end."""

from campaigns.styles import pieces
from campaigns.styles.pieces import F32, LOG2E, Tiles
from campaigns.styles.style import ALL, CAST, IEEE, SIXTEEN, Array, Stages, Style


def _bounds(n: int, inner: tuple[int, ...]) -> list[int]:
    """0, those of the inner bounds that lie within n keys, and n, each once."""
    return sorted({0, *(x for x in inner if 0 < x < n), n})


def _thirds(q: Array, k: Array) -> list[int]:
    return _bounds(k.shape[2], (k.shape[2] // 3,))


def _doubling(q: Array, k: Array) -> list[int]:
    return _bounds(k.shape[2], (8, 24, 56, 120, 248))


def _long_head(q: Array, k: Array) -> list[int]:
    return _bounds(k.shape[2], (k.shape[2] * 3 // 4 // 16 * 16, k.shape[2] * 7 // 8 // 16 * 16))


def _work_tiles(q: Array, k: Array) -> list[int]:
    tile_count = -(-k.shape[2] // 32)
    return _bounds(k.shape[2], tuple(32 * (tile_count * i * i // 25) for i in range(1, 5)))


def _whole(x: Array, v: Array, cast: object, base2: bool) -> tuple[Array, Array, Array]:
    """A split in one pass: its maximum, sum and unnormalised output."""
    m = x.max(-1)
    p = (pieces.by_exp2 if base2 else pieces.by_exp)(x, m[..., None])
    return m, p.sum(-1), pieces.nearest(p, cast) @ v


def thirds(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Two splits, of one third and two thirds of the keys, each in one pass."""
    q32, k32, v32 = pieces.widened(q, k, v)
    qk = pieces.product(q32, k32)
    x = pieces.masked(qk * F32(scale), pieces.visible(q, k, causal))
    ends = _thirds(q, k)
    ranges = [slice(lo, hi) for lo, hi in zip(ends, ends[1:], strict=False)]
    parts = pieces.partials([_whole(x[..., s], v32[..., s, :], F32, False) for s in ranges])
    merge, o, total = pieces.merged(parts)
    out = pieces.quotient(o, total).astype(q.dtype)
    return {"qk": qk, "scores": x, **parts, **merge, "out": out, "lse": pieces.lse_of(merge["merge_max"], total)}


def doubling_splits(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Splits of 8, 16, 32, ... keys, in base 2, probs cast."""
    x, v32 = pieces.masked_scores(q, k, v, causal, F32(scale) * LOG2E)
    ends = _doubling(q, k)
    ranges = [slice(lo, hi) for lo, hi in zip(ends, ends[1:], strict=False)]
    parts = pieces.partials([_whole(x[..., s], v32[..., s, :], q.dtype, True) for s in ranges])
    merge, o, total = pieces.merged(parts, pieces.by_exp2)
    out = pieces.quotient(o, total).astype(q.dtype)
    return {"scores": x, **parts, **merge, "out": out, "lse": pieces.lse_of_base2(merge["merge_max"], total)}


def _tiles_between(n: int, block: int, ends: list[int]) -> list[Tiles]:
    """The tiles of each split, whose bounds are bounds of tiles."""
    return [[x for x in pieces.tiles(n, block) if lo <= x[1] < hi] for lo, hi in zip(ends, ends[1:], strict=False)]


def long_head(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Up to three splits: three quarters of the keys, an eighth, and the rest, at bounds of tiles of 16."""
    x, v32 = pieces.masked_scores(q, k, v, causal, F32(scale))
    dumps = pieces.slots(x, v.shape[3], -(-k.shape[2] // 16))
    visits = _tiles_between(k.shape[2], 16, _long_head(q, k))
    parts = pieces.partials([pieces.online(x, v32, some, dumps, cast=q.dtype) for some in visits])
    merge, o, total = pieces.merged(parts)
    out = pieces.quotient(o, total).astype(q.dtype)
    return {"scores": x, **dumps, **parts, **merge, "out": out, "lse": pieces.lse_of(merge["merge_max"], total)}


def work_tiles(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Splits that grow, as a scheduler gives late workers more tiles; dumps partials and merge alone."""
    x, v32 = pieces.masked_scores(q, k, v, causal, F32(scale) * LOG2E)
    dumps = pieces.slots(x, v.shape[3], -(-k.shape[2] // 32))
    visits = _tiles_between(k.shape[2], 32, _work_tiles(q, k))
    parts = pieces.partials([pieces.online(x, v32, some, dumps, cast=q.dtype, weigh=pieces.by_exp2) for some in visits])
    merge, o, total = pieces.merged(parts, pieces.by_exp2)
    out = pieces.quotient(o, total).astype(q.dtype)
    return {**parts, **merge, "out": out, "lse": pieces.lse_of_base2(merge["merge_max"], total)}


STYLES = (
    Style(
        thirds,
        "exponent",
        ALL,
        {"split_bounds": _thirds},
        IEEE,
        "FlashInfer's and FlashMLA's plans cut a request where the work of a block ends, not at equal lengths.",
    ),
    Style(
        doubling_splits,
        "exponent",
        SIXTEEN,
        {"split_bounds": _doubling, "base2": True},
        CAST,
        "Cascade attention merges levels of very different lengths (FlashInfer, Hydragen, DeFT).",
    ),
    Style(
        long_head,
        "exponent",
        ALL,
        {"split_bounds": _long_head, "block_k": 16},
        CAST,
        "A long shared prefix and short suffixes, as vLLM's cascade attention splits them.",
    ),
    Style(
        work_tiles,
        "exponent",
        ALL,
        {"split_bounds": _work_tiles, "block_k": 32, "base2": True},
        CAST,
        "Stream-K and LeanAttention give each worker a run of tiles of its own length.",
    ),
)
