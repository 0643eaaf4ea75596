"""The page of a sweep: what fails, in groups, each with its rule and its smallest case; and all cases."""

from collections.abc import Sequence

from workbench.case.command_line import case_options
from workbench.case.fields import typed
from workbench.explore.sweep.groups import Group
from workbench.explore.sweep.row import Row
from workbench.explore.sweep.sweep import Sweep
from workbench.report.page.page import Page, Part
from workbench.report.sweep import group_lines, heads, repeat, target_of, total
from workbench.report.tables import Table

#: cases that are listed, so that a page of thousands stays below 2 MB
LISTED = 2000


def page(found: Sweep) -> Page:
    """The page of a sweep, or of what there is of one."""
    return Page(
        title=f"sweep of {target_of(found.plan)}: {total(found)}",
        verdict="fails" if found.groups else "refused" if found.refused else "clean",
        kind="origin" if found.groups else "doubtful" if found.refused else "clean",
        lines=[total(found), *heads(found)[1:]],
        about=heads(found)[:1],
        parts=[*(_group(found, one) for one in found.groups), _cases(found)],
    )


def _group(found: Sweep, one: Group) -> Part:
    first, *lines = group_lines(found, one, command=False)
    values = [
        [boundary.field, "none" if value is None else typed(value), str(failing), str(of)]
        for boundary in one.boundaries
        for value, failing, of in boundary.values
    ]
    kinds = ["origin" if row[2] == row[3] else "doubtful" if row[2] != "0" else "clean" for row in values]
    fields = Table(("option", "value", "failing", "cases"), values, kinds, left=("option", "value"))
    parts = [Part("By the values of each option", table=fields)] if values else []
    return Part(first, lines, command=repeat(found.plan, one.smallest), parts=parts, opened=True)


def _cases(found: Sweep) -> Part:
    rows: Sequence[Row] = sorted(found.rows, key=lambda row: not row.fails)
    listed = Table(
        ("case", "outcome", "first wrong stage", "s"),
        [
            (" ".join(case_options(row.case, own=True)), row.outcome, ", ".join(row.origins), f"{row.seconds:.2f}")
            for row in rows[:LISTED]
        ],
        ["origin" if row.fails else "clean" if row.judged else "not judged" for row in rows[:LISTED]],
        left=("case", "outcome", "first wrong stage"),
        folds=("case",),
    )
    more = [f"the first {LISTED} of {len(rows)}; the file of the sweep has all"] if len(rows) > LISTED else []
    return Part("All cases, those that fail first", more, listed)
