"""Several runs as a table, a row each, for a terminal and for Jupyter."""

import shlex
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from workbench.judge.table import Row, Rows
from workbench.report import tables
from workbench.report.command import case_options
from workbench.report.numbers import number, ratio
from workbench.report.text import DOUBTFUL, STYLES, gates, new_table, plain

#: the last one marks rows
COLUMNS = ("case", "verdict", "origin", "x of budget", "max abs", "")
_LEFT = ("case", "verdict", "origin", "")


def summary(rows: Sequence[Row], *, unicode: bool) -> RenderableType:
    """One row for each run: case, verdict, origin, worst x of budget, largest error; the last passing and first failing
    one marked. Where the screen is too narrow the case and the origins take several lines.
    """
    table, found = new_table(unicode), Rows(tuple(rows))
    for column in COLUMNS:
        folds = column in ("case", "origin")
        justify = "left" if column in _LEFT else "right"
        table.add_column(column, justify=justify, overflow="fold", no_wrap=not folds)  # type: ignore[arg-type]
    for row, cells in zip(rows, _cells(found), strict=True):
        table.add_row(*map(escape, cells), style=_style(row))
    return Group(*gates(rows), table, Text(_total(found), style="bold"))


def _style(row: Row) -> str:
    return "bold red" if not row.passed else "yellow" if row.verdict in DOUBTFUL else "green"


def in_short(rows: Rows) -> str:
    """What `summary` shows, for `print`."""
    return plain(summary(rows.rows, unicode=False))


def html_summary(rows: Rows) -> str:
    """What `summary` shows as HTML, for Jupyter."""
    styles = ["" if row.passed else STYLES["origin"] for row in rows]
    table = tables.table(COLUMNS, _cells(rows), left=_LEFT, styles=styles)
    return tables.lines([line.plain for line in gates(rows)]) + table + tables.lines([_total(rows)])


def _cells(rows: Rows) -> list[tuple[str, ...]]:
    """The cells of each run, as in COLUMNS. Where a gate failed nobody knows what was judged: that is the verdict."""
    marks = {id(rows.first_failing): "<- first failing"}
    if rows.first_failing is not None:
        marks[id(rows.last_passing)] = "<- last passing"
    found: list[tuple[str, ...]] = []
    for row in rows:
        window = [] if row.window is None else ["--where", str(row.window)]
        run = " ".join([shlex.quote(row.target), *case_options(row.case, own=False), *window])
        numbers = ratio(row.over_budget), number(row.max_abs)
        found.append((run, row.outcome, ", ".join(row.origins) or "-", *numbers, marks.get(id(row), "")))
    return found


def _total(rows: Rows) -> str:
    passed = [row.passed for row in rows]
    failing = (
        "with one, not testable, or a gate failed" if any(row.gates for row in rows) else "with one or not testable"
    )
    return f"{len(passed)} runs: {passed.count(True)} without a bug, {passed.count(False)} {failing}"
