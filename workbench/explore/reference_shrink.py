"""The smallest case on which a function fails by a plain reference as it does on this one."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations

from workbench.judge.fails import classed
from workbench.judge.reference.diff import ReferenceDiff
from workbench.operations.reference.case import ReferenceCase
from workbench.operations.reference.distributions import SIMPLE
from workbench.refusal import Refusal
from workbench.shown import shown_by
from workbench.work import SEARCH, TRIALS_OF_RUN, Work, trials


@dataclass(frozen=True)
class ReferenceShrunk:
    """What shrinking came to."""

    diff: ReferenceDiff  #: of the smallest case
    case: ReferenceCase
    tried: int  #: cases that were run
    ended_by: str  #: effort, or the user's seconds, where these ended it; empty where nothing smaller was left to try

    @property
    def complete(self) -> bool:
        """Whether nothing smaller was left to try."""
        return not self.ended_by

    def __str__(self) -> str:
        return shown_by("reference.shrunk_in_short", self)


def shrink_reference(
    judge: Callable[[ReferenceCase], ReferenceDiff],
    start: ReferenceCase,
    effort: float = 1.0,
    *,
    seconds: float | None = None,
) -> ReferenceShrunk:
    """The smallest case, from `start` on, that fails with the same verdict, gates and first wrong stage: first plainer
    values, then smaller sizes of axes, alone and two of one size together. `start` names every axis that may
    shrink. judge: the judgement of a case; a Refusal of it passes the case over. Refusal where `start` does not fail.
    """
    first = judge(start)
    if not first.fails:
        raise Refusal(f"{first.target}: shrink needs a run that fails; this one is {first.verdict}")
    best, case, tried, known = first, start, 0, {start.words}
    work = Work(effort * SEARCH, seconds=seconds)
    moved = True
    while moved:
        moved = False
        for one in _smaller(case):
            if one.words in known:
                continue
            if work.over:
                return ReferenceShrunk(best, case, tried, work.ended_by)
            work.take(TRIALS_OF_RUN * trials(best.graph.input_size))
            known.add(one.words)
            tried += 1
            try:
                found = judge(one)
            except Refusal:
                continue
            if found.fails and _symptom(found) == _symptom(first):
                best, case, moved = found, one, True
                break
    return ReferenceShrunk(best, case, tried, "")


def _symptom(one: ReferenceDiff) -> tuple[str, str | None, bool]:
    return classed(one), one.origin, bool(one.gates)


def _smaller(case: ReferenceCase) -> Iterator[ReferenceCase]:
    """Cases a step plainer or smaller, the largest steps first."""
    plainer = [*SIMPLE, ""]
    of = plainer.index(case.distribution) if case.distribution in plainer else len(plainer)
    for name in plainer[:of]:
        yield replace(case, distribution=name)
    sizes = case.axes
    for axis in sorted(sizes, key=lambda axis: -sizes[axis]):
        for n in _below(sizes[axis]):
            yield replace(case, axes={**sizes, axis: n})
    for a, b in combinations(sizes, 2):  # that go together, such as queries and keys
        for n in _below(sizes[a]) if sizes[a] == sizes[b] else ():
            yield replace(case, axes={**sizes, a: n, b: n})


def _below(n: int) -> list[int]:
    """Sizes that are tried in place of n: a bug in the last part of a tile may not show at a half, or at one less."""
    return sorted({one for one in (1, 2, 3, n // 4, n // 2, n // 2 + 1, 3 * n // 4, n - 1) if 0 < one < n})
