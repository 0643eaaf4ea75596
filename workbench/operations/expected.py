"""What float64 makes of the stages of a run of an operation; one stage held against what it should be."""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from workbench.expectation.elements import Comparison, State, compare, kept
from workbench.floats import to_float64, ulp
from workbench.judge.reference.given import Given
from workbench.operations.parts import Places, joined, places_of
from workbench.operations.run import OperationRun, shape_of
from workbench.operations.scan import scans_of
from workbench.reference.bound import Budget
from workbench.reference.graph import Expected, Graph, trace
from workbench.reference.graph import budgets as of_graph
from workbench.reference.graph.node import Line
from workbench.reference.graph.operands import with_operands


class Reference:
    """What stages of a run should be, of the graph of the operation's plain function, or of a turn of its loop."""

    def __init__(self, run: OperationRun) -> None:
        self.run = run
        self.inputs = {name: to_float64(x) for name, x in run.inputs.items()}
        self.stages = run.case.operation.stages(run.setting)
        self.scans = scans_of(run)
        self._of_inputs: dict[frozenset[str], dict[str, Expected]] = {}  # stages of a loop, where no dump matters

    @cached_property
    def graph(self) -> Graph:
        """Of the whole plain function."""
        case = self.run.case
        beside = case.operation.beside(self.run.setting, self.inputs)
        given = {**self.run.inputs, **case.numbers, **case.conventions, **beside}
        return trace(case.operation.reference, given)

    @property
    def loops(self) -> bool:
        """Whether the plain function carries a state."""
        return bool(self.run.case.operation.walked)

    @property
    def is_drawn(self) -> bool:
        """Whether the worst case of its loop says nothing, and roundings that are drawn decide."""
        return self.loops and not self.scans

    def places(self, name: str) -> Places:
        """Where the graph has a stage."""
        return places_of(self.run, self.graph, name)

    def given(self, name: str, x: np.ndarray, free: np.ndarray | None) -> list[Given]:
        """A stage that a function gave, as the graph has it: turns of one shape together."""
        graph, nodes = self.graph, self.graph.places()
        found, shapes = list[Given](), dict[tuple[int, ...], dict[str, Any]]()
        for place, at in self.places(name).items():
            shapes.setdefault(graph.nodes[nodes[place]].shape, {})[place] = at
        for some in shapes.values():
            parts = [x[at] for at in some.values()]
            own = parts[0] if len(parts) == 1 else np.stack(parts)
            blank = None if free is None else np.stack([free[at] for at in some.values()]).reshape(own.shape)
            called = next(iter(some)) if found else name
            result = name in self.run.case.operation.results
            at = tuple(nodes[place] for place in some)
            found.append(Given(called, (*some,), at, own, np.zeros(own.shape, bool), result, blank))
        return found

    def line(self, name: str) -> Line:
        """The line of the plain function that makes a stage."""
        graph = self.scans[0].graph if self.scans else self.graph
        return graph.nodes[graph.places()[name]].line

    def before(self, name: str, given: Collection[str]) -> tuple[str, ...]:
        """The nearest of the `given` stages that one is made of, its own earlier turns among them."""
        graph = self.scans[0].graph if self.scans else self.graph
        nodes = self.scans[0].nodes(given) if self.scans else {
            i: other for other in given for i in (graph.places()[place] for place in self.places(other))
        }  # fmt: skip
        own = [i for i, other in nodes.items() if other == name] or [graph.places()[name]]
        queue, seen, found = [j for i in own for j in graph.nodes[i].reads], set[int](), set[str]()
        while queue:
            i = queue.pop()
            if i in nodes:
                found.add(nodes[i])
            elif i not in seen:
                queue += graph.nodes[i].reads
            seen.add(i)
        return tuple(other for other in given if other in found)

    def expected(self, given: Mapping[str, np.ndarray], names: Collection[str]) -> dict[str, Expected]:
        """The stages `names`, with budgets: of the `given` ones before each, and of the inputs."""
        if not self.scans:
            contract = self.run.case.operation.contract(self.run.setting)
            return of_graph(self.graph, contract, given, names)
        key = frozenset(names)
        if self.scans[0].matters(given, names):
            return self._of_scans(given, names)
        if key not in self._of_inputs:
            self._of_inputs[key] = self._of_scans({}, names)
        return self._of_inputs[key]

    def _of_scans(self, given: Mapping[str, np.ndarray], names: Collection[str]) -> dict[str, Expected]:
        parts = [one.expected(given, names) for one in self.scans]
        return {name: _of_all_heads([part[name] for part in parts]) for name in names}

    def values(self, given: Mapping[str, np.ndarray], names: Collection[str]) -> dict[str, np.ndarray]:
        """The same without budgets, and others that they are made of."""
        if self.scans:
            some = [one.values(given, names) for one in self.scans]
            return {name: np.concatenate([part[name] for part in some], axis=1) for name in names}
        there = self.graph.places()
        asked = {name: self.places(name) for name in dict.fromkeys((*names, *self.stages)) if name in there}
        dumps = {place: x[at] for name, x in given.items() for place, at in self.places(name).items()}
        places = [place for some in asked.values() for place in some]
        made = dict(zip(places, with_operands(self.graph, places, dumps, lambda line, x: x), strict=True))
        shapes = {name: shape_of(self.run.case, axes) for name, axes in self.stages.items()}
        return {name: joined(some, made, shapes.get(name, ())) for name, some in asked.items()}


def _of_all_heads(parts: Sequence[Expected]) -> Expected:
    def joined(some: Sequence[Any]) -> Any:
        return some[0] if isinstance(some[0], float) else np.concatenate(some, axis=1)

    some = [one.budget for one in parts]
    bound, statistical = joined([one.bound for one in some]), joined([one.statistical for one in some])
    return Expected(
        joined([one.value for one in parts]), Budget(bound, statistical, joined([one.size for one in some]))
    )


def held(actual: np.ndarray, expected: np.ndarray, budget: Budget, free: np.ndarray | None) -> Comparison:
    """A stage against what it should be; `free`: what nobody need write, of which nothing is judged."""
    if actual.dtype.itemsize < np.dtype(np.float32).itemsize:  # what is stored in 16 bits was computed in more
        stored = ulp(abs(expected) + budget.bound, actual.dtype) / 2
        budget = Budget(budget.bound + stored, budget.statistical + stored, budget.size)
    free = np.broadcast_to(False if free is None else free, actual.shape)
    judged = np.where(free, expected, to_float64(actual))
    found = compare(judged, np.zeros(actual.shape, bool), expected, budget, actual.dtype)
    found.over_budget[free], found.state[free] = np.nan, State.ABSENT
    return kept(actual, found)
