"""What the reference computes the stages of a run of an operation from; one stage held against what it should be."""

from collections.abc import Mapping
from math import prod

import numpy as np

from workbench.case.case import Case
from workbench.case.contract import of_foreign
from workbench.case.tiling import Tiling
from workbench.expectation.elements import Comparison, State, compare, kept
from workbench.floats import to_float64, ulp
from workbench.operations.run import OperationRun, size_of
from workbench.reference.bound import Budget
from workbench.reference.losses import losses_of
from workbench.reference.problem import Problem

#: of attention, of which no step of another operation asks anything
_CONTRACT = of_foreign({}, Case())


def problem(run: OperationRun, given: Mapping[str, np.ndarray]) -> Problem:
    """What the reference computes the stages of a run from."""
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
