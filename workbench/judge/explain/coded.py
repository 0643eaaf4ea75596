"""The stages before attention of a kernel on codes, as hypotheses see them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from workbench.case.case import Case
from workbench.case.stages import INPUTS
from workbench.expectation.elements import Compared, compare
from workbench.expectation.observed import Observed
from workbench.floats import to_float64, ulp
from workbench.judge.explain.hypothesis import Hypothesis, Unfit, edited
from workbench.judge.explain.scene import Arrays, mismatched, predicted, touched
from workbench.reference.bound import Budget
from workbench.reference.problem import Problem
from workbench.reference.stage import Table
from workbench.reference.walk import budgets, values
from workbench.trace.trace import Trace, unwritten
from workbench.work import trials


@dataclass(frozen=True, eq=False)
class Coded:
    """A run up to its decoded rows: the counterpart of `Scene`, which begins there."""

    run: Observed

    @property
    def trace(self) -> Trace:
        """What the run left."""
        return self.run.trace

    @property
    def trials(self) -> float:
        """What one hypothesis costs here, as of `work`."""
        return trials(self.trace.case.score_count)

    @staticmethod
    def of(run: Observed) -> "Coded":
        """Of a run of a kernel on codes of a known format."""
        return Coded(run)

    def like(self, run: Observed) -> "Coded":
        """The scene of another run of the same kernel."""
        return Coded(run)

    @cached_property
    def problem(self) -> Problem:
        """From the dumped stages."""
        return self.run.decoding()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The dumped stages that can be judged."""
        return tuple(x for x in self.problem.table if x in self.trace.stages and x not in self.run.unjudgeable)

    @cached_property
    def actual(self) -> Arrays:
        """What the kernel dumped, in float64."""
        return {name: to_float64(self.trace.stages[name]) for name in self.names}

    @cached_property
    def expected(self) -> Arrays:
        """What it should have dumped, given what it dumped before."""
        return values(self.problem)

    @cached_property
    def stored(self) -> Arrays:
        """Half an ulp of what stores each stage; none of codes."""
        return {
            name: np.zeros(x.shape) if x.dtype == np.uint8 else np.nan_to_num(ulp(self.expected[name], x.dtype)) / 2
            for name, x in ((name, self.trace.stages[name]) for name in self.names)
        }

    @cached_property
    def wrong(self) -> Mapping[str, np.ndarray]:
        """Stages that are not what they should be -> which of their elements."""
        masks = {name: mismatched(one) for name, one in self._compared(self.problem.table, self.names).items()}
        return {name: mask for name, mask in masks.items() if mask.any()}

    @property
    def of_empty(self) -> bool:
        """Whether rows without keys alone are wrong: codes have none."""
        return False

    @property
    def families(self) -> tuple[str, ...]:
        """Families of the library that may have something to say."""
        return ("codes",)

    def touched(self, hypothesis: Hypothesis) -> tuple[str, ...]:
        """The dumped stages that a fault may show in."""
        return touched(self.problem, self.names, hypothesis)

    def predicted(self, hypothesis: Hypothesis, names: Collection[str]) -> Arrays | None:
        """The stages `names` of a kernel with this fault; None where it cannot have it."""
        return predicted(self.problem, self.expected, hypothesis, names)

    def compared(self, hypothesis: Hypothesis, names: Sequence[str]) -> dict[str, Compared] | None:
        """The stages `names` held against what a kernel with this fault should have; None where it cannot have it. Of
        codes those that a tie may give either way are left to who counts.
        """
        table = edited(self.problem.table, hypothesis)
        try:
            return None if table is None else self._compared(table, names)
        except Unfit:
            return None

    def _compared(self, table: Table, names: Sequence[str]) -> dict[str, Compared]:
        problem = replace(self.problem, table=table)
        computed = values(problem, names)
        bounds = budgets(problem, computed, names)
        return {name: self._held(name, computed[name], bounds[name].bound) for name in names}

    def _held(self, name: str, expected: np.ndarray, bound: np.ndarray) -> Compared:
        stage = self.trace.stages[name]
        return compare(self.actual[name], unwritten(stage), expected, Budget(bound, bound, np.inf), stage.dtype)

    def allowed(self, name: str) -> np.ndarray:
        """How far a right kernel may be from what a stage should be."""
        found: np.ndarray = budgets(self.problem, self.expected, [name])[name].bound + self.stored[name]
        return found

    def elsewhere(self, case: Case) -> Problem:
        """The same kernel on another case, of which nothing was dumped."""
        inputs = dict(zip(INPUTS, case.inputs(), strict=True))
        return Observed(replace(self.trace, case=case, inputs=inputs, stages={})).decoding([])
