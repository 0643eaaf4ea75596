"""The edits of a graph: what may be done to each value, to what one step reads, and to each step."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

from workbench.judge.reference.causes.change import TILES, Change, changes, growing
from workbench.judge.reference.causes.edit import Draft, Edit, Make
from workbench.judge.reference.causes.loops import classes
from workbench.judge.reference.causes.masks import diagonals, padded, tiled_sums
from workbench.judge.reference.causes.means import masked_means
from workbench.judge.reference.causes.names import Names
from workbench.judge.reference.causes.operands import exchanged, of_turns, operands_of
from workbench.judge.reference.causes.places import along, moved
from workbench.judge.reference.causes.products import of_reads, of_several
from workbench.judge.reference.causes.read_on import read_on
from workbench.judge.reference.causes.steps import steps_of
from workbench.judge.reference.causes.strides import strided
from workbench.judge.reference.causes.sums import NAMES, Step, over, parts, parts_of, summed
from workbench.judge.reference.causes.tile_masks import tile_masks
from workbench.judge.reference.causes.tiles import of_tiles
from workbench.judge.reference.causes.weights import weights
from workbench.reference.graph import Graph
from workbench.reference.graph.patterns import PASSES
from workbench.reference.graph.rules import CONSTANT, INPUT
from workbench.reference.graph.rules.moves import MOVES

#: how unlikely an edit of some turns of a loop is beside that of all
OF_SOME = 2


@dataclass(frozen=True)
class Slab:
    """A part of an axis, to which a fault may be confined."""

    length: int  #: of the axis
    places: tuple[int, ...]

    @property
    def words(self) -> str:
        """Which places."""
        first, last = self.places[0], self.places[-1]
        if len(self.places) == last - first + 1:
            span = f"{first}" if first == last else f"{first} to {last}"
            return f"at {span} of {self.length} only"
        return f"at {len(self.places)} of {self.length} places only"


def edits(graph: Graph, nodes: Sequence[int], given: Collection[int] = (), slab: Slab | None = None) -> list[Edit]:
    """The edits of some nodes, the likeliest first, and of these the nearest to the last node. given: nodes whose
    values are, so that a step may only read them wrongly; `slab`: what is done to a part of each node alone.
    """
    found = [*_all(graph, nodes, given)] if slab is None else [*_confined(graph, nodes, given, slab)]
    return sorted(found, key=lambda one: (one.size, -one.nodes[-1]))


def _all(graph: Graph, nodes: Sequence[int], given: Collection[int]) -> Iterator[Edit]:
    names, groups = Names(graph), classes(graph, [i for i in nodes if i not in given])
    turns = {i: group for group in groups for i in group}
    readers = _readers(graph, nodes, given)
    for group in groups:
        for name, step in _of(graph, group, turns, names, readers, given):
            yield from _in_turns(group, name, step)
    yield from _of_axes(graph, nodes)
    yield from _of_pairs(graph, nodes, names)
    yield from weights(graph, nodes)
    yield from exchanged(graph, {*nodes}, names)
    yield from diagonals(graph, {*nodes}, names)
    yield from tiled_sums(graph, nodes, names)
    yield from read_on(graph, nodes, names)
    yield from strided(graph, nodes, names)
    yield from masked_means(graph, nodes, names)
    for some in (of_tiles, tile_masks, of_several):
        yield from some(graph, {*nodes}, names)


def _of(
    graph: Graph, group: tuple[int, ...], turns: Mapping[int, tuple[int, ...]], names: Names,
    readers: Mapping[int, int], given: Collection[int],
) -> Iterator[tuple[str, Step]]:  # fmt: skip
    """What may take the place of the nodes of a group, which are alike."""
    i = group[-1]
    node, name = graph.nodes[i], names.of(i)
    own = node.op not in MOVES or i in names.own or node.op in ("concat", "write")
    read_wrongly = not own and node.op in MOVES and node.reads[0] in given  # what was given is right
    if (own or read_wrongly) and (node.op != CONSTANT or node.value.ndim):
        where = ", where it is read" * read_wrongly
        scale = _scale(graph, i)
        grown = growing(node, scale) if scale is not None else ()
        for said, family, size, change in (*changes(node, _lengths(graph, i)), *moved(node), *grown):
            yield name, (said + where, family, size, partial(_of_value, change))
    for j in dict.fromkeys(node.reads):
        one = graph.nodes[j]
        if readers.get(j, 0) < 2 or (one.op == CONSTANT and not one.value.ndim) or (node.op in PASSES):
            continue
        places = [k for k, read in enumerate(node.reads) if read == j]
        for said, family, size, change in (*changes(one, _lengths(graph, j)), *moved(one)):
            where = f"{said}, in {name} only"
            yield names.of(j), (where, family, size + 1, partial(_of_operand, change, places))
            if len(places) > 1:  # as a product of two that should be a square
                where = f"{said}, in one operand of {name} only"
                yield names.of(j), (where, family, size + 2, partial(_of_operand, change, places[:1]))
    for step in (*steps_of(graph, i, _lengths(graph, i)), *parts_of(graph, i), *padded(graph, i, names)):
        yield name, step
    yield from of_reads(graph, i, names, len(group) == 1)
    for step in of_turns(graph, group, turns, names) if len(group) > 1 else operands_of(graph, i, names):
        yield name, step


def _scale(graph: Graph, i: int) -> float | None:
    """The number that a node multiplies by, as scores are scaled; None of another node."""
    node = graph.nodes[i]
    found = [graph.nodes[j] for j in node.reads if node.op == "multiply" and node.shape]
    return next((float(one.value) for one in found if one.op == CONSTANT and not one.value.ndim), None)


def _of_value(change: Change, d: Draft) -> None:
    change(d, d.node)


def _of_operand(change: Change, places: Sequence[int], d: Draft) -> None:
    made = change(d, d.old.reads[places[0]])
    d.again(*(made if at in places else j for at, j in enumerate(d.old.reads)))


def _lengths(graph: Graph, i: int) -> list[int]:
    """Lengths of the axes of a node and of what it is made of, without moves."""
    node = graph.nodes[i]
    shapes = [node.shape, *(graph.nodes[j].shape for j in node.reads)]
    for j in node.reads:
        if graph.nodes[j].op in ("sum", "matmul", *MOVES):
            shapes += [graph.nodes[k].shape for k in graph.nodes[j].reads]
    return sorted({n for shape in shapes for n in shape if n > 2})


def _readers(graph: Graph, nodes: Sequence[int], given: Collection[int]) -> dict[int, int]:
    """By node: how many steps may read it wrongly alone."""
    found = dict.fromkeys(given, 1)
    for i in nodes:
        for j in graph.nodes[i].reads:
            found[j] = found.get(j, 0) + 1
    return found


def _in_turns(group: tuple[int, ...], name: str, step: Step) -> Iterator[Edit]:
    """In all turns of a loop, in the first or the last one, and at the ends of chunks of turns."""
    said, family, size, make = step
    yield Edit(group, make, name, said, family, size)
    n = len(group)
    if n < 2:
        return
    some = {"in the first turn only": group[:1], "in the last turn only": group[-1:]}
    if n > 2:
        some |= {"but for the first turn": group[1:], "but for the last turn": group[:-1]}
    for tile in TILES:
        if tile < n:
            ends = tuple(i for at, i in enumerate(group) if at % tile == tile - 1 or at == n - 1)
            some[f"in the last turn of each {tile}"] = ends
            some[f"in the first turn of each {tile}"] = group[::tile]
            some[f"in the first turn of each {tile} but the first"] = group[tile::tile]
    for when, nodes in some.items():
        yield Edit(nodes, make, name, f"{said}, {when}", family, size + OF_SOME)


def _of_axes(graph: Graph, nodes: Sequence[int]) -> Iterator[Edit]:
    """All sums and maxima over axes of one length without the same terms, and with another count of them."""
    lengths: dict[int, list[int]] = {}
    for i in nodes:
        for _, n in summed(graph, graph.nodes[i]):
            lengths.setdefault(n, []).append(i)
    for n, some in lengths.items():
        if len(some) < 2:
            continue
        ops = " and ".join(dict.fromkeys(NAMES[graph.nodes[i].op] for i in some))
        counts = [i for i in nodes if _counts(graph, i, n)]
        for words, size, places in parts(n):
            make = partial(_without, n, places)
            yield Edit(tuple(some), make, f"every {ops} over {n}", f"leaves out {words}", "part", size + 1)
            if counts:
                both = tuple(sorted({*some, *counts}))
                left = len(np.arange(n)[places])
                said = f"leaves out {words}, and means are over {left}"
                yield Edit(both, make, f"every {ops} over {n}", said, "part", size + 1)


def _of_pairs(graph: Graph, nodes: Sequence[int], names: Names) -> Iterator[Edit]:
    """Two arrays that are alike, as keys and values, read at the same wrong places."""
    alike: dict[Any, list[int]] = {}
    for i in nodes:
        node = graph.nodes[i]
        if i in names.own and node.shape and (node.op == INPUT or node.op in MOVES):
            alike.setdefault((node.op, node.shape), []).append(i)
    for some in alike.values():
        for one, other in combinations(some, 2):
            for said, family, size, change in moved(graph.nodes[one]):
                both = f"{names.of(one)} and {names.of(other)}: each"
                yield Edit((one, other), partial(_of_value, change), both, said, family, size + 1)


def _counts(graph: Graph, i: int, n: int) -> bool:
    """Whether a node divides by the count of n terms."""
    node = graph.nodes[i]
    if node.op != "divide":
        return False
    by = graph.nodes[node.reads[1]]
    return by.op == CONSTANT and by.value.ndim == 0 and by.value == n


def _without(n: int, places: object, d: Draft) -> None:
    found = summed(d.graph, d.old)
    if not found:
        left = len(np.arange(n)[places])  # type: ignore[call-overload]
        d.again(d.old.reads[0], d.hold(left, d.of(d.old.reads[1]).dtype))
        return
    over(d, next(axis for axis, length in found if length == n), places)


def _confined(graph: Graph, nodes: Sequence[int], given: Collection[int], slab: Slab) -> Iterator[Edit]:
    """The edits of single nodes at the places of a slab alone."""
    for edit in _all(graph, nodes, given):
        if len(edit.nodes) > 1:
            continue
        shape = graph.nodes[edit.nodes[0]].shape
        for axis, n in enumerate(shape):
            if n == slab.length:
                make = partial(_at, edit.make, axis, slab.places)
                yield replace(edit, make=make, said=f"{edit.said}, {slab.words}", size=edit.size + 1)


def _at(make: Make, axis: int, places: tuple[int, ...], d: Draft) -> None:
    make(d)
    made = ~(len(d.nodes) - 1)
    there = ~along(d.old.shape, axis)
    there[(slice(None),) * axis + (np.asarray(places),)] = True
    old = d.node
    d.add("where", d.hold(there, bool), made, old, shape=d.old.shape)
