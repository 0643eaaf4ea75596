"""The causes of what is wrong in a run: hypotheses that give its wrong numbers, held against fresh runs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from workbench.judge.explain.hypothesis import Hypothesis
from workbench.operations.causes.neutral import hypotheses
from workbench.operations.causes.scene import Fit, Scene
from workbench.operations.run import OperationRun
from workbench.refusal import Refusal
from workbench.shown import shown_by
from workbench.work import ENDED, Work

#: fresh runs that a cause must predict
FRESH = 2
#: wrong elements that make a proof: fewer fit by coincidence
PROOF = 100
#: numbers that inputs have in all: the stages of more would take GBs, a hundred times
LARGEST = 2**22
#: of a trial, what a hypothesis takes: most are refused before they are computed, 0.07 to 0.12 ms on average
SHARE = 0.25
#: formulas that are said where several fit
MOST = 4
#: predictions as near are of one formula: float64 rounds as much
SAME = 1e-9


@dataclass(frozen=True)
class OperationCause:
    """One formula that gives the wrong numbers of some stages."""

    stages: tuple[str, ...]  #: wrong ones, in data-flow order
    members: tuple[Hypothesis, ...]  #: whose numbers are the same, the plainest first
    fit: Fit
    fresh: int  #: other runs that it predicted
    moved: int  #: wrong elements that it gave, in all runs

    @property
    def id(self) -> str:
        """Of its plainest hypothesis."""
        return self.members[0].id

    @property
    def text(self) -> str:
        """What the function does instead of what it should."""
        alone = f", in {', '.join(self.stages)} only" if self.fit.others else ""
        return self.members[0].text + alone

    @property
    def proved(self) -> bool:
        """Whether fresh runs were as predicted, in enough elements."""
        return self.fresh >= FRESH and self.moved >= PROOF

    def predicts(self, run: OperationRun) -> bool:
        """Whether it gives what is wrong of its stages in another run of the function, and they are as it says."""
        return _predicted(self.members[0], self.fit, [Scene(run)]) is not None

    def as_dict(self) -> dict[str, Any]:
        """Of plain Python values."""
        return {
            "id": self.id,
            "text": self.text,
            "same": [one.text for one in self.members[1:]],
            "stages": list(self.stages),
            "left": self.fit.left,
            "moved": self.moved,
            "fresh_runs": self.fresh,
            "proved": self.proved,
        }


@dataclass(frozen=True)
class OperationExplained:
    """What explains a run; nothing of a right one."""

    causes: tuple[OperationCause, ...] = ()  #: that no run told apart, those of the first wrong stage first
    withdrawn: tuple[str, ...] = ()  #: what fitted the run, and not a fresh one
    tried: int = 0  #: hypotheses
    ended_by: str = ""  #: what ended the search before all were tried: effort, or the user's seconds
    #: the OperationDiff that was explained, which shows it
    judged: Any = field(default=None, repr=False, compare=False)

    @property
    def complete(self) -> bool:
        """Whether all hypotheses were tried."""
        return not self.ended_by

    @property
    def sentences(self) -> list[str]:
        """The cause in a line, what else it may be, and what a fresh run contradicted."""
        said, apart = [], len({one.stages for one in self.causes}) > 1
        known: set[tuple[str, ...]] = set()
        for one in self.causes:
            word = f"cause in {', '.join(one.stages)}" if apart else "cause"
            sure = "" if one.proved else "perhaps "
            fresh = f"confirmed on {one.fresh} fresh cases" if one.fresh else "not tried on a fresh case"
            said.append(f"{'or' if one.stages in known else word}: {sure}{one.text} ({fresh})")
            known.add(one.stages)
            if same := [other.text for other in one.members[1:MOST]]:
                said.append(f"  same result: {'; '.join(same)}")
        if not self.causes and self.tried:
            said.append(f"cause unknown: {self.tried} hypotheses tried{ENDED[self.ended_by]}")
        return said + [f"withdrawn: {text} (a fresh case contradicts it)" for text in self.withdrawn[:MOST]]

    def as_dict(self) -> dict[str, Any]:
        """The part of the document of `workbench explain --operation NAME --json` that says what explains it."""
        return {
            "causes": [one.as_dict() for one in self.causes],
            "withdrawn": list(self.withdrawn),
            "tried": self.tried,
            "complete": self.complete,
            "ended_by": self.ended_by,
        }

    def __str__(self) -> str:
        return repr(self) if self.judged is None else shown_by("operation.in_short", self.judged, self)

    def _repr_html_(self) -> str | None:
        return None if self.judged is None else shown_by("operation.html", self.judged, self)


def library(run: OperationRun) -> Iterator[Hypothesis]:
    """What may be wrong in an operation: its own faults first, then those that any table has."""
    of, operation = run.setting, run.case.operation
    table = operation.table(of)
    axes = {**run.case.takes, **{name: stage.axes for name, stage in table.items()}}
    yield from operation.hypotheses(of)
    yield from hypotheses(of, table, axes, operation.axes)


@np.errstate(all="ignore")
def explain(run: OperationRun, work: Work) -> OperationExplained:
    """The causes of what is wrong in a run, searched for until `work` is over; what fits is tried on fresh runs.
    Nothing is searched of runs with more than LARGEST numbers as inputs.
    """
    if sum(x.size for x in run.inputs.values()) > LARGEST:
        return OperationExplained(ended_by="size")
    scene = Scene(run)
    if not scene.wrong:
        return OperationExplained()
    search = _Search(scene, work)
    causes = search.causes(scene.wrong)
    if not causes and len(scene.wrong) > 1:
        # several faults, or one in two loops that each have their own: the first wrong stage, and what is left
        causes = search.causes(scene.wrong[:1])
        told = {name for one in causes for name in one.stages}
        if causes and (rest := tuple(name for name in scene.wrong if name not in told)):
            causes += search.causes(rest)
    return OperationExplained(tuple(causes), tuple(search.withdrawn), len(search.tried), search.ended_by)


class _Search:
    """A search through the library for what explains some stages of a run, and then the rest."""

    def __init__(self, scene: Scene, work: Work) -> None:
        self.scene, self.work = scene, work
        self.tried: set[str] = set()
        self.withdrawn: list[str] = []
        self.ended_by = ""

    def causes(self, stages: Sequence[str]) -> list[OperationCause]:
        """What explains all of `stages`, and fresh runs; the best first."""
        found: list[tuple[Hypothesis, Fit]] = []
        for hypothesis in library(self.scene.run):
            if self.work.over:
                self.ended_by = self.work.ended_by
                break
            self.work.take(self.scene.trials * SHARE)
            self.tried.add(hypothesis.id)
            if (fit := self.scene.fit(hypothesis, stages)) is not None:
                found.append((hypothesis, fit))
        causes = []
        for members, fit in _classes(self.scene, found):
            moved = _predicted(members[0], fit, self.fresh)
            if moved is None:
                self.withdrawn.append(members[0].text)
                continue
            own = tuple(name for name in self.scene.wrong if name in fit.ways)
            causes.append(OperationCause(own, members, fit, len(self.fresh), fit.moved + moved))
        # what explains more is the cause of less, too
        most = [one for one in causes if not any({*one.stages} < {*other.stages} for other in causes)]
        return sorted(most, key=lambda one: one.fit.left)

    @cached_property
    def fresh(self) -> list[Scene]:
        """Other runs of the function."""
        return list(_fresh(self.scene.run))


def _fresh(run: OperationRun) -> Iterator[Scene]:
    """The same case with other seeds, where the function can be called."""
    if run.again is None:
        return
    for n in range(1, FRESH + 1):
        try:
            made = run.again(replace(run.case, seed=run.case.seed + n))
        except Refusal:
            return
        yield Scene(replace(made, stages={name: x for name, x in made.stages.items() if name in run.stages}))


def _predicted(hypothesis: Hypothesis, fit: Fit, scenes: Sequence[Scene]) -> int | None:
    """How many wrong elements of other runs a hypothesis gives; None where it does not give one of these."""
    moved = 0
    for scene in scenes:
        again = scene.fit(hypothesis, [*fit.ways], fit.ways)
        if again is None:
            return None
        moved += again.moved
    return moved


def _classes(scene: Scene, found: Sequence[tuple[Hypothesis, Fit]]) -> list[tuple[tuple[Hypothesis, ...], Fit]]:
    """Hypotheses whose numbers are the same together; of these the ones that would change the fewest results beside."""
    classes: list[tuple[list[Hypothesis], Fit, Mapping[str, np.ndarray]]] = []
    for hypothesis, fit in sorted(found, key=lambda one: len(one[1].others)):
        made: dict[str, np.ndarray] = {}
        for way in {*fit.ways.values()}:
            names = [name for name in fit.ways if fit.ways[name] == way]
            made |= scene.predicted(hypothesis, names, way) or {}
        for members, other, known in classes:
            if other.ways == fit.ways and all(_same(made[name], known[name]) for name in fit.ways):
                if len(fit.others) == len(other.others):
                    members.append(hypothesis)
                break
        else:
            classes.append(([hypothesis], fit, made))
    return [(tuple(members), fit) for members, fit, _ in classes]


def _same(x: np.ndarray, y: np.ndarray) -> bool:
    size = np.nanmax(abs(y), initial=0.0, where=np.isfinite(y))
    return bool(np.allclose(x, y, rtol=SAME, atol=SAME * size, equal_nan=True))
