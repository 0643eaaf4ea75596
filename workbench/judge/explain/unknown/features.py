"""What may tell the elements that are wrong from those that are right: where they are, and what they are made of."""

from collections.abc import Iterator

import numpy as np

from workbench.case.stages import AXIS_PLURALS
from workbench.judge.explain.unknown.difference import Difference
from workbench.judge.explain.unknown.parts import LISTED, in_words, listed, of_axis, residues, runs_of
from workbench.judge.explain.unknown.splits import Feature, Labels, Values, Words
from workbench.judge.explain.unknown.tensors import Tensors

#: periods of what a warp, a fragment and a vector load hold
PERIODS = (2, 4, 8, 16, 32, 64)
#: rows of a warp's fragments, and its lanes (PTX ISA, mma.m16n8k16: lane // 4 is the row, lane % 4 the pair of columns)
WARP_ROWS, LANES = 16, 32


def features(found: Difference, around: Tensors | None) -> Iterator[Feature]:
    """What may tell the wrong elements of an array, or of its rows, from the right ones; `around`: the run in which it
    is a stage, whose values may tell too.
    """
    for axis in found.axes:
        yield from _of_axis(found, axis, around)
    pairs = (("q", "k"), ("q", "d"), ("k", "d"))  # rows and columns of the products qk, and acc, and of operands
    for row, column in pairs:
        if {row, column} <= {*found.axes} and min(found.sizes[row], found.sizes[column]) >= 8:
            yield _lanes(found, row, column)
    if around is None:
        return
    if {"q", "k"} <= {*found.axes}:
        yield _diagonal(found, around)
    # of several lengths each sequence has its own
    if "q" in found.axes and {*found.axes} & {"k", "t"} and not around.run.trace.case_run.ragged:
        yield _seen(found, around, 1, "query")
        if block := around.run.case.block_q:
            yield _seen(found, around, block, "tile of queries")
    yield Values("expected", found.expected)
    yield Values("|expected|", np.abs(found.expected))
    for name, value in around.read().items():
        yield Values(name, value)
        yield Values(f"|{name}|", np.abs(value))


def _of_axis(found: Difference, axis: str, around: Tensors | None) -> Iterator[Labels]:
    """Indices, residues, tiles and splits."""
    begin, index, size = found.first.get(axis, 0), found.index(axis), found.sizes[axis]

    def labelled(labels: np.ndarray, count: int, say: Words) -> Labels:
        return Labels((found.axes.index(axis),), len(found.axes), labels, count, say)

    def modulo(period: int) -> Words:
        return lambda part, _: f"{AXIS_PLURALS[axis]} with {residues(axis, period, part, 0)} of {size}"

    yield labelled(index, size, lambda part, could: of_axis(axis, part, could, begin))
    for period in PERIODS:
        if 2 * period <= size:
            yield labelled((index + begin) % period, period, modulo(period))
    if around is None:
        return
    block, tiling = around.run.case.block_q, around.run.tiling
    if axis == "q" and block and block < size:
        yield labelled(
            (index + begin) // block, -(-(begin + size) // block), _called("tile of queries", "tiles of queries")
        )
        if WARP_ROWS < block:
            yield labelled((index + begin) % block // WARP_ROWS, -(-block // WARP_ROWS), _called("warp", "warps"))
    if axis == "k" and len(tiling.keys) > 1:
        sizes = [keys.stop - keys.start for keys in tiling.keys]
        yield labelled(np.repeat(np.arange(len(sizes)), sizes)[index], len(sizes), _called("key tile", "key tiles"))
        within = np.concatenate([np.arange(n) for n in sizes])[index]
        yield labelled(within, max(sizes), _called("key of each tile", "keys of each tile"))
    if axis in "kt" and len(tiling.splits) > 1:
        split = np.zeros(len(tiling.keys), np.int64)
        for s, own in enumerate(tiling.splits):
            split[[*own]] = s
        if axis == "k":
            split = np.repeat(split, [keys.stop - keys.start for keys in tiling.keys])
        yield labelled(split[index], len(tiling.splits), _called("split", "splits"))


def _lanes(found: Difference, row: str, column: str) -> Labels:
    """The lane of a warp that holds an element of a 16 x 8 fragment of sums."""
    over, rows, columns = _two(found, row, column)
    return Labels(over, len(found.axes), rows % 8 * 4 + columns % 8 // 2, LANES, _called("lane", "lanes"))


def _diagonal(found: Difference, around: Tensors) -> Labels:
    """How far keys lie beyond a query's own."""
    over, rows, columns = _two(found, "q", "k")
    after = columns - rows
    low, high = 1 - found.sizes["q"] - found.first.get("q", 0), found.sizes["k"] - 1

    def say(part: np.ndarray, could: np.ndarray) -> str:
        ends = sorted({int(run[0]) + low for run in runs_of(part)}), [int(run[-1]) + low for run in runs_of(part)]
        seen = np.flatnonzero(could) + low
        (first, *more), last = ends[0], ends[1][-1]
        if more:
            return f"k - q in {listed(runs_of(part), low)}" if len(more) < LISTED else ""
        if first == last:
            on_it = first == around.run.trace.case_run.diagonal and not around.run.trace.case_run.ragged
            return f"k - q == {first}" + (", the diagonal" if on_it else "")
        if last == seen.max():
            return f"k - q >= {first}"
        return f"k - q <= {last}" if first == seen.min() else f"k - q from {first} to {last}"

    return Labels(over, len(found.axes), after - low, high - low + 1, say)


#: which of no key, some and all, in words
_SEEN = {
    (0,): "no key", (1,): "some but not all keys", (2,): "all keys",
    (0, 1): "not all keys", (1, 2): "a key", (0, 2): "no key or all keys",
}  # fmt: skip


def _seen(found: Difference, around: Tensors, block: int, name: str) -> Labels:
    """Whether the queries of a block see no key of a tile, some, or each all of them."""
    case, tiles = around.run.trace.case_run, around.run.tiling.keys
    of_block = (found.index("q") + found.first.get("q", 0)) // block
    visible = case.mask()
    first = np.arange(0, len(visible), block)
    seen = [
        np.logical_or.reduceat(visible[:, keys].any(1), first) + 0
        + np.logical_and.reduceat(visible[:, keys].all(1), first) for keys in tiles
    ]  # fmt: skip
    labels = np.stack(seen, axis=1)[of_block]
    column = "t" if "t" in found.axes else "k"
    if column == "k":
        labels = np.repeat(labels, [keys.stop - keys.start for keys in tiles], axis=1)

    def say(part: np.ndarray, could: np.ndarray) -> str:
        how = _SEEN[tuple(int(i) for i in part)]
        return f"key tiles where the {name} sees {how}"

    return Labels((found.axes.index("q"), found.axes.index(column)), len(found.axes), labels, 3, say)


def _two(found: Difference, row: str, column: str) -> tuple[tuple[int, int], np.ndarray, np.ndarray]:
    """Two axes, and their indices as rows and columns."""
    rows, columns = (found.index(axis) + found.first.get(axis, 0) for axis in (row, column))
    over = found.axes.index(row), found.axes.index(column)
    return over, rows[:, None], columns[None, :]


def _called(name: str, names: str) -> Words:
    return lambda part, could: in_words(name, names, name, part, could, 0)
