"""What float64 makes of the stages of a run of an operation; one stage held against what it should be."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from workbench.case.case import Case
from workbench.case.contract import of_foreign
from workbench.case.tiling import Tiling
from workbench.expectation.elements import Comparison, State, compare, kept
from workbench.floats import to_float64, ulp
from workbench.operations.run import OperationRun, size_of
from workbench.operations.scan import scans_of
from workbench.reference.bound import Budget
from workbench.reference.graph import Expected, trace
from workbench.reference.graph import budgets as of_graph
from workbench.reference.graph.operands import with_operands
from workbench.reference.losses import losses_of
from workbench.reference.problem import Problem
from workbench.reference.walk import budgets, values

#: of attention, of which no step of another operation asks anything
_CONTRACT = of_foreign({}, Case())


class Reference:
    """What stages of a run should be: of the graph of the operation's plain function, or of a turn of it, where it has
    one; else of its table.
    """

    def __init__(self, run: OperationRun) -> None:
        self.run, case, plain = run, run.case, run.case.operation.reference
        self.graph = None
        if plain is not None:
            beside = case.operation.beside(run.setting, {name: to_float64(x) for name, x in run.inputs.items()})
            self.graph = trace(plain, {**run.inputs, **case.numbers, **case.conventions, **beside})
        self.scans = scans_of(run)
        self.otherwise = _otherwise(run)
        self._of_inputs: dict[frozenset[str], dict[str, Expected]] = {}  # stages of a loop, where no dump matters

    def expected(self, given: Mapping[str, np.ndarray], names: Collection[str]) -> dict[str, Expected]:
        """The stages `names`, with budgets: of the `given` ones before each, and of the inputs."""
        if self.scans:
            key = frozenset(names)
            if self.scans[0].matters(given, names):
                return self._of_scans(given, names)
            if key not in self._of_inputs:
                self._of_inputs[key] = self._of_scans({}, names)
            return self._of_inputs[key]
        if self.graph is not None:
            return of_graph(self.graph, self.run.case.operation.contract(self.run.setting), given, names)
        p = problem(self.run, given)
        made = values(p, names)
        return {name: Expected(made[name], budget) for name, budget in budgets(p, made, names).items()}

    def _of_scans(self, given: Mapping[str, np.ndarray], names: Collection[str]) -> dict[str, Expected]:
        parts = [one.expected(given, names) for one in self.scans]
        found = {name: _of_all_heads([part[name] for part in parts]) for name in names}
        if self.otherwise is None:
            return found
        others = self.otherwise.expected(given, names)
        return {name: Expected(one.value, _larger(one.budget, others[name].budget)) for name, one in found.items()}

    def values(self, given: Mapping[str, np.ndarray], names: Collection[str]) -> dict[str, np.ndarray]:
        """The same without budgets, and others that they are made of."""
        if self.scans:
            some = [one.values(given, names) for one in self.scans]
            return {name: np.concatenate([part[name] for part in some], axis=1) for name in names}
        if self.graph is None:
            return values(problem(self.run, given), names)
        table = self.run.case.operation.table(self.run.setting)
        asked = [name for name in self.graph.places() if name in {*names, *table}]
        return dict(zip(asked, with_operands(self.graph, asked, given, lambda line, x: x), strict=True))


def _otherwise(run: OperationRun) -> Reference | None:
    """By what conventions a run may compute as well; None where it says, or where its stages do."""
    case, turn = run.case, run.case.operation.turn(run.setting)
    if turn is None or not turn.otherwise or {*turn.otherwise} & {*run.told}:
        return None
    table = case.operation.table(run.setting)
    if any(name not in case.operation.results or {*table[name].axes} & {*"tc"} for name in run.stages):
        return None
    return Reference(replace(run, case=replace(case, conventions={**case.conventions, **turn.otherwise})))


def _of_all_heads(parts: Sequence[Expected]) -> Expected:
    def joined(some: Sequence[Any]) -> Any:
        return some[0] if isinstance(some[0], float) else np.concatenate(some, axis=1)

    some = [one.budget for one in parts]
    bound, statistical = joined([one.bound for one in some]), joined([one.statistical for one in some])
    return Expected(
        joined([one.value for one in parts]), Budget(bound, statistical, joined([one.size for one in some]))
    )


def _larger(one: Budget, other: Budget) -> Budget:
    bound, statistical = (np.maximum(x, y) for x, y in ((one.bound, other.bound), (one.statistical, other.statistical)))
    return Budget(bound, statistical, one.size)


def problem(run: OperationRun, given: Mapping[str, np.ndarray]) -> Problem:
    """What a walk computes the stages of a run from."""
    case = run.case
    operation = case.operation
    table = operation.table(run.setting)
    axes_of = {**case.takes, **{name: stage.axes for name, stage in table.items()}}
    sizes = {axis: size_of(case, axis) for axis in "".join(axes_of.values())}
    steps, tile = sizes.get("t", 1), operation.tile(run.setting)
    one = tuple(slice(n * tile, (n + 1) * tile) for n in range(steps))
    return Problem(
        table=table,
        contract=_CONTRACT,
        losses=losses_of(_CONTRACT),
        inputs={name: to_float64(x) for name, x in run.inputs.items()},
        numbers=case.numbers,
        attn_bias=None,
        exact_products=False,
        tiling=Tiling(one, (tuple(range(steps)),)),
        given=given,
        elements={name: prod(sizes[axis] for axis in axes) for name, axes in axes_of.items()},
        axes=case.takes,
        sizes=sizes,
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
