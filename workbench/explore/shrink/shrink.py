"""From a judged run that fails to the smallest case that fails in the same way, and to its boundaries."""

import time
from dataclasses import dataclass, replace
from typing import Any

from workbench.case.case import Case
from workbench.case.fields import GIVEN
from workbench.explore.lost_keys import on_telling_cases
from workbench.explore.shrink.attempts import MAJORITY_OF, Attempts, Inputs
from workbench.explore.shrink.boundary import Boundary, boundaries
from workbench.explore.shrink.smaller import descend
from workbench.explore.shrink.symptom import Symptom
from workbench.explore.shrink.values import plain_inputs
from workbench.extras import require
from workbench.judge.diff import Diff, diff
from workbench.judge.explain.cause import Cause
from workbench.judge.explain.explain import Explained
from workbench.progress import step
from workbench.refusal import Refusal
from workbench.shown import shown_by
from workbench.trace.trace import Rerun, Trace
from workbench.work import TRIALS_OF_RUN, Work, trials

#: of the work, what repeating the start may take, and what is left for boundaries
REPEATS, BOUNDARIES = 0.2, 0.2
#: a cause that was measured is measured again in each run, a hundred calls each
OF_MEASURED = 4.0
#: runs of the smallest case, at most, until one fails again
AGAIN = 20
#: what is said without hypothesis
NEEDS = "shrinking a case of attention needs"


@dataclass(frozen=True, eq=False, repr=False)
class Shrunk:
    """The smallest case that was found, and what was run on the way to it."""

    start: Diff  #: the run that it began with
    smallest: Case
    judged: Diff  #: a run of the smallest case
    inputs: Inputs | None  #: of the smallest case as plain numbers; None where they are its own
    origin: str  #: the first wrong stage, of both
    kind: str  #: how that is wrong, in words
    cause: Cause | None  #: of both; None where nothing that explains the start tells of other runs
    explained: Explained  #: all that explains the start
    failed: int  #: of `runs` runs of the start, those that failed in the same way
    runs: int
    majority: bool  #: whether each case was run several times, as runs of the start were not alike
    boundaries: tuple[Boundary, ...]
    evaluations: int  #: runs that were judged
    seconds: float
    ended: str  #: done, effort, seconds or interrupt

    @property
    def of_start(self) -> Cause | None:
        """What explains the first wrong stage of the start: `cause`, or one that tells nothing of other runs, such as a
        formula; None where nothing does.
        """
        return self.cause or next((one for one in self.explained.causes if self.origin in one.fit.stages), None)

    @property
    def complete(self) -> bool:
        """Whether all was tried that is ever tried."""
        return self.ended == "done"

    def as_dict(self) -> dict[str, Any]:
        """The document `workbench.shrink/1`, of plain Python values."""
        return shown_by("shrunk.document", self)

    def test(self) -> str:
        """A file of pytest that fails with the bug and passes without; Refusal where no file can name the kernel."""
        return shown_by("written.test_file", self)

    def __str__(self) -> str:
        return "\n".join(shown_by("shrunk.lines", self))

    def __repr__(self) -> str:
        return f"<Shrunk: {self.origin} in {self.smallest}>"


def shrink(judged: Diff, effort: float = 1.0, *, seconds: float | None = None) -> Shrunk:
    """The smallest case on which the kernel of a judged run fails in the same way.

    In the same way: the first wrong stage is the same, and the cause that `explain` names for it reproduces it, or is
    found again where it was measured; where nothing explains it, it is wrong in the same kind. A case becomes smaller
    in its counts (batch, heads, lengths, head_dim, splits, tiles of kernels of ours) and plainer in its mask, softcap,
    scale and inputs; dtype and contract stay.

    `effort`: how many times as many runs as usual; `seconds`: a cap for all of it, compiles among them. When one of
    them is over, or at Ctrl-C, the smallest so far comes back, with `complete` False. Refusal where no stage is wrong,
    for a run that cannot be repeated on other cases, and where the start fails in fewer than half of its runs.
    Unavailable without hypothesis.

    Where no stage is wrong, and out and lse alone were given, the search begins at one of the cases `telling`.

    The search is that of hypothesis (MacIver, Hatfield-Dodds and others, JOSS 4(43), 2019), begun at the given case.

    >>> from workbench import run
    >>> found = shrink(diff(run("examples/numpy_attention.py:scale_twice", Case(seqlen=8, head_dim=4))), effort=0.01)
    >>> found.smallest, found.origin
    (Case(seqlen_q=1, seqlen_k=2, head_dim=1), 'scores')
    """
    require(NEEDS, "hypothesis")
    begun = time.monotonic()
    if judged.origin is None:
        judged = next((other for other in on_telling_cases(judged) if other.origin is not None), judged)
    rerun, start = _repeatable(judged), judged.trace.case
    tiled = judged.trace.backend != "foreign"
    found: tuple[Boundary, ...] = ()
    ended = "done"
    with step(f"shrink a case in which {judged.origin} is wrong") as tick:
        explained = judged.explain(effort, seconds=seconds)
        if not explained.causes and not explained.withdrawn:
            explained = judged.explained  # with little effort a report tries what is common
        symptom = Symptom.of(judged, explained)
        measured = symptom.cause is not None and symptom.cause.measured
        left = None if seconds is None else max(seconds - (time.monotonic() - begun), 0.0)
        work = Work.of_search(start.score_count, effort * (OF_MEASURED if measured else 1.0), left)
        attempts = Attempts(rerun, symptom, start, work.part(1 - BOUNDARIES), tick)
        failed, runs, alike = _repeats(attempts, judged.trace, work.part(REPEATS))
        attempts.runs = 1 if alike else MAJORITY_OF
        try:
            descend(attempts, tiled)
            plain_inputs(attempts)
            attempts.work = work
            found = boundaries(attempts, start, tiled)
        except KeyboardInterrupt:
            ended = "interrupt"
        last = _failing(attempts)
    if ended == "done" and attempts.late:
        ended = work.ended_by or "effort"
    return Shrunk(
        judged, attempts.best, last, attempts.inputs, symptom.origin, symptom.kind, symptom.cause, explained,
        failed, runs, not alike, found, attempts.evaluations, time.monotonic() - begun, ended,
    )  # fmt: skip


def _repeatable(judged: Diff) -> Rerun:
    """What runs the kernel again; Refusal where that cannot be, and where nothing is wrong."""
    trace = judged.trace
    if judged.origin is None:
        raise Refusal(f"{trace.target}: shrink needs a wrong stage, but this run has none (verdict: {judged.verdict})")
    if trace.box is not None:
        raise Refusal(f"{trace.target}: a part of a run cannot be shrunk: leave out --where and --by-head")
    given = trace.case.distribution == GIVEN or trace.called_with.feed
    if trace.rerun is None or given:
        why = "the inputs of this run are given" if given else "this trace was not run here"
        raise Refusal(f"{trace.target}: shrink must run other cases, but {why}")
    again = trace.rerun

    def rerun(case: Case, inputs: Inputs | None = None) -> Trace:
        return replace(again(case, inputs), called_with=trace.called_with)

    return rerun


def _repeats(attempts: Attempts, start: Trace, work: Work) -> tuple[int, int, bool]:
    """Of runs of the start, how many fail in the same way, and of how many; and whether all have its bits. Refusal
    where fewer than half fail.
    """
    failed = runs = other = 0
    while runs < MAJORITY_OF and (runs < 2 or not work.over):
        runs += 1
        work.take(TRIALS_OF_RUN * trials(start.case.score_count))
        again = attempts.rerun(start.case)
        same = _same_bits(start, again)
        failed += same or attempts.symptom.shows_in(diff(again), work)
        other += not same
    if 2 * failed < runs:
        raise Refusal(
            f"{start.target}: shrink needs a case that fails in at least half of its runs; on the same inputs "
            f"{attempts.symptom.origin} was wrong first in {failed} of {runs}"
        )
    return failed, runs, not other


def _same_bits(one: Trace, other: Trace) -> bool:
    return one.stages.keys() == other.stages.keys() and all(
        x.tobytes() == other.stages[name].tobytes() for name, x in one.stages.items()
    )


def _failing(attempts: Attempts) -> Diff:
    """A run of the best in which it fails in the same way."""
    for _ in range(AGAIN):
        judged = attempts.judged(attempts.best, attempts.inputs)
        if attempts.symptom.shows_in(judged, attempts.work):
            return judged
    raise Refusal(f"{attempts.best}: failed in most of its runs, but not in {AGAIN} more")
