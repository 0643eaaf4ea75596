"""A sweep of an operation, in words and as a document."""

from typing import Any

from rich.console import Group, RenderableType

from workbench.explore.operation_sweep import OperationSweep
from workbench.records import number
from workbench.report.numbers import ratio
from workbench.report.operation import repeat_command
from workbench.report.text import listing, plain, wrapped


def report(found: OperationSweep, *, unicode: bool) -> RenderableType:
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
    smallest = found.smallest
    if smallest is not None and smallest.diff is not None and (command := repeat_command(smallest.diff)):
        lines.append(f"the smallest: {command}")
    return Group(table, *(text for line in lines for text in wrapped(line, "", None)))


def in_short(found: OperationSweep) -> str:
    """What `workbench sweep --operation NAME` shows, for `print`."""
    return plain(report(found, unicode=False))


def document(found: OperationSweep) -> dict[str, Any]:
    """The document of `workbench sweep --operation NAME --json`, of plain Python values."""
    return {
        "schema": "workbench.operation-sweep/1",
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
    }
