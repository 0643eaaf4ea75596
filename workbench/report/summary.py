"""Several runs as a table, a row each, for a terminal and for Jupyter."""

import shlex
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from workbench.case.command_line import case_options
from workbench.judge.table import Row, Rows
from workbench.report import tables
from workbench.report.numbers import number, ratio
from workbench.report.text import DOUBTFUL, gates, plain

#: the last one marks rows
COLUMNS = ("case", "verdict", "origin", "error / budget", "max abs error", "")
_LEFT = ("case", "verdict", "origin", "")


def summary(rows: Sequence[Row], *, unicode: bool) -> RenderableType:
    """One row for each run: case, verdict, origin, worst x of budget, largest error; the last passing and first failing
    one marked. Where the screen is too narrow the case and the origins take several lines.
    """
    found = Rows(tuple(rows))
    return Group(*gates(rows), rows_table(found).screen(unicode=unicode), Text(total(found), style="bold"))


def rows_table(rows: Rows) -> tables.Table:
    """A row for each run."""
    kinds = ["origin" if not row.passed else "doubtful" if row.verdict in DOUBTFUL else "clean" for row in rows]
    return tables.Table(COLUMNS, _cells(rows), kinds, left=_LEFT, folds=("case", "origin"))


def in_short(rows: Rows) -> str:
    """What `summary` shows, for `print`."""
    return plain(summary(rows.rows, unicode=False))


def html_summary(rows: Rows) -> str:
    """What `summary` shows as HTML, for Jupyter."""
    return tables.lines([line.plain for line in gates(rows)]) + rows_table(rows).html() + tables.lines([total(rows)])


def _cells(rows: Rows) -> list[tuple[str, ...]]:
    """The cells of each run, as in COLUMNS. Where a gate failed nobody knows what was judged: that is the verdict."""
    marks = {id(rows.first_failing): "<- first failing"}
    if rows.first_failing is not None:
        marks[id(rows.last_passing)] = "<- last passing"
    found: list[tuple[str, ...]] = []
    for row in rows:
        part = [] if row.box is None else ["--where", str(row.box)]
        call = [f"{row.call}:"] if row.call else []
        run = " ".join([*call, shlex.quote(row.target), *case_options(row.case, own=False), *part])
        numbers = ratio(row.over_budget), number(row.max_abs)
        found.append((run, row.outcome, ", ".join(row.origins) or "-", *numbers, marks.get(id(row), "")))
    return found


def total(rows: Rows) -> str:
    """How many runs passed, in a line."""
    passed = [row.passed for row in rows]
    failing = (
        "with a bug, untestable or with a failed gate" if any(row.gates for row in rows) else "with one or untestable"
    )
    return f"{len(passed)} runs: {passed.count(True)} without a bug, {passed.count(False)} {failing}"
