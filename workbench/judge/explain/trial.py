"""Trials: the kernel run on cases on which hypotheses differ, and on one on which a cause must show again."""

from collections.abc import Callable, Sequence
from dataclasses import fields

import numpy as np

from workbench.case.case import Case
from workbench.judge.explain.cause import Trial
from workbench.judge.explain.coded import Coded
from workbench.judge.explain.fit import Fit, fit
from workbench.judge.explain.hypothesis import Hypothesis
from workbench.judge.explain.imagine import Imagined, alike, classes
from workbench.judge.explain.scene import Scene
from workbench.refusal import Refusal, Unavailable
from workbench.trace.trace import Trace

#: a prediction is worth a run where it moves this share of a stage's elements, at least
MOVED = 0.002

#: the kernel on another case, as the part of a trace that is looked at; None where it cannot be run
Run = Callable[[Scene | Coded, Case], Scene | Coded | None]


def nowhere(scene: Scene | Coded, case: Case) -> None:
    """Of a kernel that cannot be run."""


def runner(trace: Trace) -> Run:
    """Runs the kernel of a trace on other cases, each once."""
    made: dict[Case, Trace | None] = {}

    def run(scene: Scene | Coded, case: Case) -> Scene | Coded | None:
        if trace.rerun is None:
            return None
        # attention on decoded rows has a case of its own
        changed = {x.name: y for x in fields(case) if (y := getattr(case, x.name)) != getattr(scene.trace.case, x.name)}
        whole = trace.case.but(**changed)
        if whole not in made:
            try:
                made[whole] = trace.rerun(whole)
            except (Refusal, Unavailable):  # a case that this kernel does not take
                made[whole] = None
        again = made[whole]
        return None if again is None else type(scene).of(again)

    return run


def separated(
    rivals: Sequence[Fit], where: Sequence[Imagined], names: Sequence[str], run: Run
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
        kept = [one for one in left if _holds(scene, one.hypothesis) is not False]
        if 0 < len(kept) < len(left):
            left, decided = kept, there.case
    return left, decided


def tried(
    hypothesis: Hypothesis, where: Sequence[Imagined], names: Sequence[str], run: Run, beside: Case | None
) -> Trial | None:
    """The hypothesis on the first of the cases on which it moves something, `beside` apart; None where none could be
    run.
    """
    for there in where:
        if there.case == beside:
            continue
        moved = _moved(hypothesis, there, names)
        if not moved:
            continue
        scene = run(there.scene, there.case)
        if scene is None:
            continue
        name, share = next(iter(moved.items()))
        held = _holds(scene, hypothesis)
        found = {x: float(np.mean(mask)) for x, mask in scene.wrong.items()}
        seen = ", ".join(f"{x} {part:.1%}" for x, part in found.items() if x in names) or "nothing wrong"
        words = "as predicted" if held else "not as predicted"
        return Trial(there.case, f"{name} moves at {share:.1%} of its elements", f"{seen} outside, {words}", bool(held))
    return None


def _holds(scene: Scene | Coded, hypothesis: Hypothesis) -> bool | None:
    """Whether a run is as the hypothesis predicts; None where it predicts nothing there that could be seen."""
    touched = scene.touched(hypothesis)
    wrong = {name: mask for name, mask in scene.wrong.items() if name in touched}
    if not wrong:
        found = scene.predicted(hypothesis, touched)
        moved = found is not None and any(not alike(found[name], scene.expected[name]) for name in touched)
        comparisons = scene.compared(hypothesis, touched) if moved else None
        if comparisons is None:
            return None
        # right within its budget, and as wrong as predicted too: nothing is said
        return None if fit(scene, hypothesis, {}) is None and not _visible(scene, hypothesis, touched) else False
    return fit(scene, hypothesis, wrong) is not None


def _visible(scene: Scene | Coded, hypothesis: Hypothesis, touched: Sequence[str]) -> bool:
    """Whether what the hypothesis predicts is outside the budget of a right kernel."""
    found = scene.predicted(hypothesis, touched)
    if found is None:
        return False
    for name in touched:
        allowed = scene.allowed(name)
        off = abs(found[name] - scene.expected[name])
        if np.any(off > 2 * allowed) or np.any(np.isnan(off) & ~np.isnan(scene.expected[name])):
            return True
    return False


def _moved(hypothesis: Hypothesis, there: Imagined, names: Sequence[str]) -> dict[str, float]:
    """Stage -> share of its elements that the hypothesis moves by more than a thousandth of the stage's size."""
    found = there.predicted(hypothesis, names)
    if found is None:
        return {}
    shares = {}
    for name, x in found.items():
        right = there.expected[name]
        finite = np.isfinite(x) & np.isfinite(right)
        size = np.sqrt(np.mean(right[finite] ** 2)) if finite.any() else 0.0
        with np.errstate(all="ignore"):
            moved = np.where(
                finite, abs(x - right) > 1e-3 * (abs(right) + size), ~(np.isnan(x) & np.isnan(right)) & (x != right)
            )
        if (share := float(np.mean(moved))) > MOVED:
            shares[name] = share
    return shares
