"""A run as hypotheses are held against it: which of its stages they must explain, and what an edited table predicts."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from workbench.expectation.elements import WRONG
from workbench.floats import round_to, to_float64, ulp, unit_roundoff
from workbench.judge.explain.hypothesis import Hypothesis, edited
from workbench.operations.expected import Reference, held, problem
from workbench.operations.run import OperationRun, results
from workbench.reference.context import CHANGE_ROUNDINGS, Context
from workbench.reference.dataflow import with_upstream
from workbench.reference.graph import Expected
from workbench.reference.mode import FLOAT32_RANGE
from workbench.reference.problem import Problem
from workbench.reference.stage import Step, Table
from workbench.reference.steps.altered import Altered
from workbench.reference.steps.neutral import CastTo
from workbench.reference.walk import values
from workbench.work import trials

#: share of the error of a stage that a cause may leave: an edit that changes nothing leaves all of it
UNEXPLAINED = 0.2
#: the same in another run, where one hypothesis is asked and not thousands, however wide its budgets are
LEFT_ELSEWHERE = 0.5
#: what a stage was made of: what was dumped before it, or the inputs alone, by a chain of its kernel's own
DUMPED, OWN = "dumped", "own"

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Fit:
    """A hypothesis that gives the wrong numbers of a run."""

    ways: Mapping[str, str]  #: stage that it explains -> DUMPED or OWN
    left: float  #: the largest share of the error of a stage that it leaves
    moved: int  #: wrong elements that it gives
    others: tuple[str, ...]  #: results that it would change in the same way, which are right without it


class Scene:
    """One run, and what float64 makes of it."""

    def __init__(self, run: OperationRun) -> None:
        self.run, self.table = run, run.case.operation.table(run.setting)
        self.results = [name for name in results(run.case) if name in run.stages]
        alone = problem(run, {})
        looped = Context(alone, {}).looped
        # a parameter of a tile is made where it is read
        self.kept = [name for name, stage in self.table.items() if stage.dumped or name not in looped]
        self.reference = Reference(run)
        made = self.reference.values({}, self.kept)
        self.free = run.case.operation.free(run.setting, alone.inputs)
        given = {}
        for name, x in run.stages.items():
            # what nobody need write a fault may read; as it should be only where nobody wrote it
            blank = np.broadcast_to(self.free.get(name, False), x.shape) & ~np.isfinite(to_float64(x))
            given[name] = np.where(blank, made[name], to_float64(x))
        of_dumps = problem(run, given)
        self.problems: Mapping[str, Problem] = {DUMPED: of_dumps, OWN: alone}
        self.made: Mapping[str, Arrays] = {DUMPED: self.reference.values(given, self.kept), OWN: made}
        self._downstream: dict[tuple[str, str], frozenset[str]] = {}
        #: what one hypothesis costs here, as of `work`
        self.trials = trials(sum(x.size for x in made.values()))

    @cached_property
    def _expected(self) -> Mapping[str, Mapping[str, Expected]]:
        """Way -> what the stages of the run should be in that way."""
        return {way: self.reference.expected(p.given, [*self.run.stages]) for way, p in self.problems.items()}

    @cached_property
    def outside(self) -> Mapping[tuple[str, str], np.ndarray]:
        """Stage and way -> which of its elements are wrong in that way."""
        found = {}
        for way, expected in self._expected.items():
            for name, one in expected.items():
                judged = held(self.run.stages[name], one.value, one.budget, self.free.get(name))
                found[name, way] = np.isin(judged.state, WRONG)
        return found

    def right(self, name: str) -> bool:
        """Whether a stage is right by what was dumped before it; of a result, which a chain of its own may have made,
        or by the inputs.
        """
        ways = (DUMPED, OWN) if name in self.results else (DUMPED,)
        return any(not self.outside[name, way].any() for way in ways)

    @cached_property
    def wrong(self) -> tuple[str, ...]:
        """Stages that are not right."""
        return tuple(name for name in self.run.stages if not self.right(name))

    def changed(self, stages: Collection[str], way: str, table: Table | None = None) -> frozenset[str]:
        """What an edit of `stages` changes."""
        found: set[str] = set()
        for stage in stages:
            key = stage, way
            if key not in self._downstream:
                ends = self.problems[way].given
                self._downstream[key] = frozenset(
                    name for name in self.table if stage in with_upstream(self.table, (name,), ends)
                )
            found |= self._downstream[key]
        return frozenset(found)

    def predicted(self, hypothesis: Hypothesis, names: Collection[str], way: str) -> dict[str, np.ndarray] | None:
        """What the edited table makes of the stages `names`; None where it has no such steps."""
        made = self._edited(hypothesis, way)
        return None if made is None else values(made, names, FLOAT32_RANGE)

    def _edited(self, hypothesis: Hypothesis, way: str) -> Problem | None:
        table = edited(self.table, hypothesis)
        if table is None:
            return None
        table = {name: replace(stage, step=_overflowing(stage.step)) for name, stage in table.items()}
        p, below = self.problems[way], self.changed(hypothesis.stages, way)
        known = {name: x for name, x in self.made[way].items() if name not in below}
        return replace(p, table=table, given={**known, **p.given})

    def within(self, hypothesis: Hypothesis, names: Collection[str], way: str) -> dict[str, float] | None:
        """Stage of `names` -> how many times a right kernel's budgets those of the edit are, which grow as its numbers
        do; None where an element is beyond these, and a few roundings of what is changed.
        """
        right, below, of_edit = self.made[way], self.changed(hypothesis.stages, way), self._edited(hypothesis, way)
        assert of_edit is not None
        edit = values(of_edit, [name for name in self.kept if name in below], FLOAT32_RANGE)
        sizes = [(_largest(x), _largest(right[name])) for name, x in edit.items() if name in right]
        grown, made = max([1.0, *(new / old for new, old in sizes if old)]), {**right, **edit}
        for name in names:
            own = self._expected[way][name].budget.bound
            # an edit may take elements to other places: the largest budget of the stage holds for those that it moves
            of_change = CHANGE_ROUNDINGS * unit_roundoff("float32") * _largest(made[name])
            moved = ~(abs(made[name] - right[name]) <= own)
            if not self._all_within(name, made[name], np.where(moved, grown * _largest(own) + of_change, grown * own)):
                return None
        return dict.fromkeys(names, grown)

    @np.errstate(all="ignore")
    def _all_within(self, name: str, predicted: np.ndarray, bound: np.ndarray) -> bool:
        dumped = self.run.stages[name]
        actual = to_float64(dumped)
        allowed = bound
        if dumped.dtype.itemsize < 4:
            allowed = bound + ulp(abs(predicted) + bound, dumped.dtype) / 2
        stored = round_to(predicted, dumped.dtype)  # infinite where it overflows
        hit = (abs(actual - predicted) <= allowed) | (actual == stored) | (np.isnan(actual) & np.isnan(predicted))
        return bool((hit | np.broadcast_to(self.free.get(name, False), hit.shape)).all())

    def left(self, name: str, predicted: np.ndarray, way: str) -> tuple[float, int]:
        """The share of the error of a stage that a prediction leaves where the stage is wrong, and how many elements
        that are. 1 where NaN and infinities are elsewhere, and where all of it is NaN, which many a fault makes.
        """
        dumped = self.run.stages[name]
        actual, expected = to_float64(dumped), self.made[way][name]
        judged = ~np.broadcast_to(self.free.get(name, False), actual.shape)
        stored = round_to(predicted, dumped.dtype)
        finite = np.isfinite(actual)
        if not (judged & finite).any() or (judged & (finite != np.isfinite(stored))).any():
            return 1.0, 0
        odd = judged & ~finite
        if not np.array_equal(actual[odd], stored[odd], equal_nan=True):
            return 1.0, 0
        bad = judged & self.outside[name, way]
        judged = bad & finite & np.isfinite(expected)
        error = abs(actual - expected)[judged]
        rest = np.maximum(abs(actual[judged] - predicted[judged]) - ulp(abs(actual[judged]), dumped.dtype) / 2, 0.0)
        moved, size = int(bad.sum()), float(error.max(initial=0.0))
        if size == 0:
            return (0.0 if moved else 1.0), moved
        return float(np.linalg.norm(rest / size) / np.linalg.norm(error / size)), moved

    def fit(
        self, hypothesis: Hypothesis, stages: Collection[str], asked: Mapping[str, str] | None = None
    ) -> Fit | None:
        """The hypothesis held against the wrong ones of `stages`; `asked`: the ways in which it explained another run,
        which it must keep.
        """
        wrong = {*self.wrong} & {*stages} | {*(asked or {})}
        ways = self._ways(hypothesis, wrong, asked)
        if ways is None:
            return None
        # what everybody sees is made by the edited step, too
        if DUMPED in ways.values():
            shared = self.changed(hypothesis.stages, DUMPED) & {*self.run.stages}
            ways |= {name: DUMPED for name in shared if name not in ways and name not in self.results}
        left, moved = 0.0, 0
        for way in {*ways.values()}:
            names = [name for name in ways if ways[name] == way]
            made = self.predicted(hypothesis, names, way)
            if made is None:
                return None
            wider = self.within(hypothesis, names, way)
            if wider is None:
                return None
            for name in wrong & {*names} & {*self.wrong}:
                share, count = self.left(name, made[name], way)
                if share > (UNEXPLAINED / wider[name] if asked is None else LEFT_ELSEWHERE):
                    return None
                left, moved = max(left, share), moved + count
        touched = frozenset[str]().union(*(self.changed(hypothesis.stages, way) for way in ways.values()))
        others: tuple[str, ...] = ()
        if {*self.results} >= wrong:
            others = tuple(name for name in self.results if name in touched and name not in ways)
        return Fit(ways, left, moved, others)

    def _ways(
        self, hypothesis: Hypothesis, wrong: Collection[str], asked: Mapping[str, str] | None
    ) -> dict[str, str] | None:
        """How it may explain each wrong stage, coarsely."""
        found, limit = {}, UNEXPLAINED if asked is None else LEFT_ELSEWHERE
        below = {way: self.changed(hypothesis.stages, way) for way in (DUMPED, OWN)}
        for name in sorted(wrong, key=[*self.run.stages].index):
            some = [asked[name]] if asked and name in asked else [DUMPED, OWN] if name in self.results else [DUMPED]
            if not any(name in below[way] for way in some):
                return None
        for name in sorted(wrong, key=[*self.run.stages].index):
            some = [asked[name]] if asked and name in asked else [DUMPED, OWN] if name in self.results else [DUMPED]
            for way in some:
                if name not in below[way]:
                    continue
                if way == DUMPED and name in self.results and below[DUMPED] == below[OWN]:
                    continue  # nothing was dumped before it
                made = self.predicted(hypothesis, (name,), way)
                if made is None:
                    return None
                if name not in self.wrong or self.left(name, made[name], way)[0] <= limit:
                    found[name] = way
                    break
            else:
                return None
        return found


def _largest(x: np.ndarray) -> float:
    return float(np.max(abs(x), initial=0.0, where=np.isfinite(x)))


def _overflowing(step: Step) -> Step:
    """A cast to a dtype that ends sooner than float32, which is infinite beyond its end."""
    if not isinstance(step, CastTo) or step.dtype != "float16":
        return step
    return Altered(step, lambda at, x: np.where(np.isfinite(round_to(x, "float16")), x, np.sign(x) * np.inf))
