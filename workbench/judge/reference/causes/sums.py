"""Edits of sums, maxima and products of matrices: a part of the terms, or an accumulator of fewer bits."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from workbench.judge.reference.causes.change import TILES, rounded
from workbench.judge.reference.causes.edit import Draft, Make
from workbench.judge.reference.causes.places import tiled
from workbench.reference.graph import Graph
from workbench.reference.graph.node import Node

#: what adds, or compares, many elements
REDUCTIONS = ("sum", "max", "min", "matmul")
NAMES = {"sum": "sum", "max": "maximum", "min": "minimum", "matmul": "sum of products"}
#: tiles whose sums are added one after another, at most: each takes some nodes
MOST_TILES = 64

Step = tuple[str, str, int, Make]


def parts_of(graph: Graph, i: int) -> Iterator[Step]:
    """Words, family, size and what takes the place of a sum or the like."""
    node = graph.nodes[i]
    for axis, n in summed(graph, node):
        for words, size, places in parts(n):
            yield f"leaves out {words}", "part", size, _of_part(axis, places)
        if node.op in ("sum", "matmul"):
            yield "has its last term twice", "part", 3, _of_part(axis, np.minimum(np.arange(n + 1), n - 1))
            yield from _narrow(axis, n)


def summed(graph: Graph, node: Node) -> list[tuple[int, int]]:
    """The axes over which a node reduces its first operand, with their lengths; none of what is no reduction."""
    if node.op not in REDUCTIONS:
        return []
    shape = graph.nodes[node.reads[0]].shape
    if node.op == "matmul":
        return [(len(shape) - 1, shape[-1])] * (shape[-1] > 1)
    axes = node.attributes["axis"]
    axes = range(len(shape)) if axes is None else axes if isinstance(axes, tuple) else (axes,)
    return [(axis % len(shape), shape[axis]) for axis in axes if shape[axis] > 1]


def parts(n: int) -> Iterator[tuple[str, int, Any]]:
    """Which terms of n are lost, how unlikely that is, and those that are kept."""
    yield "its last term", 1, slice(0, n - 1)
    yield "its first term", 1, slice(1, n)
    for t, start in tiled(n):
        yield f"its last, partial tile of {t} terms", 1, slice(0, start)
    for t in TILES:
        if 2 * t <= n:
            at = np.arange(n)
            yield f"every second tile of {t} terms", 2, at[at // t % 2 == 0]
            yield f"the last term of each tile of {t}", 2, at[(at % t != t - 1) & (at != n - 1)]
            yield f"its last tile of {t} terms", 2, slice(0, (n - 1) // t * t)
            yield f"its first tile of {t} terms", 2, slice(t, n)
            yield f"all but its first tile of {t} terms", 3, slice(0, t)
            yield f"all but its last tile of {t} terms", 3, slice((n - 1) // t * t, n)
    if n > 2:
        yield "every second term", 2, slice(0, n, 2)
        yield "its second half", 2, slice(0, n // 2)
        yield "its first half", 2, slice(n // 2, n)
        yield "all but its last term", 2, slice(n - 1, n)
        yield "all but its first term", 2, slice(0, 1)


def _of_part(axis: int, places: Any) -> Make:
    return lambda d: over(d, axis, places)


def over(d: Draft, axis: int, places: Any) -> int:
    """The reduction of a part of its terms. A product without a name is cut before it is made, so that it stays a
    contraction.
    """
    old = d.old
    if old.op == "matmul":
        a, b = old.reads
        return d.again(d.take(a, axis, places), d.take(b, len(d.of(b).shape) - 2, places))
    (source,) = old.reads
    of = d.of(source)
    if of.op != "multiply" or any(source in turns for turns in d.graph.stages.values()):
        return d.again(d.take(source, axis, places))
    cut = (_cut(d, j, axis - len(of.shape), places) for j in of.reads)
    product = d.add("multiply", *cut)
    d.nodes[-1] = _as(d.nodes[-1], of)
    return d.again(product)


def _as(made: Node, of: Node) -> Node:
    return Node(made.op, made.reads, made.attributes, made.shape, of.dtype, of.line)


def _cut(d: Draft, read: int, axis: int, places: Any) -> int:
    """An operand that is cut along an axis, counted from the last; as it is where it is spread along it."""
    shape = d.of(read).shape
    return read if len(shape) < -axis or shape[axis] == 1 else d.take(read, len(shape) + axis, places)


def _narrow(axis: int, n: int) -> Iterator[Step]:
    """The sum of tiles, one after another, in an accumulator of fewer bits."""
    for dtype in ("bfloat16", "float16"):
        for t in (1, *TILES):
            if t < n <= t * MOST_TILES:
                of = f"tiles of {t} terms" if t > 1 else "terms"
                yield f"is added in {dtype}, over {of}", "cast", 2 if t > 8 else 3, _in_tiles(axis, n, t, dtype)


def _in_tiles(axis: int, n: int, tile: int, dtype: str) -> Make:
    def make(d: Draft) -> None:
        total = None
        for first in range(0, n, tile):
            part = over(d, axis, slice(first, min(first + tile, n)))
            total = rounded(d, part if total is None else d.add("add", total, part), dtype)

    return make
