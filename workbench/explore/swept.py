"""What became of each case of a sweep that is judged in this process: of another operation, or by a plain reference."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workbench.judge.reference.diff import ReferenceDiff
from workbench.operations.judge import OperationDiff
from workbench.refusal import Raised, Refusal
from workbench.shown import shown_by


@dataclass(frozen=True)
class SweepRow:
    """What became of one case."""

    case: str
    verdict: str  #: refused and raised among them
    origin: str | None
    over_budget: float | None  #: the largest of the first wrong stage, of a right run that of all
    cause: str  #: of a wrong run; or why it was refused
    fails: bool
    diff: OperationDiff | ReferenceDiff | None = None

    @property
    def size(self) -> int:
        """Numbers of all inputs."""
        if isinstance(self.diff, ReferenceDiff):
            return self.diff.graph.input_size
        return 0 if self.diff is None else sum(x.size for x in self.diff.run.inputs.values())


@dataclass(frozen=True)
class Swept:
    """The rows of a sweep, in the order of its cases."""

    rows: tuple[SweepRow, ...]
    of: str  #: "operation" or "reference"

    @property
    def groups(self) -> Counter[tuple[str, str]]:
        """Failing cases by first wrong stage and cause."""
        return Counter((one.origin or one.verdict, one.cause) for one in self.rows if one.fails)

    @property
    def smallest(self) -> SweepRow | None:
        """The failing case with the fewest numbers as inputs."""
        return min(
            (one for one in self.rows if one.fails and one.diff is not None), key=lambda one: one.size, default=None
        )

    def as_dict(self) -> dict[str, Any]:
        """The document of `workbench sweep --json` with --operation or --reference, of plain Python values."""
        return shown_by("swept.document", self)

    def __str__(self) -> str:
        return shown_by("swept.in_short", self)


def failed(case: str, error: Refusal) -> SweepRow:
    """The row of a case on which the function raised, or that was refused."""
    raised = isinstance(error, Raised)
    why = str(error).strip().splitlines()[-1]
    return SweepRow(case, "raised" if raised else "refused", None, None, why, fails=raised)


def swept(rows: Sequence[SweepRow], of: str) -> Swept:
    """The rows as a sweep; Refusal where none was taken."""
    if rows and all(one.verdict == "refused" for one in rows):
        raise Refusal(f"all {len(rows)} cases were refused: {rows[0].cause}")
    return Swept(tuple(rows), of)


def largest(diff: OperationDiff | ReferenceDiff) -> float | None:
    """The largest error / budget of the first wrong stage, of a right run that of all."""
    stages = [diff[diff.origin]] if diff.origin else diff.stages
    worst = [one.decisive.summary.worst for one in stages if one.decisive is not None]
    return max((one.over_budget for one in worst if one is not None), default=None)
