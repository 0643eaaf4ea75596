"""The page of runs that a plain reference judged."""

from base64 import b64encode
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from workbench.expectation.elements import Comparison
from workbench.extras import lacking
from workbench.judge.reference.diff import ReferenceDiff
from workbench.judge.reference.lines import code, short
from workbench.judge.stage import StageDiff
from workbench.reference.graph import Graph
from workbench.report import reference
from workbench.report.numbers import number, ratio, value
from workbench.report.page import page as pages
from workbench.report.page.flow import Flow, Panel
from workbench.report.page.graph import laid_out
from workbench.report.page.maps import IN_FULL, IN_SHORT, OF_CELL, OF_CELL_IN_SHORT, Detail, map_of
from workbench.report.page.page import Page, Part
from workbench.report.pictures import reference as pictures
from workbench.report.reference_budget import shares_of
from workbench.report.tables import Table
from workbench.report.text import DOUBTFUL, gates, kind, verdict
from workbench.report.values import STATES

#: stages that the graph shows at most: of more those alone that were given
SHOWN = 16
#: shares of a budget that are listed
SHARES = 8
#: stages with pictures at most, each about 0.3 s and 50 kB: the wrong ones first, then results
DRAWN = 6


def save(path: str | Path, diffs: Sequence[ReferenceDiff]) -> None:
    """Write the page of a run, or of several, to a file. Refusal where nothing can be written there."""
    pages.save(page(diffs[0]) if len(diffs) == 1 else of_several(diffs), path)


def page(diff: ReferenceDiff) -> Page:
    """The page of one run."""
    no_pictures = lacking("pictures of errors need", "matplotlib")
    heading, *rest = [line for line in reference.sentences(diff) if not line.startswith("repeat: ")]
    return Page(
        title=f"{diff.target}: {diff.verdict}",
        verdict=diff.verdict,
        kind=_kind(diff),
        lines=[heading.removeprefix(f"verdict: {diff.verdict}").lstrip(";: ") or diff.headline, *rest],
        about=[diff.headline, *filter(None, [no_pictures])],
        gates=[line.plain for line in gates([diff])],
        commands=[("repeat", diff.repeat)] if diff.repeat else [],
        flow=_flow(diff, (IN_FULL, IN_SHORT), drawn=0 if no_pictures else DRAWN),
        parts=_parts(diff),
    )


def of_several(diffs: Sequence[ReferenceDiff]) -> Page:
    """The page of several runs: a row each, and a part for each."""
    worst = max(diffs, key=lambda one: one.severity)
    failing = sum(one.fails for one in diffs)
    columns = ("case", "verdict", "first wrong stage")
    rows = [[one.case, one.verdict, one.origin or ""] for one in diffs]
    return Page(
        title=f"{worst.target}: {failing} of {len(diffs)} runs fail",
        verdict=worst.verdict,
        kind=_kind(worst),
        lines=[f"{failing} of {len(diffs)} runs fail"],
        about=[*dict.fromkeys(f"{one.target} by {one.reference}" for one in diffs)],
        gates=[line.plain for line in gates(diffs)],
        parts=[
            Part("All runs", table=Table(columns, rows, [_kind(one) for one in diffs], left=columns), opened=True),
            *(
                Part(
                    f"{one.verdict}: {one.headline}",
                    [line for line in reference.sentences(one) if not line.startswith("repeat: ")],
                    reference.table(one, full=True),
                    one.repeat,
                )
                for one in diffs
            ),
        ],
    )


def html(diff: ReferenceDiff) -> str:
    """A judged run for a cell of Jupyter, where a viewer that runs nothing shows the sentences and the table."""
    flow = _flow(diff, (OF_CELL, OF_CELL_IN_SHORT), drawn=0)
    cell = pages.cell(Page(f"{diff.target}: {diff.verdict}", diff.verdict, _kind(diff), [], flow=flow))
    return reference.html(diff) + cell


def _kind(diff: ReferenceDiff) -> str:
    if diff.gates or diff.origins:
        return "origin"
    return "untestable" if diff.verdict == "untestable" else "doubtful" if diff.verdict in DOUBTFUL else "clean"


# --- the graph


def _flow(diff: ReferenceDiff, details: tuple[Detail, Detail], drawn: int) -> Flow:
    reads = flow(diff)
    results = {one.name for one in diff.given if one.result}
    told = sorted(diff.stages, key=lambda one: (one.role != "origin", one.is_right, one.name not in results))
    with_pictures = [one.name for one in told if not one.is_right or one.name in results][:drawn]
    panels = [_panel(diff, name, details, pictured=name in with_pictures) for name in reads]
    return Flow(laid_out(reads), panels, diff.origin or told[0].name)


def flow(diff: ReferenceDiff) -> dict[str, tuple[str, ...]]:
    """Every stage of the reference, or of many those that were given, -> the stages and inputs that it reads."""
    graph = diff.graph
    given = {one.name: one.nodes for one in diff.given}
    named = {node for nodes in given.values() for node in nodes}
    others = {name: turns for name, turns in graph.stages.items() if not named & {*turns}}
    stages = given if len(given) + len(others) > SHOWN else {**given, **others}
    inputs = {node: name for name, node in graph.inputs.items()}
    order = sorted(stages, key=lambda name: stages[name][-1])
    owner = {node: name for name in order for node in stages[name]} | inputs
    names = {name: f"{name} (input)" if name in stages else name for name in inputs.values()}
    found = {}
    for place, name in enumerate(order):
        reads = _nearest(graph, stages[name], owner)
        earlier = {*order[:place]}
        found[name] = tuple(
            names[one] if node in inputs else one for node, one in reads if node in inputs or one in earlier
        )
    return found


def _nearest(graph: Graph, nodes: Sequence[int], owner: dict[int, str]) -> list[tuple[int, str]]:
    """The nearest nodes with a name that some nodes are made of, one of each name."""
    queue, seen, found = [j for i in nodes for j in graph.nodes[i].reads], set[int](), dict[str, int]()
    while queue:
        i = queue.pop()
        if i in seen or i in nodes:
            continue
        seen.add(i)
        if i in owner:
            found.setdefault(owner[i], i)
        else:
            queue += graph.nodes[i].reads
    return sorted((node, name) for name, node in found.items())


def _panel(diff: ReferenceDiff, name: str, details: tuple[Detail, Detail], *, pictured: bool) -> Panel:
    stage = next((one for one in diff.stages if one.name == name), None)
    definition = f"{name} = {diff.definition(name)}"
    if stage is None:
        return Panel(name, "not given", "not given", "", definition, [])
    shown = "untestable" if stage.verdict == "untestable" else kind(stage)
    detail = details[shown == "clean"]
    compared = stage.reported
    worst = [] if compared is None else stage.worst_of(compared, detail.worst)
    rows = {
        " ".join(map(str, one.place)): [
            value(one.actual), value(one.expected), number(one.actual - one.expected), number(one.budget),
            ratio(one.over_budget), STATES[one.state],
        ]
        for one in worst
    }  # fmt: skip
    columns = ("worst at", "actual", "expected", "error", "budget", "error / budget", "verdict")
    cells = [[reference.place(one), *row] for one, row in zip(worst, rows.values(), strict=True)]
    shares = shares_of(diff, name, worst[0].place)[:SHARES] if worst and not pictured else []
    return Panel(
        name=name,
        kind=shown,
        role=verdict(stage),
        number=f"{ratio(worst[0].over_budget)}x" if worst else "",
        definition=definition,
        lines=[*([stage.reason] if stage.reason else []), *_judged_from(stage)],
        facts=_facts(stage),
        worst=Table(columns, cells, [""] * len(cells), left=("worst at", "verdict")) if cells else None,
        shares=[(str(one), one.share, f"{one.share:.1%}") for one in shares],
        map=None if compared is None or not stage.axes else map_of(stage, None, detail),
        pictures=[(words, _png(figure)) for words, figure in pictures.of_stage(diff, name)] if pictured else [],
        exact=rows,
    )


def _judged_from(stage: StageDiff) -> list[str]:
    return [f"judged from {', '.join(stage.judged_from)}"] if stage.judged_from else ["judged from the inputs"]


def _facts(stage: StageDiff) -> Table | None:
    """Both comparisons of a stage side by side."""
    sides = {"from its inputs": stage.isolated, "from the function's inputs": stage.propagated}
    found = {heading: side for heading, side in sides.items() if side is not None}
    if not stage.judged_from:
        found = dict([*found.items()][:1])
    columns = [_side(stage, side) for side in found.values()]
    if not columns:
        return None
    rows = [[heading, *(column[heading] for column in columns)] for heading in columns[0]]
    return Table(["", *found], rows, [""] * len(rows), left=[""], folds=[*found])


def _side(stage: StageDiff, found: Comparison) -> dict[str, str]:
    total = found.summary
    worst = next(iter(stage.worst_of(found, 1)), None)
    return {
        "over budget": f"{total.outside}/{total.size}",
        "error / budget": "-" if worst is None else ratio(worst.over_budget),
        "max abs error": number(total.max_abs),
        "max ulp": number(total.max_ulp),
        "mean error": number(total.mean_signed),
        "worst at": "-" if worst is None else reference.place(worst),
        "actual": "-" if worst is None else value(worst.actual),
        "expected": "-" if worst is None else value(worst.expected),
        "budget": "-" if worst is None else number(worst.budget),
    }


def _png(figure: "pictures.Figure") -> str:
    figure.savefig(made := BytesIO(), format="png", metadata={"Software": None})
    return b64encode(made.getvalue()).decode()


# --- the parts below it


def _parts(diff: ReferenceDiff) -> list[Part]:
    short_ = reference.sentences(diff)
    more = [line for line in reference.sentences(diff, full=True) if line not in short_]
    lines = dict.fromkeys(node.line for node in diff.graph.nodes if node.reads)
    rows = [[short(line), code(line)] for line in lines]
    columns = ("line", "reference")
    return [
        Part("All stages", table=reference.table(diff, full=True), opened=True),
        Part("What else was checked", more),
        Part("The reference", [diff.reference], Table(columns, rows, [""] * len(rows), left=columns)),
    ]
