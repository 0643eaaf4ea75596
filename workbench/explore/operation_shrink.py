"""The smallest case on which a function of an operation fails as it does on this one."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from workbench.operations.case import OperationCase
from workbench.operations.judge import OperationDiff, judged
from workbench.refusal import Refusal
from workbench.shown import shown_by
from workbench.work import SEARCH, TRIALS_OF_RUN, Work, trials


@dataclass(frozen=True)
class OperationShrunk:
    """What shrinking came to."""

    diff: OperationDiff  #: of the smallest case
    tried: int  #: cases that were run
    ended_by: (
        str  #: what ended it before nothing smaller was left to try: effort, or the user's seconds; empty: nothing
    )

    @property
    def complete(self) -> bool:
        """Whether nothing smaller was left to try."""
        return not self.ended_by

    def __str__(self) -> str:
        return shown_by("operation.shrunk_in_short", self)


def shrink_operation(diff: OperationDiff, effort: float = 1.0, *, seconds: float | None = None) -> OperationShrunk:
    """The smallest case, by halving axes, then by one, and leaving out what is not usual, on which the same stage is
    wrong first, with the same verdict. Refusal where no stage is wrong, or the function cannot be called again.
    """
    again = diff.run.again
    if diff.origin is None or again is None:
        raise Refusal(f"{diff.run.target}: shrink needs a wrong stage, and a function that can be called")
    # what the case says, so that what is usual follows its sizes
    best, tried, known = diff, 0, {str(diff.run.case)}
    work = Work(effort * SEARCH, seconds=seconds)
    moved = True
    while moved:
        moved = False
        for case in _smaller(best.run.case):
            if str(case) in known:
                continue
            if work.over:
                return OperationShrunk(best, tried, work.ended_by)
            work.take(TRIALS_OF_RUN * trials(sum(x.size for x in best.run.inputs.values())))
            known.add(str(case))
            tried += 1
            try:
                found = judged(again(case))
            except Refusal:
                continue
            if (found.verdict, found.origin) == (diff.verdict, diff.origin):
                best, moved = found, True
                break
    return OperationShrunk(best, tried, "")


def _smaller(case: OperationCase) -> Iterator[OperationCase]:
    """Cases a step smaller or plainer, the largest steps first."""
    of, sizes = case.operation, {letter: case.sizes[letter] for letter in case.operation.axes}
    numbers = case.unusual["numbers"]
    told = [letter for letter, name in of.axes.items() if name in case.told]

    def made(**changed: Any) -> Iterator[OperationCase]:
        given: dict[str, Any] = {
            "sizes": sizes,
            "distribution": case.distribution,
            "numbers": numbers,
            "optional": case.optional,
            "functions": case.functions,
        }
        given |= changed
        try:
            yield OperationCase(of, dtype=case.dtype, seed=case.seed, conventions=case.conventions, **given)
        except Refusal:
            return

    usual = next(iter(of.distributions))
    if case.distribution != usual:
        yield from made(distribution=usual)
    for name in case.optional:
        yield from made(optional=tuple(one for one in case.optional if one != name))
    for name in case.functions:
        yield from made(functions={one: x for one, x in case.functions.items() if one != name})
    for name in numbers:
        yield from made(numbers={one: x for one, x in numbers.items() if one != name})
    for step in (lambda n: n // 2, lambda n: n - 1):
        for letter in sorted(told, key=lambda one: -sizes[one]):
            if sizes[letter] > 1:
                yield from made(sizes={**sizes, letter: step(sizes[letter])})
        # heads and kv heads, or queries and keys, that go together
        for n, a in enumerate(told):
            for b in told[n + 1 :]:
                if sizes[a] == sizes[b] > 1:
                    yield from made(sizes={**sizes, a: step(sizes[a]), b: step(sizes[b])})
