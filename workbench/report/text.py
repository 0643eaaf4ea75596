"""Judgements as tables and sentences, for a terminal and for Jupyter."""

import shlex
from collections.abc import Iterable, Sequence
from io import StringIO

import numpy as np
from rich import box
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from workbench.case import GIVEN
from workbench.judge import Diff
from workbench.report import tables
from workbench.report.command import case_options, diff_command
from workbench.report.document import largest
from workbench.report.remarks import remarks
from workbench.report.words import beginning, findings, number, value
from workbench.rows import Row, Rows
from workbench.stage_diff import Element, StageDiff
from workbench.trace import Trace

COLUMNS = (
    "stage",
    "verdict",
    "x of budget",
    "outside",
    "max abs",
    "max ulp",
    "mean signed",
    "bits lost",
    "worst at",
    "actual",
    "expected",
)
#: characters of a line where no terminal shows it, enough for every column
WIDTH = 200
#: of several runs; the last one marks rows
RUN_COLUMNS = ("case", "verdict", "origin", "x of budget", "max abs", "")
_RUN_LEFT = ("case", "verdict", "origin", "")
#: columns that a narrow screen does without, the least telling first
_SPARE = ("bits lost", "mean signed", "max abs", "max ulp", "outside", "x of budget")
_LEFT = ("stage", "verdict", "worst at")
_STYLES = {"origin": "bold red", "victim": "yellow", "clean": "green", "not judged": "dim"}
#: role -> CSS of its row
STYLES = {"origin": "color:#b00020;font-weight:bold", "victim": "color:#946200"}


def place(element: Element) -> str:
    """Axis letters and indices of an element."""
    return " ".join(f"{axis}={i}" for axis, i in element.index.items())


def row(diff: Diff, stage: StageDiff) -> tuple[str, ...]:
    """The cells of one stage, as in COLUMNS."""
    part = stage.role
    verdict = stage.verdict + {"origin": " <- origin", "victim": " (victim)"}.get(part, "")
    comparison = stage.told
    if comparison is None:
        return (stage.name, verdict, *[""] * (len(COLUMNS) - 3), stage.reason)
    found = comparison.summary
    worst = stage.worst_of(comparison, 1)
    if worst and worst[0].over_budget == 0:  # every element is as good as every other
        worst = []
    return (
        stage.name,
        verdict,
        number(worst[0].over_budget) if worst else "0" if found.judged else "-",
        f"{found.outside}/{found.size}",
        number(largest(found.max_abs)),
        number(largest(found.max_ulp)),
        number(found.mean_signed),
        bits_lost(diff, stage),
        place(worst[0]) if worst else "",
        value(worst[0].actual) if worst else "",
        value(worst[0].expected) if worst else "",
    )


def bits_lost(diff: Diff, stage: StageDiff) -> str:
    """Median and maximum of the bits that the elements of a sum lose to cancellation; blank for other stages."""
    bits = diff.bits_lost.get(stage.name, np.array([]))
    known = bits[~np.isnan(bits)]
    return f"{np.median(known):.1f} / {known.max():.1f}" if known.size else ""


def report(diff: Diff, *, unicode: bool, width: int) -> RenderableType:
    """The whole judgement of one run: what was run, a row for each stage, what other rules say, the origins in
    words, how to repeat it.

    On a screen narrower than the table (`width`, in characters) the columns that say least are left out.
    """
    table = new_table(unicode)
    rows = [dict(zip(COLUMNS, row(diff, stage), strict=True)) for stage in diff.stages]
    columns = fitting(rows, COLUMNS, _SPARE, width)
    for column in columns:
        table.add_column(column, justify="left" if column in _LEFT else "right", no_wrap=True)
    for stage, cells in zip(diff.stages, rows, strict=True):
        table.add_row(*(escape(cells[column]) for column in columns), style=_STYLES[stage.role])
    parts: list[RenderableType] = [*gates([diff.trace]), Text(headline(diff.trace)), table]
    parts += [Text(line) for line in [*_meaning(diff), *remarks(diff)]]
    parts += [Text(line, style="bold" if not line.startswith(" ") else "") for line in findings(diff)]
    parts += [Text(f"repeat: {command}", style="dim")] if (command := diff_command(diff)) else []
    return Group(*parts)


def gates(traces: Iterable[Trace | Row]) -> list[Text]:
    """What stands above the verdicts, a line each."""
    lines = dict.fromkeys(gate for trace in traces for gate in trace.gates)
    return [Text(f"gate failed: {line}", style="bold red") for line in lines]


def _meaning(diff: Diff) -> list[str]:
    """What the rows of victims show, where there are any with errors of their own too."""
    if not any(stage.isolated for stage in diff.stages if stage.role == "victim"):
        return []
    return [
        f"Rows marked (victim) show the error against {beginning(diff.trace)}; all others against the stage's "
        "own dumped inputs."
    ]


def new_table(unicode: bool) -> Table:
    """An empty table; plain columns where no terminal shows it, so that other programs can read them."""
    return Table(box=box.SIMPLE_HEAD if unicode else None, header_style="bold", pad_edge=False)


def fitting(rows: Sequence[dict[str, str]], columns: Sequence[str], spare: Sequence[str], width: int) -> list[str]:
    """The columns, without those of `spare`, the least telling first, as far as the rows do not fit into `width`
    characters.
    """
    left = list(columns)
    for column in spare:
        # two characters stand between columns
        needed = sum(2 + max(map(len, (name, *(cells[name] for cells in rows)))) for name in left)
        if needed <= width:
            break
        left.remove(column)
    return left


def headline(trace: Trace) -> str:
    """What was run, in a line."""
    case = trace.case_run
    heads = f"h={case.heads}" + (f" (kv {case.kv_heads})" if case.kv_heads != case.heads else "")
    # a foreign kernel may not say how it splits the keys, and its tiles of queries do not matter
    tiles = [f"tiles {case.block_q}x{case.block_k}"] if case.block_q and case.block_k else []
    splits = [f"{case.splits} splits"] if case.splits else []
    mask = f"causal {case.causal_alignment}" if case.causal else "full"
    faults = f" with {', '.join(trace.faults)}" if trace.faults else ""
    backend = "" if trace.backend == "foreign" else f" on {trace.backend}"
    shape = f"{case.dtype} b={case.batch} {heads} q={case.seqlen_q} k={case.seqlen_k} d={case.head_dim}"
    # of a kernel that was given its codes, or is not ours, not everything is known
    codes = [f"codes {case.codes}" + ("" if "scale_q" in trace.put_in else f" {case.quantiser_scale}")]
    codes += [f"{name} {getattr(case, name)}" for name in ("scores", "decode") if getattr(case, name)]
    inputs = [case.distribution, f"seed {case.seed}"]
    if case.distribution == GIVEN:
        inputs = [f"inputs {trace.called_with.get('inputs', GIVEN)}"]
    fed = [f"put in: {', '.join(trace.put_in)}"] if trace.called_with.get("feed") else []
    window = [] if trace.window is None else [f"only {trace.window}"]
    parts = [shape, mask, *tiles, *splits, *(codes if case.codes else []), *inputs, *fed, *window]
    return f"{trace.target}{faults}{backend}: {', '.join(parts)}"


def summary(rows: Sequence[Row], *, unicode: bool) -> RenderableType:
    """One row for each run: case, verdict, origin, worst x of budget, largest error; the last passing and first failing
    one marked.
    """
    table, found = new_table(unicode), Rows(tuple(rows))
    for column in RUN_COLUMNS:
        table.add_column(column, justify="left" if column in _RUN_LEFT else "right", overflow="fold")
    for row, cells in zip(rows, _run_cells(found), strict=True):
        table.add_row(*map(escape, cells), style=_STYLES["clean" if row.passed else "origin"])
    return Group(*gates(rows), table, Text(_total(found), style="bold"))


def html_summary(rows: Rows) -> str:
    """What `summary` shows as HTML, for Jupyter."""
    styles = ["" if row.passed else STYLES["origin"] for row in rows]
    table = tables.table(RUN_COLUMNS, _run_cells(rows), left=_RUN_LEFT, styles=styles)
    return tables.lines([line.plain for line in gates(rows)]) + table + tables.lines([_total(rows)])


def _run_cells(rows: Rows) -> list[tuple[str, ...]]:
    """The cells of each run, as in RUN_COLUMNS."""
    marks = {id(rows.first_failing): "<- first failing"}
    if rows.first_failing is not None:
        marks[id(rows.last_passing)] = "<- last passing"
    found: list[tuple[str, ...]] = []
    for row in rows:
        window = [] if row.window is None else ["--where", str(row.window)]
        run = " ".join([shlex.quote(row.target), *case_options(row.case, own=False), *window])
        numbers = number(row.over_budget), number(row.max_abs)
        found.append((run, row.outcome, ", ".join(row.origins) or "-", *numbers, marks.get(id(row), "")))
    return found


def _total(rows: Rows) -> str:
    passed = [row.passed for row in rows]
    failing = (
        "with one, not testable, or a gate failed" if any(row.gates for row in rows) else "with one or not testable"
    )
    return f"{len(passed)} runs: {passed.count(True)} without a bug, {passed.count(False)} {failing}"


def console(*, stderr: bool = False) -> Console:
    """A console as wide as the tables need when it is no terminal."""
    made = Console(stderr=stderr, highlight=False)
    return made if made.is_terminal else Console(stderr=stderr, highlight=False, width=WIDTH)


def plain(part: RenderableType) -> str:
    """What a screen of WIDTH characters that is no terminal shows, for `print`."""
    screen = Console(file=(written := StringIO()), highlight=False, width=WIDTH, force_jupyter=False)
    screen.print(part)
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines())


def html_table(diff: Diff) -> str:
    """What `report` shows as HTML, for Jupyter."""
    table = tables.table(
        COLUMNS,
        [row(diff, stage) for stage in diff.stages],
        left=_LEFT,
        styles=[STYLES.get(stage.role, "") for stage in diff.stages],
    )
    said = [*_meaning(diff), *remarks(diff), *findings(diff)]
    above = [line.plain for line in gates([diff.trace])]
    return tables.lines([*above, headline(diff.trace)]) + table + tables.lines(said)


def listing(
    entries: Sequence[dict], columns: Sequence[str], *, unicode: bool, right: Sequence[str] = ()
) -> RenderableType:
    """A plain table of dicts; the columns `right`, of numbers, are aligned at the right."""
    table = new_table(unicode)
    for i, column in enumerate(columns):
        if column in right:
            table.add_column(column.replace("_", " "), no_wrap=True, justify="right")
        else:
            table.add_column(column.replace("_", " "), no_wrap=i == 0, overflow="fold")
    for entry in entries:
        table.add_row(*(escape(_cell(entry[column])) for column in columns))
    return table


def show(entries: Sequence[dict], columns: Sequence[str]) -> None:
    """Print a listing."""
    screen = console()
    screen.print(listing(entries, columns, unicode=screen.is_terminal))


def _cell(content: object) -> str:
    if content is None or isinstance(content, float):
        return number(content)
    return ", ".join(content) if isinstance(content, list) else str(content)
