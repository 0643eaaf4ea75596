"""A function of an operation judged on every combination of sizes, numbers, dtypes and distributions."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from workbench.explore.swept import SweepRow, Swept, failed, largest, swept
from workbench.operations.call import asked_for, operation_of
from workbench.operations.judge import judged
from workbench.operations.operation import Operation
from workbench.refusal import Refusal


def sweep_operation(
    target: str | Callable[..., Any], operation: str | Operation, cases: Iterable[Mapping[str, Any]]
) -> Swept:
    """What `target` makes of each case; `cases`: arguments as of `call.diff_operation`. A case that does not fit, or on
    which it raises, is a row. Refusal where none was taken.
    """
    of = operation_of(operation)
    return swept([_row(target, of, dict(case)) for case in cases], "operation")


def _row(target: str | Callable[..., Any], of: Operation, given: dict[str, Any]) -> SweepRow:
    words = ", ".join(f"{name}={x}" for name, x in given.items() if x)
    try:
        run, case = asked_for(target, of, **given)
        words = str(case)
        found = judged(run(case))
    except Refusal as refusal:
        return failed(words, refusal)
    causes = found.explained.causes if found.origin else ()
    cause = causes[0].text if causes else "unknown" if found.origin else ""
    fails = found.origin is not None or found.verdict == "untestable"
    return SweepRow(words, found.verdict, found.origin, largest(found), cause, fails, found)
