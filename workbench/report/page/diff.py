"""The page of one judged run, and of what explains it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workbench.expectation.elements import Element
from workbench.judge.diff import Diff
from workbench.judge.explain.explain import Explained
from workbench.judge.stage import StageDiff
from workbench.progress import step
from workbench.report.causes import lines as causes
from workbench.report.causes import none_found
from workbench.report.command import diff_command, watch_command
from workbench.report.document import diff_document
from workbench.report.numbers import number, ratio, value
from workbench.report.origin import of_stage
from workbench.report.page import page as pages
from workbench.report.page.flow import Flow, Panel
from workbench.report.page.graph import flow, laid_out
from workbench.report.page.maps import IN_FULL, IN_SHORT, OF_CELL, OF_CELL_IN_SHORT, Detail, map_of
from workbench.report.page.page import Page, Part
from workbench.report.remarks import notes, remarks
from workbench.report.tables import Table, lines
from workbench.report.text import (
    DOUBTFUL,
    RACES,
    gates,
    html_table,
    kind,
    of_laws,
    of_watched,
    place,
    sentences,
    stage_table,
    verdict,
)
from workbench.report.values import STATES, definition
from workbench.report.words import findings
from workbench.trace.headline import headline

#: kinds of stages of which a map is kept in full
_TOLD = ("origin", "victim", "doubtful")
#: rows of the facts of a stage: heading -> field of the JSON document, and how it is written
_FACTS = {
    "error / budget": ("over_budget", ratio),
    "max abs error": ("max_abs", number),
    "max ulp": ("max_ulp", number),
    "mean error": ("mean_signed", number),
    "actual": ("actual", value),
    "expected": ("expected", value),
    "budget": ("budget", number),
}


def page(diff: Diff, found: Explained | None = None) -> Page:
    """The page of a judged run; `found`: what explains it."""
    document = diff_document(diff)
    # what the panels of stages say is not said above them, nor a cause twice
    heading, *judgement = findings(diff, details=False, causes=found is None)
    heading = heading.removeprefix(f"verdict: {diff.verdict}; ")  # the badge beside it shows the verdict
    said = [heading, *_watched(found), *judgement, *notes(diff), *_explained(diff, found)]
    return Page(
        title=f"{diff.trace.target}: {diff.verdict}",
        verdict=diff.verdict,
        kind=_kind_of_run(diff),
        lines=said,
        about=[headline(diff.trace)],
        gates=[line.plain for line in gates([diff.trace])],
        commands=_commands(diff),
        flow=_flow(diff, document, (IN_FULL, IN_SHORT)),
        parts=_parts(diff, document, said),
    )


def save(path: str | Path, diff: Diff, found: Explained | None = None) -> None:
    """Write the page of a judged run to a file."""
    pages.save(page(diff, found), path)


def html(diff: Diff, found: Explained | None = None) -> str:
    """A judged run for a cell of Jupyter, where a viewer that runs nothing shows the sentences and the table."""
    table = html_table(diff) if found is None else lines([*_watched(found), *_explained(diff, found)])
    return table + cell(diff)


def cell(diff: Diff) -> str:
    """The interactive part of the page in a frame, with less of the maps."""
    flow = _flow(diff, diff_document(diff), (OF_CELL, OF_CELL_IN_SHORT))
    return pages.cell(Page(f"{diff.trace.target}: {diff.verdict}", diff.verdict, _kind_of_run(diff), [], flow=flow))


def short(diff: Diff, found: Explained | None = None) -> Part:
    """What is kept of a run that is one of several, arguments as of `page`."""
    above = [*(line.plain for line in gates([diff.trace])), *_watched(found)]
    below = [*sentences(diff, full=False), *_explained(diff, found)]
    return Part(
        f"{diff.verdict}: {headline(diff.trace)}", [*above, *below], stage_table(diff, full=False), diff_command(diff)
    )


def _explained(diff: Diff, found: Explained | None) -> list[str]:
    return none_found(diff) if found is None else [*causes(diff, found), *of_laws(found)]


def _watched(found: Explained | None) -> list[str]:
    return [] if found is None else of_watched(found)


def _commands(diff: Diff) -> list[tuple[str, str]]:
    """What does the same again, and what watches a wrong run."""
    races = watch_command(diff.trace) if diff.origins else ""
    return [(label, line) for label, line in (("repeat", diff_command(diff)), (RACES.rstrip(":"), races)) if line]


def _kind_of_run(diff: Diff) -> str:
    if diff.trace.gates or diff.origins or diff.verdict in ("bug", "missing"):
        return "origin"
    return "untestable" if diff.verdict == "untestable" else "doubtful" if diff.verdict in DOUBTFUL else "clean"


# --- the graph


def _flow(diff: Diff, document: dict[str, Any], detail: tuple[Detail, Detail]) -> Flow:
    reads = flow(diff.run)
    told = {stage["name"]: stage for stage in document["stages"]}
    panels = []
    with step("make the page", None) as tick:  # of a large run it judges each stage again, as pictures do
        for i, name in enumerate(reads):
            tick(f"{i} of {len(reads)} stages")
            panels.append(_panel(diff, diff[name], told.get(name), detail))
    return Flow(laid_out(reads), panels, _chosen(panels))


def _chosen(panels: Sequence[Panel]) -> str:
    """The first origin, else what is doubtful, else the last stage that was judged."""
    for wanted in ("origin", "victim", "doubtful"):
        if names := [panel.name for panel in panels if panel.kind == wanted]:
            return names[0]
    return [panel.name for panel in panels if panel.kind == "clean" or panel is panels[-1]][-1]


def _kind(stage: StageDiff) -> str:
    if stage.verdict == "untestable":
        return "untestable"
    return "not given" if stage.reason == "not given" else kind(stage)


def _panel(diff: Diff, stage: StageDiff, told: dict[str, Any] | None, details: tuple[Detail, Detail]) -> Panel:
    shown, compared = _kind(stage), stage.reported
    detail = details[shown not in _TOLD]
    worst = [] if compared is None else stage.worst_of(compared, detail.worst)
    if worst and worst[0].over_budget == 0:  # every element is as good as every other
        worst = []
    rows = {" ".join(map(str, one.index.values())): _numbers(one) for one in worst}
    return Panel(
        name=stage.name,
        kind=shown,
        role="not given" if shown == "not given" else verdict(stage),
        number=f"{ratio(worst[0].over_budget)}x" if worst else "",
        definition=definition(diff.run, stage.name),
        lines=of_stage(diff, stage.name),
        facts=None if told is None else _facts(stage, told),
        worst=_worst(worst, list(rows.values())) if worst else None,
        shares=[]
        if told is None
        else [(source, share, f"{share:.1%}") for source, share in told["budget_terms"].items()],
        map=None if compared is None else map_of(stage, diff.trace.case, detail),
        exact=rows,
    )


def _facts(stage: StageDiff, told: dict[str, Any]) -> Table | None:
    """Both comparisons of a stage side by side, as the JSON document has them."""
    sides = {"from its inputs": told["isolated"], "from q, k and v": told["propagated"]}
    found = {heading: side for heading, side in sides.items() if side is not None}
    if not found:
        return None
    rows = [["over budget", *(f"{side['outside']}/{side['size']}" for side in found.values())]]
    rows += [[name, *(_written(side[key], write) for side in found.values())] for name, (key, write) in _FACTS.items()]
    rows.insert(5, ["worst at", *(_at(side["worst"]) for side in found.values())])
    return Table(["", *found], rows, [""] * len(rows), left=[""], folds=[*found])


def _written(x: Any, write: Any) -> str:
    """A number of the document; non-finite ones are words there."""
    return "-" if x is None else write(float(x))


def _at(index: dict[str, int] | None) -> str:
    return "-" if index is None else " ".join(f"{axis}={i}" for axis, i in index.items())


def _numbers(one: Element) -> list[str]:
    error = 0.0 if one.actual == one.expected else one.actual - one.expected
    numbers = (value(one.actual), value(one.expected), number(error), number(one.budget), ratio(one.over_budget))
    return [*numbers, STATES[one.state]]


def _worst(worst: Sequence[Element], rows: Sequence[Sequence[str]]) -> Table:
    columns = ("worst at", "actual", "expected", "error", "budget", "error / budget", "verdict")
    cells = [[place(one), *row] for one, row in zip(worst, rows, strict=True)]
    return Table(columns, cells, [""] * len(cells), left=("worst at", "verdict"), folds=("worst at",))


# --- the parts below it


def _parts(diff: Diff, document: dict[str, Any], said: Sequence[str]) -> list[Part]:
    """What stands below; `said`: what stands above."""
    more = [*findings(diff, full=True, details=False, causes=False), *remarks(diff)]
    found = [
        Part("All stages", table=stage_table(diff, full=True), opened=True),
        Part("What else was checked", [line for line in more if line not in said]),
        Part("The case", table=_fields(document["case"])),
        Part("The contract", _assumed(diff), table=_fields(document["contract"])),
    ]
    if (told := document["provenance"]) is not None:
        files = [
            [file["path"], file["sha256"], file["modified"], "yes" if file["loaded"] else "no"]
            for file in told["files"]
        ]
        columns = ("file", "sha256", "modified", "ran")
        others = [f"{name}: {_said(x)}" for name, x in told.items() if name != "files"]
        found.append(
            Part("Provenance", others, Table(columns, files, [""] * len(files), left=columns, folds=columns[:2]))
        )
    return found


def _assumed(diff: Diff) -> list[str]:
    names = ", ".join(sorted(diff.trace.contract.assumed))
    return [f"undeclared, so assumed: {names}"] if names else []


def _fields(plain: dict[str, Any]) -> Table:
    rows = [[name, _said(x)] for name, x in plain.items() if x is not None]
    return Table(("field", "value"), rows, [""] * len(rows), left=("field", "value"), folds=("value",))


def _said(x: Any) -> str:
    """A value of a document in words."""
    if isinstance(x, dict):
        return ", ".join(f"{name} {_said(one)}" for name, one in x.items())
    return ", ".join(map(_said, x)) if isinstance(x, list) else "-" if x is None else str(x)
