"""An edit: other nodes in the place of some of a graph, and the graph with them."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from workbench.judge.reference.causes.known import folded
from workbench.reference.graph import Graph
from workbench.reference.graph.node import Line, Node
from workbench.reference.graph.recording import significant
from workbench.reference.graph.rules import CONSTANT, INPUT
from workbench.reference.graph.rules.moves import MOVES


class Draft:
    """What takes the place of one node: new nodes, the last of which has the value that others read.

    A read i >= 0 is node i of the graph, with `node` at its original value; ~k is the k-th node of this draft.
    """

    def __init__(self, graph: Graph, node: int) -> None:
        self.graph, self.node = graph, node
        self.nodes: list[Node] = []

    @property
    def old(self) -> Node:
        """The node whose place is taken."""
        return self.graph.nodes[self.node]

    def of(self, read: int) -> Node:
        """A node that may be read."""
        return self.graph.nodes[read] if read >= 0 else self.nodes[~read]

    def add(self, op: str, *reads: int, shape: Sequence[int] | None = None, **attributes: Any) -> int:
        """A new node; of the shape that its operands have together unless said, and of the last one's dtype that is no
        constant.
        """
        found = np.broadcast_shapes(*(self.of(j).shape for j in reads)) if shape is None else tuple(shape)
        of = next((self.of(j) for j in reversed(reads) if self.of(j).op != CONSTANT), self.of(reads[-1]))
        self.nodes.append(Node(op, reads, attributes, found, of.dtype, self.old.line))
        return ~(len(self.nodes) - 1)

    def hold(self, value: Any, dtype: Any = np.float64) -> int:
        """A constant."""
        x = np.asarray(value, dtype)
        self.nodes.append(Node(CONSTANT, (), {}, x.shape, x.dtype, self.old.line, x, significant(x)))
        return ~(len(self.nodes) - 1)

    def again(self, *reads: int, shape: Sequence[int] | None = None, **attributes: Any) -> int:
        """The old node, which reads others, or has other attributes; of its own shape unless said."""
        old = self.old
        found = {**old.attributes, **attributes}
        self.nodes.append(replace(old, reads=reads or old.reads, shape=tuple(shape or old.shape), attributes=found))
        return ~(len(self.nodes) - 1)

    def reshape(self, read: int, shape: tuple[int, ...]) -> int:
        """The same elements in another shape."""
        old = self.of(read)
        self.nodes.append(Node("reshape", (read,), {"shape": shape}, shape, old.dtype, self.old.line))
        return ~(len(self.nodes) - 1)

    def take(self, read: int, axis: int, places: Any) -> int:
        """Elements at places, or in a slice, along an axis."""
        of = self.of(read)
        n = of.shape[axis]
        count = len(range(n)[places]) if isinstance(places, slice) else len(places)
        shape = (*of.shape[:axis], count, *of.shape[axis + 1 :])
        return self.add("index", read, shape=shape, index=(slice(None),) * axis + (places,))


Make = Callable[[Draft], Any]


@dataclass(frozen=True, eq=False)
class Edit:
    """One change of what a reference computes."""

    nodes: tuple[int, ...]  #: whose value is another
    make: Make  #: fills the draft of each
    name: str  #: of what is changed
    said: str  #: how
    family: str
    size: int  #: how unlikely it is: the smallest first

    @property
    def words(self) -> str:
        """In one sentence."""
        return f"{self.name} {self.said}"

    def part(self, graph: Graph, node: int) -> tuple[Node, ...] | None:
        """What takes the place of a node; None where the edit does not apply, such as in a first iteration."""
        draft = Draft(graph, node)
        try:
            self.make(draft)
        except IndexError:
            return None
        return tuple(draft.nodes)

    def line(self, graph: Graph) -> Line:
        """Where the reference does it right: of an input where it is read first. What a function reads that the
        reference calls, perhaps twice, is where it is called.
        """
        i = self.nodes[0]
        if graph.nodes[i].op == INPUT:
            i = next((j for j, node in enumerate(graph.nodes) if i in node.reads), i)
        read = graph.nodes[i].op in MOVES and not any(i in turns for turns in graph.stages.values())
        return graph.calls.get(i, graph.nodes[i].line) if read else graph.nodes[i].line


def edited(
    graph: Graph, edit: Edit, only: Collection[int] | None = None, given: Collection[int] = ()
) -> tuple[Graph, tuple[int, ...]]:
    """The graph of an edit, and where each node's value is in it. only: nodes to which the edit applies; others keep
    their values. given: with `only`, nodes that later ones read unedited, since the kernel's dump takes their place.
    """
    nodes, own, places, seen = list[Node](), list[int](), list[int](), list[int]()
    chosen, changed = {*edit.nodes}, set[int]()
    for i, node in enumerate(graph.nodes):
        reached = any(places[j] != own[j] for j in node.reads)
        if reached and only is not None or not reached:
            one = folded(node) if only is not None or changed.isdisjoint(node.reads) else node
            nodes.append(replace(one, reads=tuple(own[j] for j in one.reads)))
        own.append(len(nodes) - 1)
        if reached:
            nodes.append(replace(node, reads=tuple(places[j] for j in node.reads)))
        if (other := the_other(node, changed)) is not None:
            nodes.append(replace(node, op="named", reads=(places[other],)))
        before = len(nodes) - 1
        if only is None:
            own[i] = before
        part = (edit.part(graph, i) or ()) if i in chosen else ()
        if part or not changed.isdisjoint(node.reads):
            changed.add(i)
        if part:
            first = len(nodes)
            for new in part:
                reads = (before if j == i else places[j] if j >= 0 else first + ~j for j in new.reads)
                nodes.append(replace(new, reads=tuple(reads)))
        places.append(len(nodes) - 1)
        seen.append(places[i] if only is None or i in only else own[i])
        if only is not None and i in given:
            places[i] = own[i]
            changed.discard(i)
    stages = {name: tuple(seen[i] for i in turns) for name, turns in graph.stages.items()}
    results = {name: seen[i] for name, i in graph.results.items()}
    inputs = {name: own[i] for name, i in graph.inputs.items()}
    decisions = tuple(replace(one, node=seen[one.node]) for one in graph.decisions)
    inside, saved = (frozenset(seen[i] for i in some) for some in (graph.inside, graph.saved))
    again = {seen[i]: seen[j] for i, j in graph.again.items()}
    made = replace(graph, nodes=tuple(nodes), inputs=inputs, stages=stages, results=results, decisions=decisions,
                   inside=inside, saved=saved, again=again, calls={}, made_of={})  # fmt: skip
    return made, tuple(seen)


def the_other(node: Node, changed: Collection[int]) -> int | None:
    """Of a value that is made in two ways, as a kernel makes it in one of them, the one alone that is changed."""
    found = [j for j in node.reads if j in changed] if node.op == "either" else []
    return found[0] if len(found) == 1 else None


def fits(graph: Graph, other: Graph) -> bool:
    """Whether edits of one graph are edits of the other: the same nodes, of other values."""
    return len(graph.nodes) == len(other.nodes) and all(
        (a.op, a.reads, a.shape) == (b.op, b.reads, b.shape) and (a.line == b.line or a.op == INPUT)
        for a, b in zip(graph.nodes, other.nodes, strict=True)
    )


def size(node: Node) -> int:
    """How many elements a node has."""
    return prod(node.shape)
