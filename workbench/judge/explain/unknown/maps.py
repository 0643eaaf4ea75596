"""Index maps: a wrong array that holds, at each index of an axis, what it should hold at another.

The map is learned on some columns, by the slice that each one equals within the budgets, and then tried on all. Its
words are those of the plainest family that it is of.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from workbench.floats import to_float64
from workbench.judge.explain.unknown.difference import SEED, Difference
from workbench.judge.explain.unknown.formula import Formula, holds, places
from workbench.judge.explain.unknown.parts import LISTED, of_axis

#: columns on which slices are compared, and how many of those must be numbers and equal
COLUMNS, COMPARED, EQUAL = 32, 6, 0.95
#: longest axis whose slices are all compared with each other, of which so many numbers at once
LONGEST, AT_ONCE = 4096, 2**23
#: sides of tiles whose elements may be transposed: of fragments and of shared memory
SIDES = (4, 8, 16, 32, 64)


def mapped(found: Difference) -> list[Formula]:
    """The formulas that say at which other indices the values of a wrong array are expected."""
    some = places(found)
    made = []
    for words, expected, bound in trials(found):
        moved = some.of(expected)
        growth = some.of(bound) / some.bound
        if (formula := holds(words, some, moved, growth)) is not None:
            made.append(replace(formula, kind="map"))
    return made


def trials(found: Difference) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Words, and what is expected and its bound where the map leads to; NaN where it leads nowhere."""
    for axis in found.axes:
        source = learned(found, axis)
        if source is None:
            continue
        i = found.axes.index(axis)
        known = source.reshape([-1 if j == i else 1 for j in range(len(found.axes))]) >= 0
        expected, bound = (np.take(x, np.maximum(source, 0), axis=i) for x in (found.expected, found.bound))
        if words := in_words(axis, source, found.first.get(axis, 0)):
            yield words, np.where(known, expected, np.nan), bound
    for rows, columns in (("q", "k"), ("q", "d"), ("k", "d")):
        if {rows, columns} <= {*found.axes}:
            yield from _transposed(found, rows, columns)


@np.errstate(all="ignore")
def learned(found: Difference, axis: str) -> np.ndarray | None:
    """At which index of an axis the values of each index are expected, int, -1 where at none or nobody knows; None
    where the axis is too long or the only one, or where all are at their own.
    """
    i = found.axes.index(axis)
    size = found.wrong.shape[i]
    if len(found.axes) < 2 or not 2 <= size <= LONGEST:
        return None
    wrong = np.moveaxis(found.wrong, i, 0)
    often = wrong.sum(axis=0).ravel()
    columns = np.random.default_rng(SEED).permutation(np.flatnonzero(2 * often >= often.max()))[:COLUMNS]
    index: Any = (slice(None), *np.unravel_index(columns, wrong.shape[1:]))
    arrays = found.actual, found.expected, found.bound
    actual, expected, bound = (to_float64(np.moveaxis(x, i, 0)[index]) for x in arrays)
    there = np.isfinite(expected) & (expected != 0)
    source = np.full(size, -1)
    step = max(1, AT_ONCE // max(1, expected.size))
    for first in range(0, size, step):
        one = actual[first : first + step, None]
        both = there & np.isfinite(one)
        near = both & (np.abs(one - expected) <= bound)
        count = both.sum(axis=-1)
        share = np.where(count >= COMPARED, near.sum(axis=-1) / np.maximum(count, 1), 0.0)
        best = share.max(axis=-1)
        # of slices that are alike the nearest
        far = np.abs(np.arange(size) - np.arange(first, first + len(one))[:, None])
        nearest = np.argmin(np.where(share >= best[:, None], far, size), axis=-1)
        source[first : first + step] = np.where(best >= EQUAL, nearest, -1)
    return source if (source[source >= 0] != np.flatnonzero(source >= 0)).any() else None


def in_words(axis: str, source: np.ndarray, begin: int = 0) -> str:
    """A map of the indices of an axis, counted from `begin` on, as an equation."""
    known = np.flatnonzero(source >= 0)
    moved = known[source[known] != known]
    everywhere = _everywhere(axis, known + begin, source[known] + begin, len(source))
    if everywhere:
        return f"actual at {axis} = expected at {everywhere}"
    deltas = source[moved] - moved
    kinds = np.unique(deltas)
    if (source[moved] == source[moved[0]]).all() and len(moved) > 1:
        said = [f"{source[moved[0]] + begin}{_for(axis, moved, known, source, begin)}"]
    elif len(kinds) <= 2:
        said = [_shifted(axis, int(d)) + _for(axis, moved[deltas == d], known, source, begin) for d in kinds]
    else:
        in_blocks = _in_blocks(axis, known + begin, source[known] + begin, len(source))
        some = ", ".join(f"{j + begin} at {i + begin}" for i, j in zip(moved[:LISTED], source[moved], strict=False))
        said = [in_blocks or f"other {axis}: {some}" + (", ..." if len(moved) > LISTED else "")]
    return f"actual at {axis} = expected at {'; at '.join(said)}"


def _shifted(axis: str, by: int) -> str:
    return f"{axis} {'+' if by > 0 else '-'} {abs(by)}"


def _for(axis: str, part: np.ndarray, known: np.ndarray, source: np.ndarray, begin: int) -> str:
    """For which indices; "" for all that are known."""
    live = np.bincount(known, minlength=len(source))
    words = of_axis(axis, part, live, begin) if len(part) < len(known) else ""
    return f", {words}" if words else ""


def _everywhere(axis: str, i: np.ndarray, j: np.ndarray, size: int) -> str:
    """One expression of i that is j at all indices that are known; "" where there is none."""
    if (j - i == j[0] - i[0]).all():
        return _shifted(axis, int(j[0] - i[0]))
    if (i ^ j == i[0] ^ j[0]).all():
        return f"{axis} ^ {i[0] ^ j[0]}"
    by = int((j[0] - i[0] + size // 2) % size - size // 2)
    if ((j - i - by) % size == 0).all():
        return f"({_shifted(axis, by)}) % {size}"
    if (i + j == i[0] + j[0]).all():
        return f"{i[0] + j[0]} - {axis}"
    for g in range(2, size):
        if (j == i // g).all() or (j == i % g).all():
            return f"{axis} {'//' if (j == i // g).all() else '%'} {g}"
    for block in (n for n in range(2, size + 1) if size % n == 0):
        x = i % block
        for rows in (n for n in range(2, block) if block % n == 0):
            columns = block // rows
            if (j == i - x + x % rows * columns + x // rows).all():
                of = f"each {block}" if block < size else f"all {size}"
                return f"{axis} with {of} transposed, as {columns} x {rows}"
    return ""


def _in_blocks(axis: str, i: np.ndarray, j: np.ndarray, size: int) -> str:
    """Blocks in another order; "" where they are none, or are many."""
    for block in (n for n in range(size // 2, 1, -1) if size % n == 0 and size // n <= 2 * LISTED):
        order = [np.unique(j[i // block == n] // block) for n in range(size // block)]
        if (i % block == j % block).all() and all(len(one) == 1 for one in order):
            return f"{axis} in blocks of {block}, in the order {', '.join(str(one[0]) for one in order)}"
    return ""


def _transposed(found: Difference, rows: str, columns: str) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Each square tile with its rows for columns."""
    i, j = found.axes.index(rows), found.axes.index(columns)
    n, m = found.wrong.shape[i], found.wrong.shape[j]
    for side in SIDES:
        if n % side or m % side:
            continue

        def turned(x: np.ndarray, side: int = side) -> np.ndarray:
            tiled = np.moveaxis(x, (i, j), (-2, -1))
            tiles = tiled.reshape(*tiled.shape[:-2], n // side, side, m // side, side).swapaxes(-3, -1)
            return np.moveaxis(tiles.reshape(tiled.shape), (-2, -1), (i, j))

        words = f"actual = expected with each {side} x {side} of {rows} and {columns} transposed"
        yield words, turned(found.expected), turned(found.bound)
