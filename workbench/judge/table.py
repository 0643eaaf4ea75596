"""Several runs, a row each without their traces: which of them passes last, and which fails first."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from workbench.case.box import Box
from workbench.case.case import Case
from workbench.judge.diff import Diff
from workbench.judge.fails import classed, failing
from workbench.judge.stage import EVIDENCE, ORIGIN_VERDICTS
from workbench.shown import shown_by


@dataclass(frozen=True)
class Row:
    """One of several runs."""

    target: str
    case: Case  #: that was run
    box: Box | None  #: what of the run was judged, where that is not all
    verdict: str
    origins: tuple[str, ...]
    over_budget: float | None  #: the largest of all stages; None where nothing was judged
    max_abs: float | None  #: likewise, |error|
    gates: tuple[str, ...] = ()  #: what stands above the verdict
    doubt: str = ""  #: as of `Diff.doubt`
    call: str = ""  #: which call of a capture it is: call 5, layer 2, step 1

    @property
    def outcome(self) -> str:
        """The verdict, and whether a gate stands above it, which one without a bug is not told beside."""
        if not self.gates:
            return f"{self.verdict} ({EVIDENCE})" if self.verdict == "suspicious" and not self.passed else self.verdict
        return f"{self.verdict}, gate failed" if self.verdict in ORIGIN_VERDICTS else "gate failed"

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong, and something was judged."""
        return classed(self) not in failing()


@dataclass(frozen=True)
class Rows:
    """Several runs, in the order in which they were run."""

    rows: tuple[Row, ...]

    @property
    def last_passing(self) -> Row | None:
        """The last run without a bug; None where all have one."""
        return next((row for row in reversed(self.rows) if row.passed), None)

    @property
    def first_failing(self) -> Row | None:
        """The first run with a bug, or in which nothing could be judged; None where there is none."""
        return next((row for row in self.rows if not row.passed), None)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __str__(self) -> str:
        return shown_by("summary.in_short", self)

    def _repr_html_(self) -> str:
        return shown_by("summary.html_summary", self)


def table(diffs: Iterable[Diff]) -> Rows:
    """A row for each judgement. Of an iterator one trace at a time is kept.

    >>> from workbench import Case, diff, run
    >>> case, fault = Case(head_dim=16, block_q=16, block_k=16), "flash-no-correction"
    >>> lengths = table(diff(run("flash", case.but(seqlen=n), faults=[fault])) for n in (8, 16, 24, 32))
    >>> lengths.first_failing.case.seqlen_k
    24
    """
    return Rows(tuple(map(run_row, diffs)))


def run_row(diff: Diff) -> Row:
    """What is kept of a run."""
    trace = diff.trace
    judged = [stage for stage in diff.stages if stage.decisive is not None]
    worst = [element.over_budget for stage in judged for element in stage.worst(1)]
    errors = [error for stage in judged if (error := stage.judged.summary.max_abs) == error]  # none is a number: nan
    largest = max(worst, default=None), max(errors, default=None)
    call = next((note.partition(": ")[0] for note in trace.notes if re.match(r"call \d", note)), "")
    return Row(
        trace.target, trace.case_run, trace.box, diff.verdict, diff.origins, *largest, trace.gates, diff.doubt, call
    )  # fmt: skip
