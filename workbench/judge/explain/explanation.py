"""What is known of why a stage is as it is, worked out once; a report says it in words, in JSON and in pictures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from workbench.case.masks import visible
from workbench.case.ranks import spoken
from workbench.case.stages import OUT, RESULTS, STAGES
from workbench.expectation.elements import State
from workbench.expectation.observed import Observed
from workbench.floats import to_float64
from workbench.judge.explain.budget_shares import terms
from workbench.judge.explain.cause import Cause
from workbench.judge.explain.patterns import where
from workbench.judge.explain.suspects import Suspects, suspects
from workbench.judge.stage import StageDiff
from workbench.line import MASK, Line
from workbench.reference.dataflow import unseen_upstream
from workbench.reference.stage import reads


@dataclass(frozen=True, eq=False)
class Explanation:
    """Of one stage of a judged trace; each part is worked out when it is first asked for."""

    run: Observed
    stages: Sequence[StageDiff]  #: all that were judged
    stage: StageDiff

    @cached_property
    def definition(self) -> str:
        """What the stage is, in float64 and natural units."""
        return self.run.definition(self.stage.name)

    @cached_property
    def where(self) -> str:
        """The part of one axis that holds all that is wrong, in words; "" where there is none."""
        return spoken(where(self.stage), self.run.trace.ranks)

    @cached_property
    def line(self) -> Line | None:
        """The line of source that computes the stage, or, of scores that are wrong where they are or should be masked
        alone, that of the mask; None where that is not clear.
        """
        return self.run.trace.lines.get(MASK if self._of_mask else self.stage.name)

    def to_look_at(self, causes: Sequence[Cause]) -> Line | None:
        """The line of source to look at: that which computes what the first of the stage's `causes` names; without one,
        or of one that is not proved where none computes it, that of the stage, but of results that were judged from q,
        k and v alone, as what is wrong is made before them.
        """
        if causes:
            # of several stages that it changes its own comes first
            edited = sorted(causes[0].members[0].stages, key=lambda name: name != self.stage.name)
            line = next((line for name in edited if (line := self._computed(name)) is not None), None)
            if line is not None or not causes[0].perhaps:
                return line
        ends = self.stage.role == "origin" and self.stage.isolated is None and self.stage.name in RESULTS
        return None if ends else self.line

    def _computed(self, name: str) -> Line | None:
        """The line of a stage, or of what reads a parameter; masks have their own, and rows are loaded elsewhere."""
        steps, lines = self.run.table, self.run.trace.lines
        while name not in lines and name in steps and not steps[name].dumped:
            if name == "visible":
                return lines.get(MASK)
            read_by = [x for x, stage in steps.items() if name in reads(stage.step)]
            if name.endswith("_rows") or len(read_by) != 1:
                return None
            name = read_by[0]
        return lines.get(name)

    @property
    def _of_mask(self) -> bool:
        found = self.stage.decisive
        stage = STAGES.get(self.stage.name)  # none of weights that were measured
        if found is None or stage is None or not found.summary.outside:
            return False
        if "k" not in stage.axes or stage.masked != -np.inf:
            return False
        masked = (found.expected == -np.inf) | (to_float64(found.actual) == -np.inf)
        return bool(masked[found.outside].all())

    @cached_property
    def open_without_keys(self) -> int:
        """How many elements of out are in rows without keys that the contract leaves open, and so not judged."""
        return int(self._without_keys(State.VACUOUS).sum()) if self.run.contract.empty_out == "any" else 0

    @property
    def wrong_without_keys(self) -> int:
        """How many wrong elements of out are in rows without keys, of which kernels make different things."""
        found = self.stage.decisive
        return 0 if found is None or self.stage.name != OUT else found.summary.count(State.EMPTY)

    def _without_keys(self, *states: State) -> np.ndarray:
        """Elements of out in one of some states whose rows have no keys, and no sink, which is one."""
        found, case = self.stage.decisive, self.run.case
        if found is None or self.stage.name != OUT or case.sinks is not None:
            return np.zeros(0, bool)
        empty = ~np.any(visible(case, self.run.trace.inputs), axis=-1, keepdims=True)
        return np.isin(found.state, states) & empty

    @cached_property
    def budget_shares(self) -> Mapping[str, float]:
        """Sources of error -> their share of the budget at the worst element, as `budget_shares.terms` says."""
        return terms(self.run, self.stage)

    @cached_property
    def suspects(self) -> Suspects | None:
        """Where the cause can be, given that another stage is right."""
        return suspects(self.run, self.stages, self.stage)

    @cached_property
    def right_before(self) -> tuple[str, ...]:
        """Stages before it of which some elements were given, all right."""
        before = {*unseen_upstream(self.run.table, self.stage.name, ())} & {*self.run.trace.sparse}
        return tuple(other.name for other in self.stages if other.name in before and other.role == "clean")
