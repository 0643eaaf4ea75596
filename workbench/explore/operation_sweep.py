"""A function of an operation judged on every combination of sizes, numbers, dtypes and distributions."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.operations.call import asked_for, operation_of
from workbench.operations.judge import OperationDiff, judged
from workbench.operations.operation import Operation
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
    diff: OperationDiff | None

    @property
    def fails(self) -> bool:
        """Whether a stage is wrong, or it raised."""
        return self.origin is not None or self.verdict in ("raised", "untestable")


@dataclass(frozen=True)
class OperationSweep:
    """The rows of a sweep, in the order of its cases."""

    rows: tuple[SweepRow, ...]

    @property
    def groups(self) -> Counter[tuple[str, str]]:
        """Failing cases by first wrong stage and cause."""
        return Counter((one.origin or one.verdict, one.cause) for one in self.rows if one.fails)

    @property
    def smallest(self) -> SweepRow | None:
        """The failing case with the fewest numbers as inputs."""
        failing = [one for one in self.rows if one.fails and one.diff is not None]
        return min(failing, key=lambda one: _size(one.diff), default=None)

    def __str__(self) -> str:
        return shown_by("operation_sweep.in_short", self)


def _size(diff: OperationDiff | None) -> int:
    assert diff is not None
    return sum(x.size for x in diff.run.inputs.values())


def sweep_operation(
    target: str | Callable[..., Any], operation: str | Operation, cases: Iterable[Mapping[str, Any]]
) -> OperationSweep:
    """What `target` makes of each case; `cases`: arguments as of `call.diff_operation`. A case that does not fit, or on
    which it raises, is a row. Refusal where none was taken.
    """
    of = operation_of(operation)
    rows = [_row(target, of, dict(case)) for case in cases]
    if rows and all(one.verdict == "refused" for one in rows):
        raise Refusal(f"all {len(rows)} cases were refused: {rows[0].cause}")
    return OperationSweep(tuple(rows))


def _row(target: str | Callable[..., Any], of: Operation, given: dict[str, Any]) -> SweepRow:
    words = ", ".join(f"{name}={x}" for name, x in given.items() if x)
    try:
        run, case = asked_for(target, of, **given)
        words = str(case)
        found = judged(run(case))
    except Raised as raised:
        return SweepRow(words, "raised", None, None, _last_line(raised), None)
    except Refusal as refusal:
        return SweepRow(words, "refused", None, None, _last_line(refusal), None)
    stages: Sequence[Any] = [found[found.origin]] if found.origin else found.stages
    worst = [one.decisive.summary.worst for one in stages if one.decisive is not None]
    over = max((one.over_budget for one in worst if one is not None), default=None)
    causes = found.explained.causes if found.origin else ()
    cause = causes[0].text if causes else "unknown" if found.origin else ""
    return SweepRow(words, found.verdict, found.origin, over, cause, found)


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1]
