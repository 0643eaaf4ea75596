"""The judgement of a run of an operation: a table and sentences."""

from typing import Any

from rich.console import Group, RenderableType

from workbench.expectation.elements import State
from workbench.judge.stage import StageDiff
from workbench.operations.judge import OperationDiff
from workbench.reference.tables import definition
from workbench.report.numbers import ratio, value
from workbench.report.tables import Table
from workbench.report.tables import lines as lines_html
from workbench.report.text import LEFT, SPARE, WIDTH, cells, columns_of, kind, place, plain, wrapped

SCHEMA = "workbench.operation/1"


def report(diff: OperationDiff, *, unicode: bool, width: int, full: bool = False) -> RenderableType:
    """What was run, a row for each stage, the first wrong one and its definition."""
    table = stage_table(diff, full)
    below = [line for text in sentences(diff) for line in wrapped(text, "", width if unicode else None)]
    head = wrapped(diff.headline, "", None)
    return Group(*head, table.screen(unicode=unicode, width=width), *below)


def stage_table(diff: OperationDiff, full: bool = False) -> Table:
    """A row for each stage."""
    columns = [name for name in columns_of(full) if name != "bits lost"]
    rows = [cells(stage) for stage in diff.stages]
    kinds = [kind(stage) for stage in diff.stages]
    return Table(columns, [[row[name] for name in columns] for row in rows], kinds, left=LEFT, spare=SPARE)


def html(diff: OperationDiff) -> str:
    """The report for Jupyter."""
    return lines_html([diff.headline]) + stage_table(diff).html() + lines_html(sentences(diff))


def sentences(diff: OperationDiff) -> list[str]:
    """What the table does not say."""
    table = diff.run.case.operation.table(diff.run.case.setting)
    said = []
    if diff.origin is None:
        said.append(f"verdict: {diff.verdict}" + (": every judged element is within its budget"
                    if diff.verdict in ("exact", "rounding") else ""))  # fmt: skip
    else:
        said.append(f"first wrong stage: {diff.origin} = {definition(table, diff.origin)}")
        said += _of_origin(diff[diff.origin])
    if diff.others:
        said.append(f"  not given: {', '.join(diff.others)}")
    conventions = diff.run.case.operation.conventions.items()
    usual = {name: choices[0] for name, choices in conventions if name not in diff.run.told}
    if assumed := [f"{name}={x}" for name, x in diff.run.case.conventions.items() if x == usual.get(name)]:
        said.append(f"  conventions that are assumed: {', '.join(assumed)} (--contract)")
    return said


def _of_origin(stage: StageDiff) -> list[str]:
    assert stage.isolated is not None
    found = stage.isolated.summary
    worst = stage.worst_of(stage.isolated, 1)[0]
    nan = found.count(State.NAN)
    said = [f"  outside the budget: {found.outside} of {found.size} ({found.outside / found.size:.1%})"]
    said += [f"  of these NaN or of another class: {nan}"] if nan else []
    said.append(
        f"  worst at {place(worst)}: actual {value(worst.actual)}, expected {value(worst.expected)}, allowed error "
        f"{value(worst.budget)}, {ratio(worst.over_budget)} x of budget"
    )
    said.append(f"  judged from {', '.join(stage.judged_from) or 'the inputs alone'}")
    return said


def in_short(diff: OperationDiff) -> str:
    """The report as plain text."""
    return plain(report(diff, unicode=False, width=WIDTH))


def document(diff: OperationDiff) -> dict[str, Any]:
    """The document of `workbench diff --operation NAME --json`, of plain Python values."""
    case = diff.run.case
    return {
        "schema": SCHEMA,
        "target": diff.run.target,
        "operation": case.operation.name,
        "axes": {name: case.sizes[letter] for letter, name in case.operation.axes.items()},
        "dtype": case.dtype,
        "distribution": case.distribution,
        "seed": case.seed,
        "numbers": dict(case.numbers),
        "conventions": dict(case.conventions),
        "verdict": diff.verdict,
        "origin": diff.origin,
        "stages": [_stage(stage) for stage in diff.stages],
        "not_given": list(diff.others),
    }


def _stage(stage: StageDiff) -> dict[str, Any]:
    found = stage.decisive
    assert found is not None
    worst = found.summary.worst
    return {
        "stage": stage.name,
        "verdict": stage.verdict,
        "role": stage.role,
        "outside": found.summary.outside,
        "size": found.summary.size,
        "over_budget": None if worst is None else float(min(worst.over_budget, 1.7e308)),
    }
