"""Every stage of a run of an operation, held against float64: what it should be of the stages that it read, and of the
inputs; the first wrong one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from workbench.expectation.elements import Comparison
from workbench.floats import to_float64
from workbench.judge.reference.lines import definition
from workbench.judge.reference.stages import JUDGED
from workbench.judge.stage import RIGHT_VERDICTS, SEVERITY, StageDiff, in_role, verdict_of
from workbench.operations.causes import OperationExplained, explain
from workbench.operations.drawn import compared, otherwise
from workbench.operations.expected import Reference, held
from workbench.operations.run import OperationRun, shape_of
from workbench.reference.bound import NEGLIGIBLE, Budget
from workbench.reference.graph import Expected
from workbench.shown import shown_by
from workbench.work import SEARCH, Work, trials

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: share of a search that a report does
QUICK = 0.5
#: how much more a search may do for larger runs: of 80,000 scores 36,000 trials are all edits, and take 4 s
MOST_FOR_SIZE = 2.0


class Condition(NamedTuple):
    """Condition numbers of the elements of a stage: sums of the sizes of terms over what they add up to."""

    median: float
    largest: float


@dataclass(frozen=True, eq=False)
class OperationDiff:
    """The judgement of one run."""

    run: OperationRun
    stages: tuple[StageDiff, ...]  #: that were given, in data-flow order
    others: tuple[str, ...]  #: that were not
    conditions: Mapping[str, Condition] = field(default_factory=dict)  #: of the stages of whose terms anything is known
    drawn: Mapping[str, str] = field(default_factory=dict)  #: stage -> what roundings decided that were drawn, in words
    effort: float = 1.0  #: how many times as many causes as usual a report tries

    @property
    def headline(self) -> str:
        """What was run, in words."""
        return self.run.headline

    @property
    def fails(self) -> bool:
        """Whether a stage is wrong, or nothing could be judged, or something stands above the verdict."""
        return self.origin is not None or self.verdict == "untestable" or bool(self.run.gates)

    @cached_property
    def origins(self) -> tuple[str, ...]:
        """Stages that are wrong by what they read, in data-flow order."""
        return in_role(self.stages, "origin")

    @property
    def origin(self) -> str | None:
        """The first wrong stage; None of a right run."""
        return self.origins[0] if self.origins else None

    @property
    def victims(self) -> tuple[str, ...]:
        """Stages that are wrong because of others alone."""
        return in_role(self.stages, "victim")

    @cached_property
    def assumed(self) -> dict[str, Any]:
        """Convention -> its usual value, of those that its stages depend on and the function did not tell."""
        operation, setting, asked = self.run.case.operation, self.run.setting, _Asked(self.run.case.conventions)
        operation.stages(replace(setting, conventions=asked))
        usual = {name: choices[0] for name, choices in operation.conventions.items() if name not in self.run.told}
        names = asked.names | {*operation.budgeted(setting)}
        return {name: x for name, x in usual.items() if name in names and x == self.run.case.conventions[name]}

    @cached_property
    def explained_by(self) -> tuple[tuple[str, Mapping[str, Any]], ...]:
        """Of a wrong run: other values of conventions that were assumed with each of which all of it is right, in words
        and by name: of one convention; where there is none, of what known kernels do.
        """
        if self.origin is None:
            return ()
        operation, assumed = self.run.case.operation, self.assumed
        single = [{name: x} for name in assumed for x in operation.conventions[name][1:]]
        found = [(_said(one), one) for one in single if self._right_with(one)]
        if not found:
            sets = (
                (whose, {name: x for name, x in one.items() if name in assumed})
                for whose, one in operation.known.items()
            )
            found = [(f"as in {whose}: {_said(one)}", one) for whose, one in sets if one and self._right_with(one)]
        return tuple(found)

    @cached_property
    def explained(self) -> OperationExplained:
        """What a report says of causes: as `explain`, with a QUICK search."""
        return self._explained(self._work(self.effort * QUICK))

    def explain(self, effort: float = 1.0, *, seconds: float | None = None) -> OperationExplained:
        """What is wrong in it: causes that fit all of it, and fresh runs where the function can be called; none of a
        right run. `effort`: how many times as much as usual is tried; `seconds`: a cap, under which what is found may
        depend on the machine.
        """
        return self._explained(self._work(effort, seconds))

    def _work(self, effort: float, seconds: float | None = None) -> Work:
        """What a search may do, more for large runs, each edit of which costs more."""
        case, stages = self.run.case, self.run.case.operation.stages(self.run.setting)
        largest = max(prod(shape_of(case, axes)) for axes in stages.values())
        return Work(effort * SEARCH * min(MOST_FOR_SIZE, max(1.0, trials(largest))), seconds=seconds)

    def _explained(self, work: Work) -> OperationExplained:
        found = explain(self.run, work) if self.origin is not None else OperationExplained()
        return replace(found, judged=self)

    def _right_with(self, conventions: Mapping[str, Any]) -> bool:
        case = self.run.case
        changed = replace(self.run, case=replace(case, conventions={**case.conventions, **conventions}))
        stages = case.operation.stages(changed.setting)
        fits = all(name in stages and x.shape == shape_of(changed.case, stages[name])
                   for name, x in changed.stages.items())  # fmt: skip
        return fits and judged(changed).verdict in RIGHT_VERDICTS

    @property
    def verdict(self) -> str:
        """Of the whole run: the worst of its stages."""
        return max((one.verdict for one in self.stages), key=SEVERITY.index, default="untestable")

    def definition(self, name: str) -> str:
        """What a stage is: its line of the plain function, and where that stands."""
        return definition(name, Reference(self.run).line(name))

    def __getitem__(self, name: str) -> StageDiff:
        return next(one for one in self.stages if one.name == name)

    def as_dict(self) -> dict[str, Any]:
        """The document of `workbench diff --operation NAME --json`, of plain Python values."""
        return shown_by("operation.document", self)

    def plot(self) -> "Figure":
        """The overview of all stages, a matplotlib Figure."""
        return shown_by("pictures.overview.overview", self.stages, self.headline)

    def __repr__(self) -> str:
        name = self.run.case.operation.name
        said = f"{self.verdict}, origins {list(self.origins)}, victims {list(self.victims)}"
        return f"<OperationDiff of {self.run.target}, {name}: {said}>"

    def __str__(self) -> str:
        return shown_by("operation.in_short", self)

    def _repr_html_(self) -> str:
        return shown_by("operation.html", self)


class _Asked(dict[str, Any]):
    """Conventions that know which of them were asked."""

    def __init__(self, conventions: Mapping[str, Any]) -> None:
        super().__init__(conventions)
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.names.add(name)
        return super().__getitem__(name)


def _said(conventions: Mapping[str, Any]) -> str:
    return ",".join(f"{name}={x}" for name, x in conventions.items())


def judged(run: OperationRun) -> OperationDiff:
    """Every stage that was given, from the nearest stages before it that were (isolated), and from the inputs."""
    operation, reference = run.case.operation, Reference(run)
    made = reference.values({}, [*run.stages])
    free = operation.free(run.setting, reference.inputs)
    # what nobody need write is read as what it should be
    given = {name: np.where(free.get(name, False), made[name], to_float64(x)) for name, x in run.stages.items()}
    terms = operation.terms(run.setting, {**reference.inputs, **made})
    if reference.is_drawn:
        found = compared(reference)
    else:
        wider = otherwise(run)
        both = (_compared(run, reference.expected(of, [*run.stages]), free, terms, wider) for of in (given, {}))
        isolated, propagated = both
        found = {name: (isolated[name], propagated[name], "") for name in run.stages}
    stages = []
    for name, (own, whole, by) in found.items():
        verdict, reason = verdict_of(own.summary)
        if by and verdict in RIGHT_VERDICTS and own.summary.judged < JUDGED * own.summary.size:
            verdict, reason = "untestable", "roundings alone may change too many of its elements entirely"
        stages.append(
            StageDiff(
                name, reference.stages[name], verdict, own, whole, judged_from=reference.before(name, given),
                reason=reason, dumped=run.stages[name], run=f"{run.target}: {run.case}",
            )
        )  # fmt: skip
    conditions = {name: _condition(terms[name], made[name], free.get(name)) for name in run.stages if name in terms}
    others = tuple(name for name in reference.stages if name not in given)
    return OperationDiff(run, tuple(stages), others, conditions, {name: by for name, (_, _, by) in found.items() if by})


def _condition(terms: np.ndarray, value: np.ndarray, free: np.ndarray | None) -> Condition:
    """Of the elements that are made of any terms."""
    some = np.broadcast_to(True if free is None else ~free, value.shape) & (terms > 0)
    with np.errstate(divide="ignore", over="ignore"):
        found = terms[some] / abs(value[some])
    return Condition(float(np.median(found)), float(found.max())) if found.size else Condition(1.0, 1.0)


def _compared(
    run: OperationRun, expected: Mapping[str, Expected], free: Mapping[str, np.ndarray],
    terms: Mapping[str, np.ndarray], wider: Mapping[str, Budget],
) -> dict[str, Comparison]:  # fmt: skip
    found = {}
    for name, x in run.stages.items():
        value, budget = expected[name].value, expected[name].budget
        if name in wider:
            other = wider[name]
            bound, likely = np.maximum(budget.bound, other.bound), np.maximum(budget.statistical, other.statistical)
            budget = Budget(bound, likely, budget.size)
        if name in terms:
            # of no terms at all an element is 0, which can be told
            size = np.where(terms[name] == 0, np.inf, np.maximum(terms[name], NEGLIGIBLE))
            budget = replace(budget, size=size)
        found[name] = held(x, value, budget, free.get(name))
    return found
