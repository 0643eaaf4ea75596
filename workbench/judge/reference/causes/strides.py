"""Edits of where an array is read: with the stride of another axis, or as if rows had another length.

What is read behind the end of an array is NaN, since nothing says what lies there; or the array begins anew.
"""

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from itertools import combinations
from math import prod

import numpy as np

from workbench.judge.reference.causes.edit import Draft, Edit
from workbench.judge.reference.causes.names import Names
from workbench.judge.reference.given import is_whole
from workbench.reference.graph import Graph
from workbench.reference.graph.rules import INPUT


def strided(graph: Graph, nodes: Collection[int], names: Names) -> Iterator[Edit]:
    """Inputs with the stride of another axis, alone and two of a shape together; all inputs of as many rows as if rows
    were as long as those of other inputs; and values of one place along an axis that is read as if it had more.
    """
    inputs = [i for i in graph.inputs.values() if i in nodes and not is_whole(graph.nodes[i].dtype)]
    alike = [(i, j) for i, j in combinations(inputs, 2) if graph.nodes[i].shape == graph.nodes[j].shape]
    for some in (*((i,) for i in inputs), *alike):
        shape = graph.nodes[some[0]].shape
        for axis, other in _pairs(shape):
            said = f"is read with the stride of axis {other} for axis {axis}"
            yield from _edits(names, some, said, axis, strides_of(shape)[other], len(some) + 1)
    yield from _of_rows(graph, nodes, names)
    for i in nodes:
        node = graph.nodes[i]
        for axis in _grown(graph, i) if node.op == "broadcast" else ():
            source = graph.nodes[node.reads[0]].shape
            said = f"is read with a stride along its axis of length 1, which is broadcast to {node.shape[axis]}"
            yield from _edits(names, (i,), said, axis, prod(source[axis + 1 :]), 2)


def _pairs(shape: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Axes but the last, each with one whose stride it may get."""
    long = [axis for axis, n in enumerate(shape) if n > 1]
    yield from ((axis, other) for axis in long[:-1] for other in long if other != axis)


def _edits(
    names: Names, nodes: tuple[int, ...], said: str, axis: int, stride: int, size: int
) -> Iterator[Edit]:  # fmt: skip
    name = " and ".join(map(names.of, nodes)) + ": each" * (len(nodes) > 1)
    for words, around in (("", False), (", wrapping around at the end", True)):
        make = partial(_read, axis, stride, around)
        yield Edit(nodes, make, name, said + words, "places", size + around)


def _of_rows(graph: Graph, nodes: Collection[int], names: Names) -> Iterator[Edit]:
    """Inputs [rows, n, ...], packed one row behind the other, that are read from where rows of others begin."""
    rows: dict[tuple[int, int], list[int]] = {}
    for i in graph.inputs.values():
        shape = graph.nodes[i].shape
        if len(shape) > 2 and shape[0] > 1:
            rows.setdefault((shape[0], shape[1]), []).append(i)
    for (count, n), some in rows.items():
        for m in sorted({other for of, other in rows if of == count} - {n}):
            read = tuple(i for i in some if i in nodes)
            if read:
                said = f"is read as if row b of axis 0 began at place {m} b of axis 1, in place of {n} b"
                name = " and ".join(map(names.of, read)) + ": each" * (len(read) > 1)
                yield Edit(read, partial(_read_rows, m), name, said, "places", 2)


def _grown(graph: Graph, i: int) -> Iterator[int]:
    """Axes of one place in what a node broadcasts, which has others before and behind them."""
    node = graph.nodes[i]
    source = graph.nodes[node.reads[0]].shape
    if len(source) == len(node.shape):
        yield from (a for a, n in enumerate(source) if n == 1 < node.shape[a] and prod(source[:a]) > 1)


def strides_of(shape: Sequence[int]) -> list[int]:
    """In elements, of an array whose last axis is contiguous."""
    return [prod(shape[axis + 1 :]) for axis in range(len(shape))]


def _read(axis: int, stride: int, around: bool, d: Draft) -> None:
    """With another stride along an axis."""
    source = d.node if d.old.op == INPUT else d.old.reads[0]
    shape = d.of(source).shape
    strides = [s if n > 1 else 0 for n, s in zip(shape, strides_of(shape), strict=True)]
    strides[axis] = stride
    _gathered(d, source, strides, around)


def _read_rows(m: int, d: Draft) -> None:
    strides = strides_of(d.old.shape)
    strides[0] = m * strides[1]
    _gathered(d, d.node, strides, False)


def _gathered(d: Draft, source: int, strides: Sequence[int], around: bool) -> None:
    """The elements of the flat array at the places that strides say, in the shape of the old node."""
    shape, size = d.old.shape, prod(d.of(source).shape)
    at = sum(np.arange(n).reshape(-1, *(1,) * (len(shape) - axis - 1)) * strides[axis] for axis, n in enumerate(shape))
    places = np.broadcast_to(at, shape).ravel()
    made = d.reshape(d.take(d.reshape(source, (size,)), 0, places % size), shape)
    if not around and (places >= size).any():
        d.add("where", d.hold((places < size).reshape(shape), bool), made, d.hold(np.nan), shape=shape)
