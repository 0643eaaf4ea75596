"""Edits of reductions whose last tile is loaded without a mask: the sum, maximum or matrix product runs on to a whole
tile, or to a power of two, into what follows in memory. After a row that is the next row; after the array it is NaN,
which is what a run puts around its inputs.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from workbench.judge.reference.causes.edit import Draft, Edit
from workbench.judge.reference.causes.masks import behind, ends_of, paddings
from workbench.judge.reference.causes.names import Names
from workbench.judge.reference.causes.sums import NAMES, summed
from workbench.reference.graph import Graph
from workbench.reference.graph.rules import INPUT
from workbench.reference.graph.rules.moves import MOVES

#: reductions of one length that are tried one by one, at most: a loop has one of each a turn
MOST = 16
#: moves and casts, through which an element of an input keeps its place in memory
_ON = frozenset(MOVES) - {"write", "concat"}


def read_on(graph: Graph, nodes: Sequence[int], names: Names) -> Iterator[Edit]:
    """All of them, of some nodes."""
    lengths: dict[int, list[int]] = {}
    for i in nodes:
        if (n := _length(graph, i)) is not None:
            lengths.setdefault(n, []).append(i)
    for n, some in lengths.items():
        groups: list[tuple[str, tuple[int, ...]]] = [(names.of(i), (i,)) for i in some] if len(some) <= MOST else []
        if len(some) > 1:
            ops = " and ".join(dict.fromkeys(NAMES[graph.nodes[i].op] for i in some))
            groups.append((f"every {ops} over {n}", tuple(some)))
        for name, group in groups:
            loads = dict.fromkeys(j for i in group for j in _loads(graph, i))
            several = [(tuple(loads), " and ".join(dict.fromkeys(map(names.of, loads))))]
            several += [((j,), names.of(j)) for j in loads] if len(loads) > 1 else []
            for more in paddings(n):
                for some_loads, words in several if loads else ():
                    said = f"runs {more} elements past the end of {words}, as loads without a mask do"
                    yield Edit(group, partial(_longer, some_loads, more), name, said, "past the end", 1 + len(group))


def _length(graph: Graph, i: int) -> int | None:
    """Of the one axis that a node reduces."""
    node = graph.nodes[i]
    found = summed(graph, node)
    axis = node.attributes.get("axis", -1)
    alone = isinstance(axis, int) or (isinstance(axis, tuple) and len(axis) == 1)
    return found[0][1] if len(found) == 1 and alone else None


def _loads(graph: Graph, i: int) -> list[int]:
    """Parts of inputs from which the terms of a reduction are computed element by element."""
    node, found = graph.nodes[i], list[int]()
    for k, j in enumerate(node.reads):
        found += [one for one in ends_of(graph, j, _back(graph, i, k)) if _source(graph, one) is not None]
    return found


def _back(graph: Graph, i: int, k: int) -> int:
    """The axis of the k-th operand that a node reduces, as a negative index."""
    if graph.nodes[i].op == "matmul":
        return -1 if k == 0 else -min(2, len(graph.nodes[graph.nodes[i].reads[1]].shape))
    axis, _ = summed(graph, graph.nodes[i])[0]
    return axis - len(graph.nodes[graph.nodes[i].reads[0]].shape)


def _source(graph: Graph, i: int) -> int | None:
    """The input whose elements a node holds; None if it computes its own."""
    while graph.nodes[i].op in _ON:
        i = graph.nodes[i].reads[0]
    return i if graph.nodes[i].op == INPUT and graph.nodes[i].shape else None


def _places(graph: Graph, i: int) -> np.ndarray:
    """The flat index in its input of each element of a node. Inputs are assumed contiguous."""
    node = graph.nodes[i]
    if node.op == INPUT:
        return np.arange(int(np.prod(node.shape))).reshape(node.shape)
    found: np.ndarray = MOVES[node.op].value(_places(graph, node.reads[0]), **node.attributes)
    return found


def _longer(loads: Sequence[int], more: int, d: Draft) -> None:
    """Combines the reduction with that of the next `more` elements."""
    parts = [_behind(d, k, loads, more) for k in range(len(d.old.reads))]
    if d.old.op == "matmul":
        d.add("add", d.node, d.add("matmul", *parts, shape=d.old.shape), shape=d.old.shape)
        return
    other = d.add(d.old.op, *parts, shape=d.old.shape, **d.old.attributes)
    d.add("add" if d.old.op == "sum" else f"{d.old.op}imum", d.node, other, shape=d.old.shape)


def _behind(d: Draft, k: int, loads: Sequence[int], more: int) -> int:
    """The operand's next `more` elements past the end of its axis: `loads` hold what follows in memory, and all other
    loads are 0, as behind a mask.
    """
    j, back = d.old.reads[k], _back(d.graph, d.node, k)
    ends: Mapping[int, int] = {
        one: _loaded(d, one, back, more) if one in loads else d.hold(0.0) for one in ends_of(d.graph, j, back)
    }
    if not any(one in loads for one in ends) and d.old.op != "matmul":
        raise IndexError(j)
    shape = list(d.of(j).shape)
    shape[back] = more
    return d.add("add", behind(d, j, ends, back), d.hold(np.zeros(shape)), shape=shape)


def _loaded(d: Draft, i: int, back: int, more: int) -> int:
    """What follows a load in memory, `more` elements along an axis; NaN outside of its input."""
    places = _places(d.graph, i)
    n, source = places.shape[back], _source(d.graph, i)
    assert source is not None
    last, before = (places.take([at], axis=back) for at in (n - 1, n - 2))
    if (last == before).any():  # a broadcast axis has no end in memory
        raise IndexError(i)
    steps = np.arange(1, more + 1).reshape([more if at == places.ndim + back else 1 for at in range(places.ndim)])
    found, size = last + (last - before) * steps, int(np.prod(d.of(source).shape))
    flat, there = d.reshape(source, (size,)), (found >= 0) & (found < size)
    taken = d.add("index", flat, shape=found.shape, index=(np.clip(found, 0, size - 1),))
    return d.add("where", d.hold(there, bool), taken, d.hold(np.nan), shape=found.shape)
