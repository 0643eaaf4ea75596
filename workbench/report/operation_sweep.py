"""A sweep of an operation, on a terminal and as a document."""

from typing import Any

import click

from workbench.explore.operation_sweep import OperationSweep
from workbench.records import number
from workbench.report.numbers import ratio
from workbench.report.operation import repeat_command
from workbench.report.text import show


def report(found: OperationSweep) -> None:
    """Print a row a case, what fails in how many, and the command of the smallest that does."""
    rows = [
        {
            "case": one.case,
            "verdict": one.verdict,
            "first wrong": one.origin or "",
            "x of budget": "" if one.over_budget is None else ratio(one.over_budget),
            "cause": one.cause,
        }
        for one in found.rows
    ]
    show(rows, ("case", "verdict", "first wrong", "x of budget", "cause"))
    failing = sum(found.groups.values())
    click.echo(f"{failing} of {len(found.rows)} cases fail")
    for (stage, cause), count in found.groups.most_common():
        click.echo(f"  {stage}, {count}: {cause}")
    smallest = found.smallest
    if smallest is not None and smallest.diff is not None and (command := repeat_command(smallest.diff)):
        click.echo(f"the smallest: {command}")


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
