"""Judgements as tables and sentences, for a terminal and for Jupyter."""

import html
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich import box
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from workbench.case import GIVEN
from workbench.judge import Diff
from workbench.report.command import case_options, diff_command
from workbench.report.document import largest
from workbench.report.remarks import remarks
from workbench.report.words import beginning, findings, number, value
from workbench.stage_diff import ORIGIN_VERDICTS, Element, StageDiff
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
#: columns that a narrow screen does without, the least telling first
_SPARE = ("bits lost", "mean signed", "max abs", "max ulp", "outside", "x of budget")
_STYLES = {"origin": "bold red", "victim": "yellow", "clean": "green", "not judged": "dim"}


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
        left = column in ("stage", "verdict", "worst at")
        table.add_column(column, justify="left" if left else "right", no_wrap=True)
    for stage, cells in zip(diff.stages, rows, strict=True):
        table.add_row(*(escape(cells[column]) for column in columns), style=_STYLES[stage.role])
    parts: list[RenderableType] = [Text(headline(diff.trace)), table]
    if any(stage.isolated for stage in diff.stages if stage.role == "victim"):
        parts.append(
            Text(
                f"Rows marked (victim) show the error against {beginning(diff.trace)}; all others against the stage's "
                "own dumped inputs."
            )
        )
    parts += [Text(line) for line in remarks(diff)]
    parts += [Text(line, style="bold" if not line.startswith(" ") else "") for line in findings(diff)]
    parts.append(Text(f"repeat: {diff_command(diff)}", style="dim"))
    return Group(*parts)


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


@dataclass(frozen=True)
class Row:
    """One of several runs, without its trace."""

    run: str  #: target and case
    verdict: str
    origins: tuple[str, ...]
    over_budget: float | None  #: the largest of all stages; None where nothing was judged
    max_abs: float | None  #: likewise

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong, and something was judged."""
        return self.verdict not in (*ORIGIN_VERDICTS, "untestable")


def run_row(diff: Diff) -> Row:
    """What `summary` shows of a run."""
    judged = [stage for stage in diff.stages if stage.decisive is not None]
    worst = [element.over_budget for stage in judged for element in stage.worst(1)]
    errors = [error for stage in judged if (error := largest(stage.judged.summary.max_abs)) is not None]
    window = [] if diff.trace.window is None else ["--where", str(diff.trace.window)]
    words = [diff.trace.target, *case_options(diff.trace.case_run, own=False), *window]
    return Row(" ".join(words), diff.verdict, diff.origins, max(worst, default=None), max(errors, default=None))


def summary(rows: Sequence[Row], *, unicode: bool) -> RenderableType:
    """One row for each run: case, verdict, origin, worst x of budget, largest error; the last passing and first failing
    one marked.
    """
    table = new_table(unicode)
    for column in ("case", "verdict", "origin", "x of budget", "max abs", ""):
        table.add_column(column, justify="right" if column in ("x of budget", "max abs") else "left", overflow="fold")
    passed = [row.passed for row in rows]
    first_failing = passed.index(False) if False in passed else None
    last_passing = max((i for i, ok in enumerate(passed) if ok), default=None)
    for i, row in enumerate(rows):
        mark = (
            "<- first failing"
            if i == first_failing
            else "<- last passing"
            if i == last_passing and first_failing is not None
            else ""
        )
        cells = (row.verdict, ", ".join(row.origins) or "-", number(row.over_budget), number(row.max_abs), mark)
        table.add_row(escape(row.run), *cells, style=_STYLES["clean" if row.passed else "origin"])
    failing = passed.count(False)
    total = f"{len(rows)} runs: {len(rows) - failing} without a bug, {failing} with one or not testable"
    return Group(table, Text(total, style="bold"))


def console(*, stderr: bool = False) -> Console:
    """A console as wide as the tables need when it is no terminal."""
    made = Console(stderr=stderr, highlight=False)
    return made if made.is_terminal else Console(stderr=stderr, highlight=False, width=200)


def html_table(diff: Diff) -> str:
    """The table of `report` as HTML, for Jupyter."""
    colours = {"origin": "#b00020", "victim": "#946200"}
    cells = "".join(f"<th style='text-align:left'>{html.escape(column)}</th>" for column in COLUMNS)
    rows = [f"<tr>{cells}</tr>"]
    for stage in diff.stages:
        part = stage.role
        cells = "".join(f"<td style='text-align:left'>{html.escape(cell)}</td>" for cell in row(diff, stage))
        weight = "bold" if part == "origin" else "normal"
        rows.append(f"<tr style='color:{colours.get(part, 'inherit')};font-weight:{weight}'>{cells}</tr>")
    words = "".join(f"<div>{html.escape(line)}</div>" for line in [*remarks(diff), *findings(diff)])
    return f"<div>{html.escape(headline(diff.trace))}</div><table>{''.join(rows)}</table>{words}"


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
