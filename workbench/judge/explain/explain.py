"""From a judged run to causes: the search, what tells rivals apart, the falsifier."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from workbench.case.ranks import all_spoken
from workbench.case.stages import RESULTS, before_attention
from workbench.judge.explain.by_formula import by_formula
from workbench.judge.explain.by_measure import by_measure
from workbench.judge.explain.cause import Cause
from workbench.judge.explain.coded import Coded
from workbench.judge.explain.fit import UNEXPLAINED, Fit
from workbench.judge.explain.formulas import formulas
from workbench.judge.explain.hypothesis import Hypothesis
from workbench.judge.explain.imagine import Imagined, classes, imagined
from workbench.judge.explain.library import common, library
from workbench.judge.explain.measured import measured
from workbench.judge.explain.nan_apart import apart, mixed
from workbench.judge.explain.of_rank import of_one_rank
from workbench.judge.explain.patterns import patterns
from workbench.judge.explain.possible import possible
from workbench.judge.explain.scene import Scene, Supposed, carried
from workbench.judge.explain.search import Search, pairs, singles
from workbench.judge.explain.trial import Run, nowhere, runner, separated, tried
from workbench.judge.explain.unknown.formula import Formula
from workbench.judge.explain.unknown.mining import Pattern
from workbench.judge.stage import StageDiff
from workbench.readings.reader import Measured
from workbench.shown import shown_by
from workbench.trace.trace import Trace

#: scores of a run that is searched, at most: some dozen arrays of them in float64, 1.5 GB
LARGEST = 2**24
#: how keys may be cut where nobody told, and the families for which that matters
SUPPOSED = (
    Supposed(64), Supposed(32), Supposed(128), Supposed(16),
    Supposed(64, 2), Supposed(64, 4), Supposed(32, 2), Supposed(32, 4), Supposed(64, 8),
)  # fmt: skip
#: seconds for which factors are measured in a run, whatever the search took
MEASURING_S = 0.5
#: seconds for which a function is measured, at least, whatever the search took: a hundred calls of 5 ms, and budgets
MEASURING_AT_LEAST_S = 10.0
#: causes that are tried for what is wrong, one after the other, as each fails on a fresh case
IN_TURN = 4
#: of these, those of a report, which has little time: without splits
QUICKLY = 4
OF_TILES = ("mask", "softmax", "merge", "factor")


@dataclass(frozen=True, eq=False)
class Explained:
    """What explains a wrong run."""

    causes: tuple[Cause, ...]  #: one for each fault, in data-flow order; none where nothing fits
    unexplained: tuple[str, ...]  #: wrong stages that no cause reproduces
    withdrawn: tuple[Cause, ...]  #: fitted the run, and failed on a fresh case
    tried: int  #: hypotheses, and pairs of them
    complete: bool  #: whether time was enough
    seconds: float

    #: wrong stages that no cause reproduces -> which of their elements are wrong, and how
    patterns: Mapping[str, tuple[Pattern, ...]] = field(default_factory=dict)
    formulas: Mapping[str, tuple[Formula, ...]] = field(default_factory=dict)
    usual: tuple[str, ...] = ()  #: of a run in which nothing is wrong: what is of a usual kernel, which was explained
    of: str = ""  #: the run, in words, where it is another than the one that is shown
    judged: Any = field(default=None, repr=False)  #: the Diff that was explained, where that shows it

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

    def _repr_html_(self) -> str:
        return shown_by("page.diff.html", self.judged, self)


@np.errstate(all="ignore")
def explain(
    trace: Trace,
    stages: Sequence[StageDiff],
    *,
    seconds: float,
    alone: bool = False,
    without: str = "",
    measurement: Measured | None = None,
) -> Explained:
    """The causes of what is wrong in a judged trace: none for a right one.

    `seconds`: for the search; what is found is tried afterwards. `alone`: single hypotheses only, and no runs.
    `without`: a family that is not searched, to see what is said where the cause is in no family. `measurement`:
    what was measured of the trace, which is not measured again.
    """
    trace, stages = of_one_rank(trace, stages)
    origins = [stage for stage in stages if stage.role == "origin"]
    run = nowhere if alone or trace.box is not None else runner(trace)
    scenes = list(_scenes(trace, origins)) if trace.case.score_count <= LARGEST else []
    # made before the clock starts: once in a process it takes about a second
    searched = [_hypotheses(trace, [name for name in scene.families if name != without]) for scene in scenes]
    begun = time.monotonic()
    names = [stage.name for stage in origins]
    of_measure: list[Cause] = []
    if run is not nowhere and {*names} <= {*RESULTS}:
        of_measure = by_measure(trace, names, max(seconds, MEASURING_AT_LEAST_S), measurement)
    # what was measured is proved: the library may have a name for it, of one fault, as the run was cut by its contract
    told = {*names} <= {name for cause in of_measure for name in cause.fit.stages}
    until = time.thread_time() + seconds
    causes: list[Cause] = []
    withdrawn: list[Cause] = []
    count, complete = 0, bool(scenes) or not origins
    with threadpool_limits(1, "blas"):
        for scene, among in zip(scenes, searched, strict=True):
            wrong = _wrong(scene, origins)
            for cut, named in [(scene, among)] if told else _ways(scene, among, trace, alone, without):
                if not alone and cut is not scene and time.thread_time() > until:
                    complete = False
                    break
                where, single = imagined(cut), alone or told or cut is not scene
                chosen, found = _searched(cut, where, wrong, until, single, named, in_haste=alone)
                count, complete = count + found.tried, complete and found.complete
                if chosen and named is not among and cut is scene:
                    # what is common, again among all others, which may be rivals
                    again, more = _searched(cut, where, wrong, until, single, among, in_haste=alone)
                    count, complete = count + max(more.tried - found.tried, 0), complete and more.complete
                    chosen, found = (again, more) if again else (chosen, found)
                # of attention on decoded rows cases have no codes; the runs that were made have
                whole = partial(carried, scene.trace.case, to=trace.case)
                tried = [
                    [one.of_runs(whole) for one in _tried_in_turn(cut, where, fits, found, run)] for fits in chosen
                ]
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
    said = {stage.name: formulas(trace, stage) for stage in known}
    if run is not nowhere:
        causes += [cause for stage in known if (cause := by_formula(trace, stage, said[stage.name])) is not None]
    causes = _with_measured(causes, of_measure, names)
    by_any = {name for cause in causes for name in cause.fit.stages}
    left_over = [stage for stage in left_over if stage.name not in by_any]
    return Explained(
        tuple(causes),
        tuple(stage.name for stage in left_over),
        tuple(withdrawn),
        count,
        complete,
        time.monotonic() - begun,
        {stage.name: patterns(trace, stage) for stage in known if stage in left_over},
        {name: some for name, some in said.items() if name not in by_any},
    )


def _with_measured(named: list[Cause], measured: Sequence[Cause], wrong: Sequence[str]) -> list[Cause]:
    """Causes by name, and those that were measured of what has none. Where these are of all that is wrong and the names
    are not, a name would be a second one for a part of it.
    """
    by_name, by_measure = ({name for cause in some for name in cause.fit.stages} for some in (named, measured))
    if {*wrong} <= by_measure and {*wrong} - by_name:
        return [*measured]
    return [*named, *(cause for cause in measured if not {*cause.fit.stages} & by_name)]


def _scenes(trace: Trace, origins: Sequence[StageDiff]) -> Iterator[Scene | Coded]:
    """The parts of a trace that have a wrong stage."""
    before = before_attention(trace.algorithm)
    if any(stage.name in before for stage in origins) and trace.case.codes is not None:
        yield Coded.of(trace)
    if any(stage.name not in before for stage in origins):
        yield Scene.of(trace)


def _ways(
    scene: Scene | Coded, among: Sequence[Hypothesis], trace: Trace, alone: bool, without: str
) -> Iterator[tuple[Scene | Coded, Sequence[Hypothesis]]]:
    """The scene, and that of each way in which a kernel that does not tell it may cut the keys, with the hypotheses
    that are tried there; `alone`: what is common first, and all at last.
    """
    yield scene, common(among) if alone else among
    if isinstance(scene, Scene) and trace.contract.block_k is None:
        for supposed in SUPPOSED[:QUICKLY] if alone else SUPPOSED:
            if supposed.splits == 1 and supposed.block_k >= scene.trace.case.seqlen_k:
                continue  # one tile, as the scene has
            cut = Scene(supposed.of(scene.trace), supposed=supposed)
            families = [name for name in cut.families if name in OF_TILES and name != without]
            of_tiles = library([name for name in families if not alone or name == "softmax"])
            yield cut, common(of_tiles) if alone else of_tiles
    if alone:
        yield scene, among


def _hypotheses(trace: Trace, families: Sequence[str]) -> Sequence[Hypothesis]:
    """Those of some families, in the words of a run."""
    return all_spoken(library(families), trace.ranks)


def _wrong(scene: Scene | Coded, origins: Sequence[StageDiff]) -> dict[str, np.ndarray]:
    """The wrong stages of a part, and which of their elements."""
    masks = {stage.name: stage.decisive.outside for stage in origins if stage.decisive is not None}
    return {name: mask for name, mask in masks.items() if name in scene.names and mask.any()}


def _searched(
    scene: Scene | Coded,
    where: Sequence[Imagined],
    wrong: Mapping[str, np.ndarray],
    until: float,
    alone: bool,
    among: Sequence[Hypothesis],
    *,
    in_haste: bool = False,
) -> tuple[list[list[Fit]], Search]:
    """Fits, each with its rivals, for as many wrong stages as can be; and what was tried."""
    beside: list[Fit] = []
    count = 0
    if mixed(scene, wrong):  # which one fault seldom makes
        now = time.thread_time()
        beside, count = apart(scene, wrong, now + (until - now) / 2, among, partial(_of_nan, where))
    found = _sound(where, singles(scene, wrong, until, among, in_haste=in_haste))
    found = replace(found, tried=found.tried + count, fits=(*found.fits, *beside))
    chosen, left = _cover(found.fits, wrong)
    if left and isinstance(scene, Scene) and scene.supposed is None:
        rest = {name: wrong[name] for name in left}
        at_most = max(until, time.thread_time() + MEASURING_S)
        factors = _sound(where, singles(scene, rest, at_most, [*measured(scene, rest, at_most)]))
        found = replace(found, tried=found.tried + factors.tried, fits=(*found.fits, *factors.fits))
        by_factors, left = _cover(factors.fits, rest)
        chosen = [*chosen, *by_factors]
    unknown_tiles = isinstance(scene, Scene) and scene.trace.contract.block_k is None
    if not left or alone or (unknown_tiles and not chosen):
        return chosen, found
    whole = found
    if len(wrong) > 1 and any(len({*scene.touched(one.hypothesis)} & {*wrong}) > 1 for one in found.near):
        # two faults that make all that is wrong are simpler than one that makes a part of it and two more
        now = time.thread_time()
        both = _sound(where, pairs(scene, wrong, found, now + (until - now) / 2, all_of_it=True))
        whole = replace(whole, tried=whole.tried + both.tried, fits=(*whole.fits, *both.fits))
        together, still = _cover(both.fits, wrong)
        if not still:
            return together, whole
    rest = {name: wrong[name] for name in left}
    more = _sound(where, pairs(scene, rest, _narrowed(found, scene, rest), until))
    whole = replace(
        whole,
        tried=whole.tried + more.tried,
        fits=(*whole.fits, *more.fits),
        complete=whole.complete and more.complete,
    )
    return [*chosen, *_cover(more.fits, rest)[0]], whole


def _sound(where: Sequence[Imagined], found: Search) -> Search:
    """The search without fits that hit nothing but NaN and are not of NaN."""
    return replace(found, fits=tuple(one for one in found.fits if one.values or _of_nan(where, one.hypothesis)))


def _of_nan(where: Sequence[Imagined], hypothesis: Hypothesis) -> bool:
    """Whether NaN is all that a fault makes. Whatever reads NaN makes NaN; and of one that changes numbers that nobody
    saw, such as a maximum that a quotient leaves out again, NaN proves nothing.
    """
    told = {there.makes_only_nan(hypothesis) for there in where}
    return True in told and False not in told


def _cover(fits: Sequence[Fit], wrong: Iterable[str]) -> tuple[list[list[Fit]], list[str]]:
    """Fits that together reproduce as many wrong stages as they can, each with its rivals; and the stages left."""
    left = list(wrong)
    chosen: list[list[Fit]] = []
    # those of most stages come first
    while useful := [one for one in fits if {*one.stages} <= {*left}]:
        first = useful[0]
        exact = [one for one in useful if one.stages == first.stages and one.off in (0, first.off)]
        nearest = min(one.residual for one in exact)
        chosen.append([one for one in exact if one.residual <= 4 * nearest + 0.02])
        left = [name for name in left if name not in first.stages]
    return chosen, left


def _narrowed(found: Search, scene: Scene | Coded, wrong: Mapping[str, np.ndarray]) -> Search:
    """The single hypotheses that touch one of the stages that are left."""
    near = tuple(one for one in found.near if {*scene.touched(one.hypothesis)} & {*wrong})
    return replace(found, fits=(), near=near)


def _tried_in_turn(
    scene: Scene | Coded, where: Sequence[Imagined], fits: Sequence[Fit], found: Search, run: Run
) -> Iterator[Cause]:
    """The cause that the fits amount to; where it fails a fresh case, that of those that come next, and so on."""
    stages, left = fits[0].stages, list(found.fits)
    for _ in range(IN_TURN):
        cause = _cause(scene, where, fits, found, run)
        yield cause
        left = [one for one in left if one.stages == stages and one not in fits]
        if cause.stands or not left:
            return
        fits = _cover(left, stages)[0][0]


def _cause(scene: Scene | Coded, where: Sequence[Imagined], fits: Sequence[Fit], found: Search, run: Run) -> Cause:
    """The cause that fits of the same stages amount to: one class, where a run or the formulas tell."""
    names = fits[0].stages
    groups = classes([one.hypothesis for one in fits], where, names)
    decided = None
    left = list(fits)
    if len(groups) > 1:
        left, decided = separated(fits, where, names, run)
        kept = {id(one.hypothesis) for one in left}
        groups = [group for group in ([h for h in group if id(h) in kept] for group in groups) if group]
    first = groups[0]
    best = next(one for one in left if one.hypothesis is first[0])
    fitted = {id(one.hypothesis) for one in fits}
    after = next(
        (
            (one.hypothesis.text, one.left)
            for one in found.near
            if id(one.hypothesis) not in fitted and one.left > UNEXPLAINED
        ),
        None,
    )
    return Cause(
        tuple(first),
        best,
        tuple(group[0].text for group in groups[1:]),
        decided,
        tried(first[0], where, names, run, decided),
        after,
        scene.supposed if isinstance(scene, Scene) else None,
    )
