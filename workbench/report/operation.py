"""The judgement of a run of an operation: a table and sentences."""

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rich.console import Group, RenderableType

from workbench.case import spellings
from workbench.expectation.elements import State
from workbench.explore.operation_shrink import OperationShrunk
from workbench.foreign.target import known
from workbench.judge.stage import StageDiff
from workbench.operations.causes import OperationExplained
from workbench.operations.every import OPERATIONS
from workbench.operations.judge import Condition, OperationDiff
from workbench.operations.run import OperationRun
from workbench.records import number
from workbench.report.numbers import mismatches, times, value
from workbench.report.tables import Table
from workbench.report.tables import lines as lines_html
from workbench.report.text import LEFT, SPARE, WIDTH, cells, columns_of, gates, kind, place, plain, wrapped
from workbench.suggested import command

SCHEMA = "workbench.operation/1"


def report(
    diff: OperationDiff,
    *,
    unicode: bool,
    width: int,
    full: bool = False,
    explained: OperationExplained | None = None,
) -> RenderableType:
    """What was run, a row for each stage, the first wrong one, its definition and its cause: as `explained` says, or as
    far as a report searches for it.
    """
    table = stage_table(diff, full)
    below = [line for text in sentences(diff, explained) for line in wrapped(text, "", width if unicode else None)]
    head = wrapped(diff.headline, "", None)
    return Group(*gates([diff.run]), *head, table.screen(unicode=unicode, width=width), *below)


def stage_table(diff: OperationDiff, full: bool = False) -> Table:
    """A row for each stage."""
    columns = [name for name in columns_of(full) if name != "bits lost"]
    rows = [cells(stage) for stage in diff.stages]
    kinds = [kind(stage) for stage in diff.stages]
    return Table(columns, [[row[name] for name in columns] for row in rows], kinds, left=LEFT, spare=SPARE)


def html(diff: OperationDiff, explained: OperationExplained | None = None) -> str:
    """The report for Jupyter, arguments as of `report`."""
    return (
        lines_html([*(line.plain for line in gates([diff.run])), diff.headline])
        + stage_table(diff).html()
        + lines_html(sentences(diff, explained))
    )


def sentences(diff: OperationDiff, explained: OperationExplained | None = None) -> list[str]:
    """What the table does not say."""
    said = []
    if diff.origin is None:
        said.append(f"verdict: {diff.verdict}" + (": every judged element is within its budget"
                    if diff.verdict in ("exact", "rounding") else ""))  # fmt: skip
    else:
        known = f", should be {diff.definition(diff.origin)}"
        if not diff[diff.origin].judged_from and diff.others:  # a stage that was not given may be the wrong one
            known = f" or one before it (not given: {', '.join(diff.others)})"
        said.append(f"verdict: {diff.verdict}; first wrong stage: {diff.origin}{known}")
        said += _of_origin(diff[diff.origin])
        said += [f"  {text}" for text in (explained or diff.explained).sentences]
    said += [f"  {name}: {words}" for name, words in diff.drawn.items()]
    if diff.others and diff.origin is None:
        said.append(f"  not given: {', '.join(diff.others)}")
    if diff.assumed:
        assumed = ", ".join(f"{name}={x}" for name, x in diff.assumed.items())
        said.append(f"  conventions assumed: {assumed} (--contract changes them)")
    said += [f"  every stage is right under another convention: {words} (--contract)" for words, _ in diff.explained_by]
    if unjudged := [(one, n) for one in diff.stages if (n := _vacuous(one))]:
        found = ", ".join(f"{n} of {one.isolated.summary.size} of {one.name}" for one, n in unjudged if one.isolated)
        said.append(f"  not judged, since the budget exceeds the terms: {found}")
    if diff.conditions:
        found = "; ".join(_condition(*one) for one in diff.conditions.items())
        said.append(f"  condition numbers (median, largest): {found}")
    if command := repeat_command(diff):
        said.append(f"repeat: {command}")
    return said


def _vacuous(stage: StageDiff) -> int:
    """Elements whose budget says nothing."""
    return 0 if stage.isolated is None else stage.isolated.summary.count(State.VACUOUS)


def _condition(name: str, found: Condition) -> str:
    """How many times their sums the terms of a stage are: of these many units of the last place an error may be."""
    return f"{name} {found.median:.3g}, {found.largest:.3g}"


def repeat_command(diff: OperationDiff) -> str:
    """The command that judges the same again; empty where no command has its function, its operation or its inputs."""
    return operation_command("diff", diff.run)


#: option -> what it is where nothing is said
_USUAL: Mapping[str, Any] = {"arrays": "numpy", "device": None, "backend": "auto", "probes": "all"}


def operation_command(verb: str, run: OperationRun) -> str:
    """The command `verb` of the target and case of a run; empty where no command has its function, its operation or its
    inputs.
    """
    name, called = run.target, run.called_with
    if called is None:
        return ""
    # what a function told it tells again
    asked = {convention: x for convention, x in run.case.conventions.items() if convention not in run.told}
    case, ours = replace(run.case, conventions=asked), "faults" in called
    target = None if ours else known(name)
    if case.operation is not OPERATIONS.get(case.operation.name) or not (ours or (target and target.is_foreign)):
        return ""
    if case.functions:  # which no option of an operation names
        return ""
    words = [word for fault in called.get("faults", ()) for word in ("--fault", fault)]
    gradients = bool(called.get("gradients"))
    usual = {**_USUAL, **({"arrays": "torch"} if gradients else {})}
    words += case.words_of(*(["gradients"] if gradients else []))
    words += spellings.said({key: called[key] for key, x in usual.items() if called.get(key, x) != x})
    return command(verb, name, map(shlex.quote, words))


def _of_origin(stage: StageDiff) -> list[str]:
    assert stage.isolated is not None
    found = stage.isolated.summary
    worst = stage.worst_of(stage.isolated, 1)[0]
    nan = found.count(State.NAN)
    said = [f"  over budget: {found.outside} of {found.size} ({found.outside / found.size:.1%})"]
    said += [f"  {mismatches(nan)}"] if nan else []
    said.append(
        f"  worst at {place(worst)}: actual {value(worst.actual)}, expected {value(worst.expected)}, budget "
        f"{value(worst.budget)}, error {times(worst.over_budget)}"
    )
    return said + ([f"  judged from {', '.join(stage.judged_from)}"] if stage.judged_from else [])


def in_short(diff: OperationDiff, explained: OperationExplained | None = None) -> str:
    """The report as plain text, arguments as of `report`."""
    return plain(report(diff, unicode=False, width=WIDTH, explained=explained))


def shrunk(found: OperationShrunk) -> str:
    """What stands above the report of the smallest case."""
    ended = "" if found.complete else "; a larger --seconds tries more"
    return f"smallest of {found.tried} tried cases{ended}:"


def shrunk_in_short(found: OperationShrunk) -> str:
    """What `workbench shrink --operation NAME` shows, for `print`."""
    return f"{shrunk(found)}\n{in_short(found.diff)}"


def document(diff: OperationDiff, explained: OperationExplained | None = None) -> dict[str, Any]:
    """The document `workbench.operation/1` of `workbench diff --operation NAME --json`, of plain Python values.

    - `operation`, `axes`, `numbers`, `conventions`, `optional`: what was run
    - `verdict`, `gates`, `origin`: as of `workbench.diff/1`
    - `stages`: `stage`, `verdict`, `role`, `outside`, `size`, `over_budget`
    - `not_given`: stages that the function does not return
    - `drawn`: stage -> what drawn roundings decided
    - `conditions`: stage -> condition numbers, `median` and `largest`
    - `causes`: `same`, `left`, `moved`, `fresh_runs`, `proved`
    - `shorter`: the run that was searched, if this one is too long
    - `explained_by`: conventions under which all is right
    - `repeat`: the command
    """
    return {
        "schema": SCHEMA,
        "target": diff.run.target,
        **diff.run.case.as_dict(),
        "verdict": diff.verdict,
        "gates": list(diff.run.gates),
        "origin": diff.origin,
        "stages": [_stage(stage) for stage in diff.stages],
        "not_given": list(diff.others),
        "drawn": dict(diff.drawn),
        "conditions": {name: number(one._asdict()) for name, one in diff.conditions.items()},
        **(explained or diff.explained).as_dict(),
        "explained_by": [dict(one) for _, one in diff.explained_by],
        "repeat": repeat_command(diff),
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
