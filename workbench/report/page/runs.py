"""The page of several runs: a row each, and what is said of each folded below."""

from collections.abc import Sequence

from workbench.judge.stage import SEVERITY
from workbench.judge.table import Row, Rows
from workbench.report.page.page import Page, Part
from workbench.report.summary import rows_table, total
from workbench.report.text import gates


def page(rows: Sequence[Row], parts: Sequence[Part]) -> Page:
    """The page of several runs; `parts`: what is kept of each, as of `diff.short`."""
    found = Rows(tuple(rows))
    worst = found.first_failing or max(rows, key=lambda row: SEVERITY.index(row.verdict))
    return Page(
        title=total(found),
        verdict=worst.outcome,
        kind="clean" if worst.passed else "origin",
        lines=[total(found)],
        gates=[line.plain for line in gates(rows)],
        parts=[Part("All runs", table=rows_table(found), opened=True), *parts],
    )
