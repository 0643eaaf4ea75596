"""What an edit makes of stages: values alone, computed anew where the edit reaches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np

from workbench.floats import round_to, to_float64
from workbench.judge.reference.causes.edit import Edit, size, the_other
from workbench.reference.graph import Graph
from workbench.reference.graph.combine import is_float
from workbench.reference.graph.expected import placed
from workbench.reference.graph.node import Node
from workbench.reference.graph.plan import upstream
from workbench.reference.graph.rules import CONSTANT, INPUT, RULES
from workbench.work import Work

#: values that a trial of `Work` computes: 0.4 ms at 3 ns each, in float64
VALUES = 2**17
#: a node costs as much as so many values at least, of a call of NumPy
LEAST = 2000
#: products that cost as much as one value elsewhere
PRODUCTS = 16
#: what has no value for some numbers
ROOTS = ("sqrt", "power", "log", "log2", "log10", "log1p")
#: values of all nodes that are kept, at most: 400 MB
LARGEST = 5e7


@dataclass(frozen=True, eq=False)
class Made:
    """What an edit makes of stages."""

    values: Mapping[int, Any]  #: of nodes that change
    broken: bool  #: whether a root, a power or a logarithm has become NaN of a number, as of a negative one


class Replay:
    """The values of a graph's nodes, and what edits make of the nodes that are asked."""

    def __init__(self, graph: Graph, asked: Sequence[int], dumps: Mapping[str, Any], stored: Mapping[int, str]) -> None:
        """dumps: arrays that what follows reads in the place of stages. stored: node -> the dtype that it is rounded
        to.
        """
        self.graph, self.asked, self._stored = graph, frozenset(asked), stored
        given = placed(graph, dumps)
        self.order = sorted(upstream(graph, asked, given))
        self._dumps = {i: to_float64(x) if is_float(x) else x for i, x in given.items()}
        self.given = {i: self._dumps[i] for i in self.order if i in given}
        self.readers = self._readers()
        self.values: dict[int, Any] = {}
        self.made: dict[int, Any] = {}  #: of those that are asked, as the reference makes them

    @property
    def is_large(self) -> bool:
        """Whether its values are too many to keep."""
        return sum(size(self.graph.nodes[i]) for i in self.order) > LARGEST

    def start(self) -> None:
        """Computes all values once."""
        for i in self.order:
            self._compute(i)

    def _compute(self, i: int) -> None:
        if i in self._dumps and i not in self.asked:
            self.values[i] = self._dumps[i]
            return
        y = self._rounded(i, value(self.graph.nodes[i], self.values))
        if i in self.asked:
            self.made[i] = y
        self.values[i] = self._dumps.get(i, y)

    def _rounded(self, i: int, y: Any) -> Any:
        return round_to(y, self._stored[i]) if i in self._stored else y

    def _known(self, j: int) -> Any:
        """The reference's value of a node; computed on demand for one that no asked node reads."""
        if j not in self.values:
            for i in sorted(upstream(self.graph, [j], self._dumps)):
                if i not in self.values:
                    self._compute(i)
        return self.values[j]

    def of(self, edit: Edit, work: Work) -> Made | None:
        """What an edit makes of the nodes that are asked, those alone that change; None where it does not fit."""
        parts = {i: part for i in edit.nodes if i in self.readers and (part := edit.part(self.graph, i)) is not None}
        queue, new, found = [*parts], dict[int, Any](), dict[int, Any]()
        heapify(queue)
        cost, last, broken = 0, -1, list[Node]()
        while queue:
            i = heappop(queue)
            if i == last:
                continue
            last = i
            node = self.graph.nodes[i]
            cost += cost_of(node, self.graph) + sum(max(size(one), LEAST) for one in parts.get(i, ()))
            try:
                y = self._edited(i, node, parts[i], new, broken) if i in parts else self._value(i, node, new, broken)
            except (ValueError, TypeError, IndexError):
                y = None
            before = self.made[i] if i in self.asked else self.values[i]
            y = None if y is None else self._rounded(i, y)
            if y is None or y.shape != before.shape:
                work.take(cost / VALUES)
                return None
            if bool((y == before).all()):
                continue
            if i in self.asked:
                found[i] = y
            if i not in self.given:
                new[i] = y
                for j in self.readers[i]:
                    heappush(queue, j)
        work.take(cost / VALUES)
        return Made(found, bool(broken))

    def _value(self, i: int, node: Node, new: Mapping[int, Any], broken: list[Node]) -> Any:
        """Its value, new ones where there are some; `broken` gets what has become NaN of a number."""
        if (one := the_other(node, new)) is not None:
            return new[one]
        return self._checked(i, node, {j: new[j] if j in new else self._known(j) for j in node.reads}, broken)

    def _checked(self, i: int, node: Node, known: Mapping[int, Any], broken: list[Node]) -> Any:
        """The value of node i, or of one that an edit puts in its place; added to `broken` if it is newly NaN."""
        y = value(node, known)
        if node.op in ROOTS:
            new = np.isnan(y)
            for j in node.reads:
                new = new & ~np.isnan(known[j])
            if new.any() and self.graph.nodes[i].op == node.op:  # what the reference itself makes NaN is not new
                before = self.made[i] if i in self.asked else self._known(i)
                new = new & ~np.isnan(before) if before.shape == y.shape else new
            if new.any():
                broken.append(node)
        return y

    def _edited(self, i: int, node: Node, part: Sequence[Node], new: Mapping[int, Any], broken: list[Node]) -> Any:
        own = [self._value(i, node, new, broken)] if any(i in one.reads for one in part) else []
        made: list[Any] = []
        for one in part:
            read: dict[int, Any] = {}
            for j in one.reads:
                read[j] = own[0] if j == i else made[~j] if j < 0 else new[j] if j in new else self._known(j)
            made.append(self._checked(i, one, read, broken))
        return made[-1]

    def _readers(self) -> dict[int, list[int]]:
        """By node of the order: those of the order that read it."""
        found = {i: list[int]() for i in self.order}
        for i in self.order:
            if i in self.given and i not in self.asked:
                continue
            for j in dict.fromkeys(self.graph.nodes[i].reads):
                if j in found:
                    found[j].append(i)
        return found


def value(node: Node, known: Mapping[int, Any]) -> Any:
    """A node's value, of those that it reads."""
    if node.op in (INPUT, CONSTANT):
        return node.value
    y = RULES[node.op].value(*(known[j] for j in node.reads), **node.attributes)
    return np.asarray(y) if isinstance(y, np.generic) else y


def cost_of(node: Node, graph: Graph) -> int:
    """What a node costs, in values."""
    products = graph.nodes[node.reads[0]].shape[-1] if node.op == "matmul" else 0
    read = max((size(graph.nodes[j]) for j in node.reads if j >= 0), default=0)
    return max(size(node) * (1 + products // PRODUCTS), read if node.op in ("sum", "max", "min") else 0, LEAST)
