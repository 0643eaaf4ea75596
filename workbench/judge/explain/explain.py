"""From a judged run to causes: where is searched, how much, and what is said where nothing is found."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from workbench.case.ranks import all_spoken
from workbench.case.stages import RESULTS
from workbench.expectation.observed import Observed
from workbench.judge.explain.by_formula import by_formula, by_sums
from workbench.judge.explain.by_measure import by_measure
from workbench.judge.explain.cause import Cause
from workbench.judge.explain.coded import Coded
from workbench.judge.explain.counter_cases import counter_cases
from workbench.judge.explain.cover import searched, tried_in_turn, wrong_of
from workbench.judge.explain.formulas import formulas
from workbench.judge.explain.hypothesis import Hypothesis
from workbench.judge.explain.library import common, library
from workbench.judge.explain.of_rank import of_one_rank
from workbench.judge.explain.patterns import patterns
from workbench.judge.explain.possible import possible
from workbench.judge.explain.scene import Scene, Supposed, carried
from workbench.judge.explain.trial import nowhere, runner
from workbench.judge.explain.unknown.formula import Formula
from workbench.judge.explain.unknown.mining import Pattern
from workbench.judge.explain.unstable import RANDOM, unstable
from workbench.judge.stage import StageDiff
from workbench.readings.reader import Measured
from workbench.shown import above, shown_by
from workbench.work import SEARCH, Work

#: scores of a run that is searched, at most: some dozen arrays of them in float64, 1.5 GB
LARGEST = 2**24
#: how keys may be cut where that is not declared, and the families for which that matters
SUPPOSED = (
    Supposed(64), Supposed(32), Supposed(128), Supposed(16),
    Supposed(64, 2), Supposed(64, 4), Supposed(32, 2), Supposed(32, 4), Supposed(64, 8),
)  # fmt: skip
#: of the work of a search, what measuring the function may take, and what the library has afterwards: of functions of
#: `campaigns measured` that are measured in vain it names none in twice as much
MEASURING, AFTERWARDS = 0.8, 0.4
#: of SUPPOSED, those of a report, which has little time: without splits
QUICKLY = 4
OF_TILES = ("mask", "softmax", "merge", "factor")


@dataclass(frozen=True, eq=False)
class Explained:
    """What explains a wrong run."""

    causes: tuple[Cause, ...]  #: one for each fault, in data-flow order; none where nothing fits
    unexplained: tuple[str, ...]  #: wrong stages that no cause reproduces
    withdrawn: tuple[Cause, ...]  #: fitted the run, and failed on a fresh case
    tried: int  #: hypotheses, and pairs of them
    ended_by: str  #: what ended the search before all was tried: effort, or the user's seconds; empty: nothing
    seconds: float

    #: wrong stages that no cause reproduces -> which of their elements are wrong, and how
    patterns: Mapping[str, tuple[Pattern, ...]] = field(default_factory=dict)
    formulas: Mapping[str, tuple[Formula, ...]] = field(default_factory=dict)
    unstable: str = ""  #: where two runs on the same inputs differ, and what is wrong alike in both, in words
    usual: tuple[str, ...] = ()  #: of a run in which nothing is wrong: what is of a usual kernel, which was explained
    #: the Diff of the run that was explained, where that is another than the one that is shown
    elsewhere: Any = field(default=None, repr=False)
    judged: Any = field(default=None, repr=False)  #: the Diff that was explained, where that shows it
    alone: bool = False  #: whether causes are all: the kernel is not to be run again

    @cached_property
    def watched(self) -> Any:
        """What a watched run of the wrong kernel finds (`explore.explain.watched`), run when first asked for."""
        return None if self.judged is None or self.alone else above("explore.explain.watched", self)

    @cached_property
    def laws(self) -> Any:
        """What the kernel makes of the laws of attention where nothing explains a wrong stage (`explore.explain.laws`),
        run when first asked for.
        """
        return None if self.judged is None or self.alone else above("explore.explain.laws", self)

    @property
    def complete(self) -> bool:
        """Whether all was tried that is ever tried."""
        return not self.ended_by

    def unknown(self) -> dict[str, Any]:
        """Patterns and formulas as in `workbench.explain/1`."""
        return {
            "stages": list(self.unexplained),
            "patterns": [{"stage": name, **asdict(one)} for name, some in self.patterns.items() for one in some],
            "formulas": [{"stage": name, **asdict(one)} for name, some in self.formulas.items() for one in some],
        }

    def as_dicts(self) -> list[dict[str, Any]]:
        """The causes as in `workbench.explain/1`, the best first."""
        return [cause.as_dict() for cause in self.causes]

    def save_html(self, path: str | Path) -> None:
        """Write the page of `workbench explain --html`. Refusal where nothing can be written there."""
        shown_by("page.diff.save", path, self.judged, self)

    def __str__(self) -> str:
        return repr(self) if self.judged is None else shown_by("text.explained_in_short", self)

    def _repr_html_(self) -> str | None:
        return None if self.judged is None else shown_by("page.diff.html", self.judged, self)


@np.errstate(all="ignore")
def explain(
    observed: Observed,
    stages: Sequence[StageDiff],
    *,
    work: Work,
    alone: bool = False,
    without: str = "",
    measurement: Measured | None = None,
    measuring: Work | None = None,
) -> Explained:
    """The causes of what is wrong in a judged run: none for a right one.

    `work`: what the search may do; what is found is tried afterwards. `alone`: single hypotheses only, and no runs
    but those of `measuring`, what measuring the function may do; None: of a search its part, else nothing.
    `without`: a family that is not searched, to see what is said where the cause is in no family. `measurement`:
    what was measured of the run, which is not measured again.
    """
    observed, stages = of_one_rank(observed, stages)
    trace = observed.trace
    origins = [stage for stage in stages if stage.role == "origin"]
    run = nowhere if alone or trace.box is not None else runner(trace)
    begun = time.monotonic()
    differs = unstable(observed, origins) if run is not nowhere else ""
    if differs.startswith(RANDOM):
        return Explained((), tuple(x.name for x in origins), (), 0, "", time.monotonic() - begun, unstable=differs)
    if run is not nowhere and not without and (of_sums := by_sums(observed, origins)):
        return Explained(tuple(of_sums), (), (), len(of_sums), "", time.monotonic() - begun, unstable=differs)
    scenes = list(_scenes(observed, origins)) if trace.case.score_count <= LARGEST else []
    among_all = [_hypotheses(observed, [name for name in scene.families if name != without]) for scene in scenes]
    names = [stage.name for stage in origins]
    of_measure: list[Cause] = []
    if run is not nowhere and measuring is None:
        # a measurement that ends early tells nothing: it is allowed what usual effort gives it
        measuring = work.part(MEASURING, least=MEASURING * SEARCH)
    if measuring is not None and {*names} <= {*RESULTS}:
        of_measure = by_measure(observed, names, measuring, measurement)
        if run is not nowhere and work.spent:
            work = work.part(0.0, least=AFTERWARDS * work.allowed)
    # what was measured is proved: the library may have a name for it, of one fault, as the run was cut by its contract
    told = {*names} <= {name for cause in of_measure for name in cause.fit.stages}
    causes: list[Cause] = []
    withdrawn: list[Cause] = []
    count, complete = 0, True
    with threadpool_limits(1, "blas"):
        for scene, among in zip(scenes, among_all, strict=True):
            wrong = wrong_of(scene, origins)
            ways = _ways(scene, among, alone, without, told=told)
            for cut, named in ways:
                if not alone and cut is not scene and work.over:
                    complete = False
                    break
                where, single = counter_cases(cut), alone or told or cut is not scene
                chosen, found = searched(cut, where, wrong, work, single, named, in_haste=alone)
                count, complete = count + found.tried, complete and found.complete
                if chosen and named is not among and cut is scene:
                    # what is common, again among all others, which may be rivals
                    again, more = searched(cut, where, wrong, work, single, among, in_haste=alone)
                    count, complete = count + max(more.tried - found.tried, 0), complete and more.complete
                    chosen, found = (again, more) if again else (chosen, found)
                # of attention on decoded rows cases have no codes; the runs that were made have
                whole = partial(carried, scene.trace.case, to=trace.case)
                tried = [[one.of_runs(whole) for one in tried_in_turn(cut, where, fits, found, run)] for fits in chosen]
                stand = [last for *_, last in tried if last.stands]
                causes += stand
                ids = {one.id for one in withdrawn}  # otherwise cut it may be tried again
                withdrawn += [one for some in tried for one in some if one not in stand and one.id not in ids]
                if stand:
                    break
    if scenes:
        causes = possible(causes, origins, scenes[-1].problem.table)
    causes.sort(key=lambda cause: names.index(cause.stage))
    explained = {name for cause in causes for name in cause.fit.stages}
    left_over = [stage for stage in origins if stage.name not in explained]
    known = [stage for stage in left_over if stage.decisive is not None and not alone and scenes]
    said = {stage.name: formulas(observed, stage) for stage in known}
    if run is not nowhere:
        causes += [cause for stage in known if (cause := by_formula(observed, stage, said[stage.name])) is not None]
    if alone and told:  # what is proved, in place of a name that is in doubt
        causes = [cause for cause in causes if cause.proved or cause.rivals]
    causes = _with_measured(causes, of_measure, names)
    by_any = {name for cause in causes for name in cause.fit.stages}
    left_over = [stage for stage in left_over if stage.name not in by_any]
    return Explained(
        tuple(causes),
        tuple(stage.name for stage in left_over),
        tuple(withdrawn),
        count,
        "size" if origins and not scenes else "" if complete else work.ended_by,
        time.monotonic() - begun,
        {stage.name: patterns(observed, stage) for stage in known if stage in left_over},
        {name: some for name, some in said.items() if name not in by_any},
        differs,
    )


def _with_measured(named: list[Cause], measured: Sequence[Cause], wrong: Sequence[str]) -> list[Cause]:
    """Causes by name, and those that were measured of what has none. Where these are of all that is wrong and the names
    are not, a name would be a second one for a part of it.
    """
    by_name, by_measure = ({name for cause in some for name in cause.fit.stages} for some in (named, measured))
    if {*wrong} <= by_measure and {*wrong} - by_name:
        return [*measured]
    return [*named, *(cause for cause in measured if not {*cause.fit.stages} & by_name)]


def _scenes(run: Observed, origins: Sequence[StageDiff]) -> Iterator[Scene | Coded]:
    """The parts of a run that have a wrong stage."""
    before = run.before_attention
    if any(stage.name in before for stage in origins) and run.case.codes is not None:
        yield Coded.of(run)
    if any(stage.name not in before for stage in origins):
        yield Scene.of(run)


def _ways(
    scene: Scene | Coded, among: Sequence[Hypothesis], alone: bool, without: str, *, told: bool
) -> Iterator[tuple[Scene | Coded, Sequence[Hypothesis]]]:
    """The scene, and that of each way in which a kernel that does not declare it may cut the keys, with the hypotheses
    that are tried there; `alone`: what is common first, and all at last. `told`: of what was measured, a name is asked
    for: as the contract cuts it, and `alone` what is common.
    """
    yield scene, common(among) if alone else among
    if told and not alone:
        return
    if isinstance(scene, Scene) and scene.run.contract.block_k is None:
        for supposed in SUPPOSED[:QUICKLY] if alone else SUPPOSED:
            if supposed.splits == 1 and supposed.block_k >= scene.trace.case.seqlen_k:
                continue  # one tile, as the scene has
            cut = Scene(supposed.of(scene.run), supposed=supposed)
            if not _has_the_tiles_of_dumps(cut.run):
                continue
            families = [name for name in cut.families if name in OF_TILES and name != without]
            of_tiles = library([name for name in families if not alone or name == "softmax"])
            yield cut, common(of_tiles) if alone else of_tiles
    if alone and not told:
        yield scene, among


def _has_the_tiles_of_dumps(run: Observed) -> bool:
    """Whether stages that a kernel gave tile by tile, or split by split, are of as many as the contract makes."""
    return all(
        run.sizes[axis] == n
        for name, x in run.dumped.items()
        for axis, n in zip(run.known[name].axes, x.shape, strict=True)
        if axis in "ts"
    )


def _hypotheses(run: Observed, families: Sequence[str]) -> Sequence[Hypothesis]:
    """Those of some families, in the words of a run."""
    return all_spoken(library(families), run.trace.ranks)
