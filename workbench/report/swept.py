"""A sweep of an operation, or by a reference, in words and as a document."""

from typing import Any

from rich.console import Group, RenderableType

from workbench.explore.swept import Swept
from workbench.judge.reference.diff import ReferenceDiff
from workbench.records import number
from workbench.report.numbers import ratio
from workbench.report.operation import repeat_command
from workbench.report.text import listing, plain, wrapped


def report(found: Swept, *, unicode: bool) -> RenderableType:
    """A row a case, what fails in how many, and the command of the smallest that does."""
    rows = [
        {
            "case": one.case,
            "verdict": one.verdict,
            "first wrong": one.origin or "",
            "error / budget": "" if one.over_budget is None else ratio(one.over_budget),
            "cause": one.cause,
        }
        for one in found.rows
    ]
    table = listing(rows, ("case", "verdict", "first wrong", "error / budget", "cause"), unicode=unicode)
    lines = [f"{sum(found.groups.values())} of {len(found.rows)} cases fail"]
    lines += [f"  {stage}, {count}: {cause}" for (stage, cause), count in found.groups.most_common()]
    if command := _repeat(found):
        lines.append(f"the smallest: {command}")
    return Group(table, *(text for line in lines for text in wrapped(line, "", None)))


def _repeat(found: Swept) -> str:
    """The command of the smallest case that fails; empty where there is none."""
    diff = None if found.smallest is None else found.smallest.diff
    return "" if diff is None else diff.repeat if isinstance(diff, ReferenceDiff) else repeat_command(diff)


def in_short(found: Swept) -> str:
    """What `workbench sweep` shows with --operation or --reference, for `print`."""
    return plain(report(found, unicode=False))


def document(found: Swept) -> dict[str, Any]:
    """The document `workbench.operation-sweep/1` or `workbench.reference-sweep/1`, of plain Python values.

    - `cases`, `fail`: how many there are; how many fail
    - `rows`: a case each: `case`, `verdict`, `origin`, `over_budget`, `cause`
    - `repeat`: the command of the smallest failing case
    """
    return {
        "schema": f"workbench.{found.of}-sweep/1",
        "cases": len(found.rows),
        "fail": sum(found.groups.values()),
        "rows": [
            {
                "case": one.case,
                "verdict": one.verdict,
                "origin": one.origin,
                "over_budget": None if one.over_budget is None else number(one.over_budget),
                "cause": one.cause,
            }
            for one in found.rows
        ],
        "repeat": _repeat(found),
    }
