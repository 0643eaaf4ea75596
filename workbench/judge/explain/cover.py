"""Covers: fits that together reproduce what is wrong of a run, how they are found, and what causes they amount to."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from workbench.judge.explain.cause import Cause
from workbench.judge.explain.coded import Coded
from workbench.judge.explain.counter_cases import CounterCase, classes
from workbench.judge.explain.fit import UNEXPLAINED, Fit
from workbench.judge.explain.hypothesis import Hypothesis
from workbench.judge.explain.measured import measured
from workbench.judge.explain.nan_apart import apart, mixed
from workbench.judge.explain.scene import Scene
from workbench.judge.explain.search import Search, pairs, singles
from workbench.judge.explain.trial import Run, separated, tried
from workbench.judge.stage import StageDiff
from workbench.work import Work

#: hypotheses that fitting a factor may try, whatever the search took: 13 for each of some ten stages, twice
FITTING = 300
#: causes that are tried for what is wrong, one after the other, as each fails on a fresh case
IN_TURN = 4


def wrong_of(scene: Scene | Coded, origins: Sequence[StageDiff]) -> dict[str, np.ndarray]:
    """The wrong stages of a part, and which of their elements."""
    masks = {stage.name: stage.decisive.outside for stage in origins if stage.decisive is not None}
    return {name: mask for name, mask in masks.items() if name in scene.names and mask.any()}


def searched(
    scene: Scene | Coded,
    where: Sequence[CounterCase],
    wrong: Mapping[str, np.ndarray],
    work: Work,
    alone: bool,
    among: Sequence[Hypothesis],
    *,
    in_haste: bool = False,
) -> tuple[list[list[Fit]], Search]:
    """Fits, each with its rivals, for as many wrong stages as can be; and what was tried."""
    beside: list[Fit] = []
    count = 0
    if mixed(scene, wrong):  # which one fault seldom makes
        beside, count = apart(scene, wrong, work.part(0.5), among, partial(_of_nan, where))
    found = _sound(where, singles(scene, wrong, work, among, in_haste=in_haste))
    if any({*one.stages} >= {*wrong} for one in found.fits):
        beside = []  # one fault that makes both is simpler than two
    found = replace(found, tried=found.tried + count, fits=(*found.fits, *beside))
    chosen, left = _cover(found.fits, wrong)
    if left and isinstance(scene, Scene) and scene.supposed is None:
        rest = {name: wrong[name] for name in left}
        fitting = work.part(least=FITTING * scene.trials)
        factors = _sound(where, singles(scene, rest, fitting, [*measured(scene, rest, fitting)]))
        found = replace(found, tried=found.tried + factors.tried, fits=(*found.fits, *factors.fits))
        by_factors, left = _cover(factors.fits, rest)
        chosen = [*chosen, *by_factors]
    unknown_tiles = isinstance(scene, Scene) and scene.trace.contract.block_k is None
    if not left or alone or (unknown_tiles and not chosen):
        return chosen, found
    whole = found
    if len(wrong) > 1 and any(len({*scene.touched(one.hypothesis)} & {*wrong}) > 1 for one in found.near):
        # two faults that make all that is wrong are simpler than one that makes a part of it and two more
        both = _sound(where, pairs(scene, wrong, found, work.part(0.5), all_of_it=True))
        whole = replace(whole, tried=whole.tried + both.tried, fits=(*whole.fits, *both.fits))
        together, still = _cover(both.fits, wrong)
        if not still:
            return together, whole
    rest = {name: wrong[name] for name in left}
    more = _sound(where, pairs(scene, rest, _narrowed(found, scene, rest), work))
    whole = replace(
        whole,
        tried=whole.tried + more.tried,
        fits=(*whole.fits, *more.fits),
        complete=whole.complete and more.complete,
    )
    return [*chosen, *_cover(more.fits, rest)[0]], whole


def _sound(where: Sequence[CounterCase], found: Search) -> Search:
    """The search without fits that hit nothing but NaN and are not of NaN."""
    return replace(found, fits=tuple(one for one in found.fits if one.values or _of_nan(where, one.hypothesis)))


def _of_nan(where: Sequence[CounterCase], hypothesis: Hypothesis) -> bool:
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


def tried_in_turn(
    scene: Scene | Coded, where: Sequence[CounterCase], fits: Sequence[Fit], found: Search, run: Run
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


def _cause(scene: Scene | Coded, where: Sequence[CounterCase], fits: Sequence[Fit], found: Search, run: Run) -> Cause:
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
