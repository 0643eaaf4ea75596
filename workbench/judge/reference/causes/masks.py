"""Edits of masks: a diagonal elsewhere, and sums that also have the places behind the end of an axis."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from workbench.judge.reference.causes.change import TILES
from workbench.judge.reference.causes.edit import Draft, Edit
from workbench.judge.reference.causes.known import is_known
from workbench.judge.reference.causes.names import Names
from workbench.judge.reference.causes.steps import SINGLE
from workbench.judge.reference.causes.sums import Step, summed
from workbench.reference.graph import Graph
from workbench.reference.graph.patterns import PASSES

#: columns of the smallest tile whose mask may be another one, and how many ends of tiles are tried, nearly
FEWEST, MOST_STARTS = 16, 16
#: values that are taken for 0 behind the end, at most: the nearest to the sum; sums of a line that go on together
NEAREST, MOST_SUMS = 6, 64


def diagonals(graph: Graph, nodes: Collection[int], names: Names) -> Iterator[Edit]:
    """Masks that no input decides, as causal ones: all that have a diagonal at one place have it at another. With fewer
    rows than columns a causal mask begins at the top left in some kernels, and ends at the bottom right in others.
    """
    alike: dict[tuple[tuple[int, ...], int], list[int]] = {}
    for i, node in enumerate(graph.nodes):
        if is_known(node) and node.dtype == bool and (at := diagonal(node.value)) is not None:
            alike.setdefault((node.shape[-2:], at), []).append(i)
    for ((rows, columns), at), some in alike.items():
        if not any(i in nodes for i in some):
            continue
        first = next((i for i in some if i in names.own), some[0])
        group = (first, *(i for i in some if i != first))
        for new in dict.fromkeys((at, at - 1, at + 1, 0, columns - rows)):
            if -rows < new < columns - 1:
                moved = f"has its diagonal at {new} in place of {at}" if new != at else ""
                for tile, words, size, there in _columns(columns, new == at, new in (0, columns - rows)):
                    make = partial(_elsewhere, at, new, tile, there)
                    of_tile = f"is decided by the first column of each tile of {tile}" if tile > 1 else ""
                    said = f"{' and '.join(filter(None, (moved, of_tile)))}{words}"
                    yield Edit(group, make, names.of(first), said, "mask", size)


def _columns(n: int, same: bool, tiles: bool) -> Iterator[tuple[int, str, int, slice]]:
    """Columns of n that have another diagonal: all; those before and from the end of a tile on, as where some tiles
    alone are masked. With `tiles` also such as have the mask of their tile's first column, which are all that have
    another one where the diagonal is the `same`.
    """
    step = max(FEWEST, 1 << (n // MOST_STARTS).bit_length())
    if not same:
        yield 1, "", 1, slice(None)
        for start in range(step, n, step):
            yield 1, f", in columns before {start} only", 3, slice(0, start)
            yield 1, f", in columns from {start} on only", 3, slice(start, None)
    for t in TILES if tiles else ():
        if FEWEST <= t < n:
            for start in (n, *(range(t, n, max(t, step)) if not same else ())):
                yield t, f", in columns before {start} only" * (start < n), 3, slice(0, start)


def diagonal(mask: np.ndarray) -> int | None:
    """Up to which diagonal a mask of truths is of one kind and the other behind it, counted as `np.tri` does; None of
    another.
    """
    if mask.ndim < 2 or mask.size != mask.shape[-2] * mask.shape[-1] or not mask.size:
        return None
    rows, columns = mask.shape[-2:]
    x = mask.reshape(rows, columns)
    x = x if x[-1, 0] else ~x
    k = int(x[0].sum()) - 1 if x[0, 0] else -int(x[:, 0].argmax())
    return k if k < columns - 1 and np.array_equal(x, np.tri(rows, columns, k, dtype=bool)) else None


def _elsewhere(at: int, new: int, tile: int, columns: slice, d: Draft) -> None:
    rows, n = d.old.shape[-2:]
    made = d.old.value.reshape(rows, n).copy()
    band, other = (np.tri(rows, n, k, dtype=bool) for k in (at, new))
    other = other[:, np.arange(n) // tile * tile]
    made[:, columns] = (other if np.array_equal(made, band) else ~other)[:, columns]
    d.hold(made.reshape(d.old.shape), bool)


def padded(graph: Graph, i: int, names: Names) -> Iterator[Step]:
    """Words, family, size and what takes the place of a sum that goes on behind the end of its axis, up to a whole tile
    or a power of two: there a value that was loaded, or computed from that, is 0, and no mask hides what becomes of it.
    """
    if (found := _along(graph, i)) is None:
        return
    back, n = found
    ends, named = _zeros(graph, graph.nodes[i].reads[0], back, names.own)
    several = [(frozenset(ends), "what is loaded")] * (len(ends) > 1)
    for zeros, words in (*((frozenset({j}), names.of(j)) for j in named[:NEAREST]), *several):
        for more in paddings(n):
            said = f"also adds {more} places behind the end, where {words} is 0"
            yield said, "mask", 2, partial(_longer, zeros, back, more)
        said = f"starts with the term that a 0 of {words} gives, in place of 0"
        yield said, "constant", 2, partial(_longer, zeros, back, 1)


def paddings(n: int) -> list[int]:
    """How many elements whole tiles, and a power of two, have beyond n; no 0."""
    return list(filter(None, dict.fromkeys(-n % t for t in (*TILES, 1 << (n - 1).bit_length()))))


def tiled_sums(graph: Graph, nodes: Sequence[int], names: Names) -> Iterator[Edit]:
    """All sums of a line, over axes of several lengths, that go on to whole tiles, where what was loaded is 0."""
    lines: dict[Any, list[int]] = {}
    for i in nodes:
        if _along(graph, i) is not None:
            lines.setdefault(graph.nodes[i].line, []).append(i)
    for line, some in lines.items():
        lengths = {found[1] for i in some if (found := _along(graph, i)) is not None}
        for t in TILES if 1 < len(lengths) and len(some) <= MOST_SUMS else ():
            said = f"goes on to a whole tile of {t}, where what is loaded is 0"
            name = f"each sum of line {line.number}"
            yield Edit(tuple(some), partial(_to_tile, t), name, said, "mask", 2)


def _along(graph: Graph, i: int) -> tuple[int, int] | None:
    """The one axis of a sum, counted from the last, and its length."""
    node = graph.nodes[i]
    found = summed(graph, node) if node.op == "sum" else []
    shape = graph.nodes[node.reads[0]].shape if found else ()
    axis = node.attributes["axis"] if found else None
    count = len(shape) if axis is None else len(axis) if isinstance(axis, tuple) else 1
    return (found[0][0] - len(shape), found[0][1]) if len(found) == count == 1 else None


def ends_of(graph: Graph, source: int, back: int) -> list[int]:
    """The values from which a reduction's terms are computed element by element, where that computation starts."""
    return _zeros(graph, source, back, ())[0]


def _zeros(graph: Graph, source: int, back: int, own: Collection[int]) -> tuple[list[int], list[int]]:
    """The ends of a sum's terms; and those, and values on the way that have a name, of `own`, the nearest first."""
    ends, found, waiting, seen = list[int](), list[int](), [source], set[int]()
    while waiting:
        j = waiting.pop(0)
        node = graph.nodes[j]
        if is_known(node) or not _varies(node.shape, back) or j in seen:
            continue
        seen.add(j)
        single = node.op in SINGLE or _passes(graph, j)
        if single:
            waiting += node.reads
        else:
            ends.append(j)
        if j != source and (not single or j in own):
            found.append(j)
    return ends, found


def _varies(shape: tuple[int, ...], back: int) -> bool:
    return len(shape) >= -back and shape[back] > 1


def _passes(graph: Graph, j: int) -> bool:
    node = graph.nodes[j]
    return node.op in PASSES and node.shape == graph.nodes[node.reads[0]].shape


def _to_tile(tile: int, d: Draft) -> None:
    found = _along(d.graph, d.node)
    assert found is not None
    back, n = found
    if -n % tile:
        _longer(frozenset(ends_of(d.graph, d.old.reads[0], back)), back, -n % tile, d)
    else:
        d.add("named", d.node)


def _longer(zeros: frozenset[int], back: int, more: int, d: Draft) -> None:
    ends = {j: d.hold(0.0) for j in zeros}
    term = d.add("multiply", behind(d, d.old.reads[0], ends, back), d.hold(more))
    shape = d.of(term).shape
    if not d.old.attributes.get("keepdims") and len(shape) >= -back:
        term = d.reshape(term, tuple(n for at, n in enumerate(shape) if at - len(shape) != back))
    d.add("add", d.node, term, shape=d.old.shape)


def behind(d: Draft, j: int, ends: Mapping[int, int], back: int) -> int:
    """Node j computed from other values of `ends`, as for elements past the end of an axis; IndexError if it also
    depends on the index. A mask is not applied.
    """
    node = d.graph.nodes[j]
    if j in ends:
        return ends[j]
    if not _varies(node.shape, back):
        return j
    if node.op == "where":
        branches = [k for k in node.reads[1:] if _varies(d.graph.nodes[k].shape, back)]
        if not branches:  # a choice between two constants by the index
            raise IndexError(j)
        return behind(d, branches[0], ends, back)
    if _passes(d.graph, j):
        return behind(d, node.reads[0], ends, back)
    if node.op not in SINGLE:
        raise IndexError(j)
    return d.add(node.op, *(behind(d, k, ends, back) for k in node.reads), **node.attributes)
