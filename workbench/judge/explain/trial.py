"""Trials: the kernel run on cases on which hypotheses differ, and on one on which a cause must show again."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from workbench.case.case import Case
from workbench.expectation.observed import Observed
from workbench.judge.explain.cause import Trial
from workbench.judge.explain.coded import Coded
from workbench.judge.explain.counter_cases import CounterCase, alike, classes
from workbench.judge.explain.fit import Fit, fit
from workbench.judge.explain.hypothesis import Hypothesis
from workbench.judge.explain.scene import Scene, carried
from workbench.refusal import Refusal, Unavailable
from workbench.trace.trace import Trace

#: the kernel on another case, as the part of a trace that is looked at; None where it cannot be run
Run = Callable[[Scene | Coded, Case], Scene | Coded | None]
#: fresh cases on which a cause must hold, where there are as many: ragged tiles, several heads, another count of splits
TRIALS = 3


def nowhere(scene: Scene | Coded, case: Case) -> None:
    """Of a kernel that cannot be run."""


def runner(trace: Trace) -> Run:
    """Runs the kernel of a trace on other cases, each once."""
    made: dict[Case, Observed | None] = {}
    looked_at: dict[tuple[Scene | Coded, Case], Scene | Coded] = {}

    def run(scene: Scene | Coded, case: Case) -> Scene | Coded | None:
        if trace.rerun is None:
            return None
        whole = carried(scene.trace.case, case, trace.case)
        if whole not in made:
            try:
                made[whole] = Observed(trace.rerun(whole))
            except (Refusal, Unavailable):  # a case that this kernel does not take
                made[whole] = None
        again = made[whole]
        if again is not None and (scene, whole) not in looked_at:
            looked_at[scene, whole] = scene.like(again)
        return looked_at.get((scene, whole))

    return run


def separated(
    rivals: Sequence[Fit], where: Sequence[CounterCase], names: Sequence[str], run: Run
) -> tuple[list[Fit], Case | None]:
    """The rivals that are left after runs on cases on which they differ, and the case that decided; all of them, and
    None, where no run can tell.
    """
    left, decided = list(rivals), None
    for there in where:
        groups = classes([one.hypothesis for one in left], [there], names)
        if len(groups) < 2:
            continue
        scene = run(there.scene, there.case)
        if scene is None:
            continue
        kept = [one for one in left if holds(scene, one.hypothesis) is not False]
        if 0 < len(kept) < len(left):
            left, decided = kept, there.case
    return left, decided


def tried(
    hypothesis: Hypothesis, where: Sequence[CounterCase], names: Sequence[str], run: Run, beside: Case | None
) -> Trial | None:
    """The hypothesis on the first TRIALS of the cases on which it shows, `beside` apart: the one that it fails, or the
    first of them; None where none could be run. Of one that makes NaN alone, further ones are tried until it has told
    where NaN is in two of them, of different shapes or masks.

    A kernel that somebody wrote may take no more than what the run shows. Where it is wrong in another way beyond that,
    and as predicted within, the cause stands.
    """
    trials: list[Trial] = []
    nan = set[tuple[Any, ...]]()
    within, held_beyond, failed = False, set[str](), list[tuple[Trial, tuple[str, ...]]]()
    for there in where:
        if there.case == beside or not _moves(hypothesis, there, names):
            continue
        scene = run(there.scene, there.case)
        visible = {} if scene is None else _visible(scene, hypothesis, names)
        if scene is None or not visible:
            continue
        name, share = next(iter(visible.items()))
        again = fit(scene, hypothesis, _wrong(scene, hypothesis), elsewhere=True)
        if again is None and _nothing_but_nan(scene, hypothesis):
            continue
        seen = float(np.mean(scene.wrong[name])) if name in scene.wrong else 0.0
        one = Trial(
            there.case,
            f"{share:.1%} of {name} wrong",
            f"{seen:.1%}{', as predicted' if again is not None else ''}",
            again is not None,
            0 if again is None else again.values,
        )
        if again is None and within and there.beyond and scene.trace.backend == "foreign":
            failed.append((one, there.beyond))
            continue
        trials.append(one)
        within |= one.held and not there.beyond
        held_beyond |= {*there.beyond} if one.held else set()
        if again is None:
            break
        nan |= {_where_nan(scene, again.stages)} - {()}
        if len(trials) >= TRIALS and (again.values or len(nan) > 1):
            break
    # what it takes elsewhere is no excuse
    trials += [one for one, beyond in failed if {*beyond} <= held_beyond]
    decisive = min(trials, key=lambda one: one.held, default=None)
    if decisive is None:
        return None
    further = ", or ".join(dict.fromkeys(x for _, some in failed for x in some))
    return replace(decisive, of=len(trials), beyond=further, nan_sets=len(nan))


def _nothing_but_nan(scene: Scene | Coded, hypothesis: Hypothesis) -> bool:
    """Whether all of a stage is NaN, as predicted: such a run neither supports a hypothesis nor refutes it."""
    names = [name for name in scene.touched(hypothesis) if np.isnan(scene.actual[name]).all()]
    found = scene.predicted(hypothesis, names) if names else None
    return found is not None and any(np.isnan(x).all() for x in found.values())


def _where_nan(scene: Scene | Coded, names: Sequence[str]) -> tuple[Any, ...]:
    """Which elements of the stages `names` are NaN; () where none are, or all of a stage."""
    sets = [np.isnan(scene.actual[name]) for name in names]
    if not any(x.any() for x in sets) or any(x.all() for x in sets):
        return ()
    return tuple((name, x.shape, x.tobytes()) for name, x in zip(names, sets, strict=True))


@np.errstate(all="ignore")
def holds(scene: Scene | Coded, hypothesis: Hypothesis, *, elsewhere: bool = False) -> bool | None:
    """Whether a run is as the hypothesis predicts; None where it predicts nothing there that could be seen.
    `elsewhere`: as of `fit`.
    """
    if wrong := _wrong(scene, hypothesis):
        return fit(scene, hypothesis, wrong, elsewhere=elsewhere) is not None
    return False if _visible(scene, hypothesis, scene.touched(hypothesis)) else None


def _wrong(scene: Scene | Coded, hypothesis: Hypothesis) -> dict[str, np.ndarray]:
    """The wrong stages that the hypothesis touches, and which of their elements."""
    touched = scene.touched(hypothesis)
    return {name: mask for name, mask in scene.wrong.items() if name in touched}


def _visible(scene: Scene | Coded, hypothesis: Hypothesis, names: Sequence[str]) -> dict[str, float]:
    """Stage -> share of its elements that the hypothesis takes out of the budget of a right kernel."""
    found = scene.predicted(hypothesis, [name for name in names if name in scene.names])
    shares = {}
    for name, x in (found or {}).items():
        right = scene.expected[name]
        known = np.isfinite(x) & np.isfinite(right)
        off = abs(np.where(known, x, 0.0) - np.where(known, right, 0.0)) > scene.allowed(name)
        other = ~known & ~((x == right) | (np.isnan(x) & np.isnan(right)))
        if share := float(np.mean(off | other)):
            shares[name] = share
    return shares


def _moves(hypothesis: Hypothesis, there: CounterCase, names: Sequence[str]) -> bool:
    """Whether the hypothesis changes one of the stages on a case."""
    found = there.predicted(hypothesis, names)
    return found is not None and any(not alike(x, there.expected[name]) for name, x in found.items())
