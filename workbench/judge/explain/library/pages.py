"""A KV cache in pages: which page is read, and where in it (Kwon et al. 2023, vLLM, arXiv 2309.06180, section 4.1)."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from workbench.judge.explain.hypothesis import Hypothesis, across, altered, of_family
from workbench.judge.explain.library.arithmetic import tile_width
from workbench.judge.explain.library.reach import cut, reaching, rows_read
from workbench.judge.explain.library.scored import asked
from workbench.reference.steps.parameters import by_query_head

#: block_table [b, pages] -> the pages that are read in their place
Tables = Callable[[np.ndarray], np.ndarray]
#: lengths of keys [b] and the size of a page -> the lengths that a kernel takes
Lengths = Callable[[np.ndarray, int], np.ndarray]

_of = of_family("pages")


def hypotheses() -> Iterator[Hypothesis]:
    """All of the family, the plainest first. A part of the batch has pages elsewhere."""
    return across(_hypotheses())


def _hypotheses() -> Iterator[Hypothesis]:
    for name, text, tables in _tables():
        for operands, words in (("kv", ""), ("k", " for k"), ("v", " for v")):
            yield _of(f"{name}-{operands}", f"{text}{words}", *rows_read(partial(_listed, tables), operands))
    for name, text, read in _layouts():
        yield _of(name, text, *rows_read(lambda at, x, read=read: _cut(at, x, read(at, x))))
    text = "v is read to the end of the last page: stale v times a prob of 0 gives NaN (0 * NaN)"
    yield _of("uncut-v", text, *rows_read(_to_the_end, "v"), altered("acc", _behind_all))
    for name, text, lengths in _lengths():
        yield _of(name, text, *reaching(partial(_taken, lengths), _uncut))


def _cache(at: Any, x: str) -> np.ndarray:
    """The cache of k or v, [page, key, kv_h, d]."""
    cache = asked(at, f"pages_{x}")
    return cache.swapaxes(1, 2) if asked(at, "heads_first") else cache


def _gathered(cache: np.ndarray, table: np.ndarray, rows: int) -> np.ndarray:
    """[b, kv_h, rows, d] of the pages that a table lists: -1, of a page that it lacks, is the last of memory, as in
    NumPy and PyTorch; behind memory lie zeros.
    """
    inside = table < len(cache)
    found = np.where(inside[..., None, None, None], cache[np.where(inside, table, 0)], 0.0)
    flat = found.reshape(len(table), -1, *cache.shape[2:])
    missing = max(rows - flat.shape[1], 0)
    return np.moveaxis(np.pad(flat, ((0, 0), (0, missing), (0, 0), (0, 0)))[:, :rows], 2, 1)


def _listed(tables: Tables, at: Any, x: str) -> np.ndarray:
    """Rows gathered through another block table."""
    return _cut(at, x, _gathered(_cache(at, x), tables(asked(at, "block_table")), at.p.keys))


def _taken(lengths: Lengths, at: Any) -> np.ndarray:
    return np.clip(lengths(asked(at, "lengths_k"), _cache(at, "k").shape[1]), 0, at.p.keys)


def _cut(at: Any, x: str, rows: np.ndarray) -> np.ndarray:
    """The rows of each sequence, behind which a kernel loads none."""
    return cut(rows, at.p.inputs[x], asked(at, "lengths_k"))


def _uncut(at: Any, x: str, rows: int | None = None) -> np.ndarray:
    """All rows of all pages of each sequence, at most so many."""
    return _gathered(_cache(at, x), asked(at, "block_table"), rows or at.p.keys)


def _whole_pages(at: Any) -> np.ndarray:
    """Lengths of keys up to the end of the last page, [b]."""
    size = _cache(at, "v").shape[1]
    found: np.ndarray = -(-asked(at, "lengths_k") // size) * size
    return found


def _to_the_end(at: Any, x: str) -> np.ndarray:
    return cut(_uncut(at, x), at.p.inputs[x], _whole_pages(at))


def _behind_all(at: Any, x: np.ndarray) -> np.ndarray:
    """acc with what pages hold behind the last key of the longest sequence, times 0."""
    if at.tiling.keys[at.tile[0]].stop < at.p.keys:
        return x
    ends = _whole_pages(at)
    rows = _uncut(at, "v", int(max(ends.max(), at.p.keys)))
    there = (np.arange(rows.shape[2]) < ends[:, None]) & (np.arange(rows.shape[2]) >= at.p.keys)
    lost = 0 * np.where(there[:, None, :, None], rows, 0.0).sum(2, keepdims=True)
    return np.asarray(x + by_query_head(lost, at.heads))


def _tables() -> Iterator[tuple[str, str, Tables]]:
    for by, words in ((1, "next"), (-1, "previous")):
        yield f"table{by:+}", f"the block table of the {words} sequence is read", lambda t, n=by: np.roll(t, -n, 0)
        page = lambda t, n=by: np.roll(t, -n, 1)  # noqa: E731
        yield f"page{by:+}", f"the {words} page of the block table is read", page
    yield "table-0", "the block table of the first sequence is read for all sequences", lambda t: t[:1] + 0 * t
    yield "page-0", "the first page of the block table is read for all pages", lambda t: t[:, :1] + 0 * t
    logical = lambda t: np.arange(t.shape[1]) + 0 * t  # noqa: E731
    yield "logical", "the block table is ignored: page i of memory is read as page i of each sequence", logical
    rows = lambda t: np.arange(t.size).reshape(t.shape)  # noqa: E731
    yield (
        "logical-rows",
        "the block table is ignored: pages are read in memory order, and every sequence gets as many pages as the "
        "longest",
        rows,
    )
    yield "logical-packed", "the block table is ignored: pages are read in memory order", _packed
    for bits in (1, 2, 3, 4, 8):
        words = f"page numbers are taken modulo 2^{bits}"
        yield f"modulo-{2**bits}", words, lambda t, n=2**bits: t % n
    yield "reversed", "pages of a sequence are read in reverse order", _reversed
    yield "flat", "the block table is read with the strides of its transpose", lambda t: t.T.reshape(t.shape)
    yield "off+1", "the page after the one in the block table is read", lambda t: t + 1
    yield "off-1", "the page before the one in the block table is read", lambda t: t - 1


def _packed(table: np.ndarray) -> np.ndarray:
    used = table >= 0
    return np.where(used, np.cumsum(used).reshape(table.shape) - 1, -1)


def _reversed(table: np.ndarray) -> np.ndarray:
    count = (table >= 0).sum(1, keepdims=True)
    return np.take_along_axis(table, np.maximum(count - 1 - np.arange(table.shape[1]), 0), 1)


def _layouts() -> Iterator[tuple[str, str, Callable[[Any, str], np.ndarray]]]:
    def turned(at: Any, x: str) -> np.ndarray:
        raw = asked(at, f"pages_{x}")
        pages, one, other, d = raw.shape
        as_other = raw.reshape(pages, other, one, d)
        cache = as_other if asked(at, "heads_first") else as_other.swapaxes(1, 2)
        return _gathered(cache, asked(at, "block_table"), at.p.keys)

    yield "layout", "pages are read in the wrong layout: HND as NHD, or NHD as HND", turned
    sizes: dict[str, tuple[str, Callable[[Any, int], tuple[int, int]]]] = {
        "size-2": ("twice the page size", lambda at, n: (2 * n, n)),
        "size-2-strides": ("twice the page size and page stride", lambda at, n: (2 * n, 2 * n)),
        "size-0.5": ("half the page size", lambda at, n: (max(n // 2, 1), n)),
        "size-0.5-strides": ("half the page size and page stride", lambda at, n: (max(n // 2, 1), n // 2)),
        "size-of-tile": (
            "the key tile as page size",
            lambda at, n: (tile_width(at), n),
        ),
        "size-of-tile-strides": (
            "the key tile as page size and page stride",
            lambda at, n: 2 * (tile_width(at),),
        ),
        "tile-apart": (
            "the key tile as page stride",
            lambda at, n: (n, tile_width(at)),
        ),
    }
    for name, (words, sized) in sizes.items():
        for around in (False, True):
            end = ", wrapping around past the last page" if around else ""
            read = partial(_sized, sized, around)
            yield f"{name}{'-around' if around else ''}", f"pages are read with {words}{end}", read


def _sized(sized: Callable[[Any, int], tuple[int, int]], around: bool, at: Any, x: str) -> np.ndarray:
    """Rows read as if pages had another size and pitch (`sized`); beyond memory zeros, or wrapped `around`."""
    cache, table, j = _cache(at, x), asked(at, "block_table"), np.arange(at.p.keys)
    size, apart = sized(at, cache.shape[1])
    page = table[:, np.minimum(j // size, table.shape[1] - 1)]
    place = np.where(j // size < table.shape[1], page, -1) * apart + j % size
    flat = cache.reshape(-1, *cache.shape[2:])
    place = place % len(flat) if around else place
    inside = (place >= 0) & (place < len(flat))
    found = np.where(inside[..., None, None], flat[np.where(inside, place, 0)], 0.0)
    return np.moveaxis(found, 2, 1)


def _lengths() -> Iterator[tuple[str, str, Lengths]]:
    yield "last-whole", "the last page of each sequence is read in full", lambda k, n: -(-k // n) * n
    yield "last-lost", "a partial last page is skipped", lambda k, n: k // n * n
    yield "last-full-lost", "a full last page is skipped", lambda k, n: np.where(k % n == 0, k - n, k)
    yield "last-skipped", "the last page of each sequence is skipped", lambda k, n: np.maximum(k - 1, 0) // n * n
    yield "length+1", "each sequence gets one key too many in its last page", lambda k, n: k + 1
    yield "length-1", "each sequence gets one key too few", lambda k, n: k - 1
