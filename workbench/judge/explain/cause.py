"""Causes: what is wrong in a kernel, in words, with what proves it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from workbench.case.case import Case
from workbench.judge.explain.fit import PROOF, Fit
from workbench.judge.explain.hypothesis import Hypothesis
from workbench.judge.explain.scene import Supposed


@dataclass(frozen=True)
class Trial:
    """A prediction on a fresh case, and what the kernel did there."""

    case: Case
    predicted: str  #: in words; of what was measured, what it leaves of the error
    seen: str
    held: bool
    values: int = 0  #: elements that the fault moves and the prediction hits
    of: int = 1  #: fresh cases that were tried, of which this is the one that failed, or the first
    nan_sets: int = 0  #: different sets of elements that are NaN, neither none nor all, that were as predicted
    beyond: str = ""  #: in what another case that failed goes beyond what the run shows that the kernel takes, in words


@dataclass(frozen=True, eq=False)
class Cause:
    """Hypotheses that no run tells apart, and that reproduce a kernel's wrong numbers."""

    members: tuple[Hypothesis, ...]  #: the plainest first
    fit: Fit  #: of the plainest
    rivals: tuple[str, ...] = ()  #: other formulas that fit this run as well, in words
    decided_by: Case | None = None  #: the case that told them apart
    trial: Trial | None = None  #: the falsifier's; None where the kernel cannot be run again
    runner_up: tuple[str, float] | None = None  #: what came next, and the share that it leaves
    supposed: Supposed | None = None  #: how the kernel must cut the keys for it, where that is not declared
    measured: bool = False  #: whether it was read off the outputs of chosen inputs, and predicts runs on unseen ones
    read_as: str = ""  #: the stage that what was measured belongs to

    @property
    def id(self) -> str:
        """Of its plainest hypothesis."""
        return self.members[0].id

    @property
    def text(self) -> str:
        """In one sentence."""
        return self.members[0].text + (f" ({self.supposed})" if self.supposed else "")

    @property
    def names(self) -> tuple[str, ...]:
        """All sentences of the class, the plainest first."""
        return tuple(dict.fromkeys(one.text for one in self.members))

    @property
    def stage(self) -> str:
        """The first wrong stage that it reproduces."""
        return self.fit.stages[0]

    @property
    def places(self) -> tuple[str, ...]:
        """Stages and parameters in which it lies: those that it changes, or the one that it was read as."""
        return (self.read_as,) if self.read_as else self.members[0].stages

    @property
    def proved(self) -> bool:
        """Whether every wrong number is reproduced, by no rival as well, and no trial failed, nor a run beyond what
        the kernel may be made for. What was measured is float64, and leaves what the casts of a kernel make.
        """
        anywhere = self.trial is None or not self.trial.beyond
        sure = self.stands and anywhere and not self.perhaps
        return (self.fit.off == 0 or self.measured) and self.evidence >= PROOF and not self.rivals and sure

    @property
    def stands(self) -> bool:
        """Whether it failed no fresh case; of one that reproduces NaN alone, whether it told on two of them, too, where
        NaN is: whatever reads NaN makes NaN.
        """
        if self.trial is None:
            return True
        return self.trial.held and (self.trial.nan_sets > 1 or not self.fit.of_nan_alone)

    @property
    def perhaps(self) -> bool:
        """Whether it is no more than a guess: NaN alone, that was not looked for on other cases."""
        return self.trial is None and self.fit.of_nan_alone

    @property
    def evidence(self) -> int:
        """Elements that the fault moves and the prediction hits, in this run and on the fresh case; where that is NaN
        alone, those that are NaN.
        """
        return (self.fit.values or self.fit.nan) + (0 if self.trial is None else self.trial.values)

    def of_runs(self, whole: Callable[[Case], Case]) -> "Cause":
        """The same with the cases of its runs as `whole` makes them."""
        trial = None if self.trial is None else replace(self.trial, case=whole(self.trial.case))
        return replace(self, trial=trial, decided_by=None if self.decided_by is None else whole(self.decided_by))

    def as_dict(self) -> dict[str, Any]:
        """A cause of `workbench.explain/1`, of plain Python values.

        - `id`, `text`, `names`: the plainest hypothesis; all sentences for the same formula
        - `stage`, `stages`, `edits`: the first stage it reproduces; all of them; what it changes
        - `over_budget`, `unexplained`: largest remaining error / budget; share of the error that remains
        - `reproduced`: `elements` within budget `of` all; `wrong`: how many of them the fault moves; `nan`: of these,
          NaN
        - `proved`: reproduces every number, has no rival, and holds on a fresh case
        - `rivals`, `decided_by`, `runner_up`: equally good formulas; the case that excluded others; the next best
          (`text`, `unexplained`)
        - `falsifier`: of `cases` fresh cases the first, or the one it failed: `case`, `predicted`, `seen`, `held`;
          `wrong_beyond`: what else is wrong there
        """
        trial = self.trial
        return {
            "id": self.id,
            "names": list(self.names),
            "stage": self.stage,
            "stages": list(self.fit.stages),
            "text": self.text,
            "edits": list(self.members[0].stages),
            "over_budget": self.fit.over_budget,
            "unexplained": self.fit.unexplained,
            "reproduced": {
                "elements": self.fit.of - self.fit.off,
                "of": self.fit.of,
                "wrong": self.fit.values,
                "nan": self.fit.nan,
            },
            "proved": self.proved,
            "rivals": list(self.rivals),
            "decided_by": None if self.decided_by is None else self.decided_by.as_dict(),
            "runner_up": None
            if self.runner_up is None
            else dict(zip(("text", "unexplained"), self.runner_up, strict=True)),
            "falsifier": None
            if trial is None
            else {
                "case": trial.case.as_dict(),
                "predicted": trial.predicted,
                "seen": trial.seen,
                "held": trial.held,
                "cases": trial.of,
                "wrong_beyond": trial.beyond,
            },
        }
