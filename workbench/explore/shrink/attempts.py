"""Attempts: the kernel run on other cases, each case once, and what came of it, until the work is over."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from workbench.case.case import Case
from workbench.case.fields import GIVEN
from workbench.explore.shrink.space import changed, elements
from workbench.explore.shrink.symptom import Symptom
from workbench.judge.diff import Diff, diff
from workbench.progress import Tick
from workbench.refusal import Refusal, Unavailable
from workbench.trace.trace import Rerun
from workbench.work import TRIALS_OF_RUN, Work, trials

Inputs = Mapping[str, np.ndarray]
#: runs of a case whose majority decides, where the kernel does not always do the same
MAJORITY_OF = 5


class Outcome(Enum):
    """What came of a case; the value says it in a word."""

    FAILS = "fails"  #: in the same way
    OTHERWISE = "fails differently"  #: another stage is wrong first, or the cause does not reproduce it
    PASSES = "passes"  #: no stage is wrong
    REFUSED = "not applicable"  #: there is no such case, or the kernel does not take it


@dataclass(eq=False)
class Attempts:
    """Runs of one kernel, and the best that came of them."""

    rerun: Rerun
    symptom: Symptom
    best: Case  #: the smallest case so far that fails in the same way
    work: Work  #: after which nothing is run any more
    tick: Tick
    runs: int = 1  #: of a case at most; of several the majority decides
    evaluations: int = 0  #: runs that were judged
    late: bool = False  #: whether something was not run since the work was over
    inputs: Inputs | None = None  #: of the best, where they are not the case's own
    _known: dict[Case, Outcome] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._known[self.best] = Outcome.FAILS

    def fails(self, **changes: Any) -> bool:
        """Whether the best with other values of some coordinates fails in the same way: it is the best then. False
        where the work is over.
        """
        if self.outcome(**changes) is not Outcome.FAILS:
            return False
        self.best = changed(self.best, **changes)
        return True

    def outcome(self, **changes: Any) -> Outcome | None:
        """What comes of the best with other values of some coordinates; None where the work is over."""
        try:
            case = changed(self.best, **changes)
        except Refusal:
            return Outcome.REFUSED
        if case not in self._known:
            found = self.of(case)
            if found is None:
                return None
            self._known[case] = found
        return self._known[case]

    def of(self, case: Case, inputs: Inputs | None = None) -> Outcome | None:
        """What comes of a case, on `inputs` in place of its own; None where the work is over."""
        seen: Counter[Outcome] = Counter()
        needed = self.runs // 2 + 1
        while max(seen.values(), default=0) < needed and seen.total() < self.runs:
            if self.work.over:
                self.late = True
                return None
            seen[self._once(case, inputs)] += 1
            if seen[Outcome.REFUSED]:
                break
        # without a majority for one of them, it does not fail in this way often enough
        return max((one for one in seen if one is not Outcome.FAILS or seen[one] >= needed), key=seen.__getitem__)

    def judged(self, case: Case, inputs: Inputs | None = None) -> Diff:
        """A run of a case, judged; Refusal where there is none."""
        self.tick(f"{self.evaluations} runs, {elements(self.best)} elements in q, k and v")
        found = diff(self.rerun(case) if inputs is None else self.rerun(case.but(distribution=GIVEN), inputs))
        self.evaluations += 1
        self.work.take(TRIALS_OF_RUN * trials(case.score_count))
        return found

    def _once(self, case: Case, inputs: Inputs | None) -> Outcome:
        try:
            judged = self.judged(case, inputs)
        except (Refusal, Unavailable):
            return Outcome.REFUSED
        if judged.origin is None:
            return Outcome.PASSES
        return Outcome.FAILS if self.symptom.shows_in(judged, self.work) else Outcome.OTHERWISE
