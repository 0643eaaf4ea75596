"""A run of `workbench watch` in a line: what it came to, and what is other than at the last one."""

from collections.abc import Mapping
from typing import Any

from workbench.explore.watch import Seen
from workbench.report.command import case_options

SCHEMA = "workbench.watch/1"


def line(seen: Seen, last: Seen | None, *, told: bool) -> str:
    """The time, what a run came to, how long after the save, and what changed since `last`; `told`: with its case."""
    case = f" [{' '.join(case_options(seen.case, own=True))}]" if told else ""
    changed = "" if last is None else f"; {change(seen, last)}"
    return f"{seen.at:%H:%M:%S}  {state(seen)}{case} ({seen.seconds:.1f} s{changed})"


def state(seen: Seen) -> str:
    """What a run came to."""
    if seen.reason:
        return f"{seen.outcome}: {seen.reason}"
    if seen.origin is None:
        return seen.outcome
    return f"{seen.outcome} at {seen.origin}: {seen.cause or 'cause unknown'}"


def change(seen: Seen, last: Seen) -> str:
    """What is other than at the last run."""
    if (seen.outcome, seen.origin, seen.reason) != (last.outcome, last.origin, last.reason):
        return f"before: {last.outcome}{f' at {last.origin}' if last.origin else ''}"
    if seen.cause != last.cause:
        return f"before: {last.cause or 'cause unknown'}"
    if seen.case != last.case:
        return "as before, on another case"
    return "the same bits of out" if seen.out_bits == last.out_bits else "as before, with other bits of out"


def document(seen: Seen, last: Seen | None) -> Mapping[str, Any]:
    """A run as plain Python values, for JSON; `changed` is null for the first."""
    return {
        "schema": SCHEMA,
        "at": seen.at.isoformat(timespec="milliseconds"),
        "outcome": seen.outcome,
        "origin": seen.origin,
        "cause": seen.cause or None,
        "reason": seen.reason or None,
        "case": seen.case.as_dict(),
        "seconds": seen.seconds,
        "changed": None if last is None else change(seen, last),
    }
