"""Failing examples of a test of hypothesis: those that show most, which tell the cause, and those of one fault."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from workbench.judge.diff import Diff
from workbench.judge.explain.scene import Scene
from workbench.judge.explain.trial import holds

#: examples that are kept of each first wrong stage: the one that shows most may show two faults, or no row with keys
KEPT = 3

Failure = TypeVar("Failure")
#: kernel and first wrong stage -> the examples that show most of it, the clearest first
Failed = dict[tuple[str, str], tuple[Diff, ...]]


def keep(judged: Diff, failed: Failed) -> None:
    """Keep a failed example where it is among those that show most of its first wrong stage."""
    key = _key(judged)
    failed[key] = tuple(sorted((*failed.get(key, ()), judged), key=_shows, reverse=True)[:KEPT])


def by_the_clearest(judged: Diff, failed: Mapping[tuple[str, str], Sequence[Diff]]) -> Diff:
    """A failed example with the cause that the clearest one gives that has any: many formulas make one wrong number."""
    for seen in failed.get(_key(judged), ()):
        if seen is judged or _shows(seen) <= _shows(judged):
            break
        if seen.explained.causes:
            return judged.explained_by(replace(seen.explained, elsewhere=seen))
    return judged


def groups(failures: Sequence[Failure], judged: Callable[[Failure], Diff]) -> list[list[Failure]]:
    """Failures that show one fault together, in their order; those alone whose cause nobody knows."""
    found: list[list[Failure]] = []
    for one in failures:
        group = next((some for some in found if _one_fault(judged(some[0]), judged(one))), None)
        if group is None:
            found.append([one])
        else:
            group.append(one)
    return found


def _key(judged: Diff) -> tuple[str, str]:
    return judged.trace.target, judged.origin or ""


def _shows(judged: Diff) -> tuple[int, int]:
    """How much it shows of the first wrong stage: elements outside the budget, and all of them."""
    found = judged[judged.origin].decisive if judged.origin else None
    return (0, 0) if found is None else (found.summary.outside, found.summary.size)


def _one_fault(a: Diff, b: Diff) -> bool:
    """Whether the cause of one failure gives all that is wrong in the other, or is its cause, too."""
    if a.trace.target != b.trace.target:
        return False
    told = [{cause.text for cause in one.explained.causes} for one in (a, b)]
    return (bool(told[0]) and told[0] == told[1]) or _explains(a, b) or _explains(b, a)


def _explains(a: Diff, b: Diff) -> bool:
    """Whether a cause of a failure reproduces all that is wrong first in the clearest run of another."""
    here, there = (one if (seen := one.explained.elsewhere) is None else seen for one in (a, b))
    runs = [one.to_explain.run for one in (here, there)]
    if any(run.case.codes is not None for run in runs):
        return False
    for cause in a.explained.causes:
        if cause.measured or not cause.members[0].edits:
            continue
        cut = runs[0] if cause.supposed is None else cause.supposed.of(runs[0])
        scene = Scene(cut, supposed=cause.supposed).like(runs[1])
        all_of_it = {*there.to_explain.origins} <= {*scene.touched(cause.members[0])}
        if all_of_it and holds(scene, cause.members[0], elsewhere=True) is True:
            return True
    return False
