"""Judgements as tables and sentences, for a terminal and for Jupyter."""

import textwrap
from collections.abc import Iterable, Sequence
from io import StringIO
from typing import Protocol

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.text import Text

from workbench.case.stages import RESULTS
from workbench.expectation.elements import Element
from workbench.judge.diff import Diff
from workbench.judge.explain.explain import Explained
from workbench.judge.stage import StageDiff
from workbench.report import tables
from workbench.report.causes import lines as causes
from workbench.report.causes import none_found
from workbench.report.command import diff_command, run_command, watch_command
from workbench.report.document import largest
from workbench.report.findings import words
from workbench.report.numbers import number, ratio, value
from workbench.report.remarks import notes, remarks
from workbench.report.tables import Table, new_screen
from workbench.report.words import findings
from workbench.trace.headline import headline

COLUMNS = (
    "stage",
    "verdict",
    "error / budget",
    "over budget",
    "max abs error",
    "max ulp",
    "mean error",
    "bits lost",
    "worst at",
    "actual",
    "expected",
)
#: columns that only the full report has
_FULL = ("max ulp", "mean error", "bits lost")
#: columns that a narrow screen does without, the most telling first; what is not here always stays
SPARE = ("error / budget", "over budget", "worst at", "max abs error", "actual", "expected", *_FULL)
#: right stages that a short report of a wrong run shows a row each, at most: the results are always among them
FOLDED_FROM = 2
#: characters of a cell that is never broken
SHORT = 12
#: characters of a line where no terminal shows it, enough for every column
WIDTH = 200
LEFT = ("stage", "verdict", "worst at")
#: what stands before the command that watches a run: a race may look like any bug, and any bug like a race
RACES = "check for races and uninitialised reads:"
#: verdicts that pass, but are not shown in green
DOUBTFUL = ("suspicious", "biased")


class Gated(Protocol):
    """A run of which something may stand above the verdict."""

    @property
    def gates(self) -> tuple[str, ...]: ...


def place(element: Element) -> str:
    """Axis letters and indices of an element."""
    return " ".join(f"{axis}={i}" for axis, i in element.index.items())


def verdict(stage: StageDiff) -> str:
    """A stage's verdict as tables show it: that of a victim is "victim", with a question mark where it may be more."""
    measured = " (measured)" * stage.measured
    if stage.role == "victim":
        return ("victim?" if stage.maybe_victim else "victim") + measured
    return (f"{stage.verdict} <- origin" if stage.role == "origin" else stage.verdict) + measured


def kind(stage: StageDiff) -> str:
    """A stage's role; of one that plays none and is not plainly right, that it is doubtful."""
    return "doubtful" if stage.role == "clean" and stage.verdict in DOUBTFUL else stage.role


def cells(stage: StageDiff) -> dict[str, str]:
    """The cells of one stage, by the names in COLUMNS without those of `bits lost`."""
    comparison = stage.reported
    if comparison is None:
        return dict.fromkeys(COLUMNS, "") | {"stage": stage.name, "verdict": verdict(stage)}
    found = comparison.summary
    worst = stage.worst_of(comparison, 1)
    if worst and worst[0].over_budget == 0:  # every element is as good as every other
        worst = []
    return {
        "stage": stage.name,
        "verdict": verdict(stage),
        "error / budget": ratio(worst[0].over_budget) if worst else "0" if found.judged else "-",
        "over budget": f"{found.outside}/{found.size}",
        "max abs error": number(largest(found.max_abs)),
        "max ulp": number(largest(found.max_ulp)),
        "mean error": number(found.mean_signed),
        "worst at": place(worst[0]) if worst else "",
        "actual": value(worst[0].actual) if worst else "",
        "expected": value(worst[0].expected) if worst else "",
    }


def bits_lost(diff: Diff, stage: StageDiff) -> str:
    """Median and maximum of the bits that the elements of a sum lose to cancellation; blank for other stages."""
    bits = diff.bits_lost.get(stage.name, np.array([]))
    known = bits[~np.isnan(bits)]
    return f"{np.median(known):.1f} / {known.max():.1f}" if known.size else ""


def stage_table(diff: Diff, full: bool) -> Table:
    """A row for every stage; in short, of a wrong run, one row for all right stages but the results. `full`: also the
    bits lost, which cost another pass.
    """
    columns = columns_of(full)
    folded = [] if full else _folded(diff)
    shown = [stage for stage in diff.rows if stage not in folded]
    rows = [cells(stage) | ({"bits lost": bits_lost(diff, stage)} if full else {}) for stage in shown]
    kinds = [kind(stage) for stage in shown]
    if folded:
        rows.append(row_of(folded, "right"))
        kinds.append("clean")
    return Table(columns, [[row[name] for name in columns] for row in rows], kinds, left=LEFT, spare=SPARE)


def _folded(diff: Diff) -> list[StageDiff]:
    """The right stages of a wrong run about which there is nothing to say."""
    if not diff.origins:
        return []
    right = [
        stage for stage in diff.rows if stage.is_right and not (stage.reason or stage.measured or stage.name in RESULTS)
    ]
    return right if len(right) >= FOLDED_FROM else []


def row_of(stages: Sequence[StageDiff], verdict: str) -> dict[str, str]:
    """The cells of several stages in one row."""
    found = [stage.reported.summary for stage in stages if stage.reported is not None]
    worst = [one.worst.over_budget for one in found if one.worst is not None]
    return dict.fromkeys(COLUMNS, "") | {
        "stage": f"{len(stages)} more stage{'s' * (len(stages) > 1)}",
        "verdict": verdict,
        "error / budget": ratio(max(worst, default=0.0)),
        "over budget": f"{sum(one.outside for one in found)}/{sum(one.size for one in found)}",
    }


def columns_of(full: bool) -> list[str]:
    return [column for column in COLUMNS if full or column not in _FULL]


def report(diff: Diff, *, unicode: bool, width: int, full: bool = False) -> RenderableType:
    """The judgement of one run: what was run, its stages, the first wrong one in words, what to do next. `full`: all
    columns and everything that was checked.

    On a screen narrower than the table (`width`, in characters) the columns that say least are left out.
    """
    table = stage_table(diff, full).screen(unicode=unicode, width=width)
    fold = width if unicode else None
    below = [
        line
        for text in [*sentences(diff, full), *none_found(diff)]
        for line in wrapped(text, "" if text.startswith(" ") else "bold", fold)
    ]
    parts: list[RenderableType] = [*gates([diff.trace]), *wrapped(headline(diff.trace), "", fold), table, *below]
    if _may_race(diff) and (command := watch_command(diff.trace)):
        parts += wrapped(f"{RACES} {command}", "dim", None)
    parts += wrapped(f"repeat: {command}", "dim", None) if (command := diff_command(diff)) else []
    return Group(*parts)


def _may_race(diff: Diff) -> bool:
    """Whether a stage is wrong without a proved cause: a race may look like any bug."""
    return any(not any(cause.proved for cause in diff.causes_of(name)) for name in diff.origins)


def explained(found: Explained, *, unicode: bool, width: int) -> RenderableType:
    """What explains a wrong run: races and bad accesses, then causes, then broken laws where no cause was found."""
    diff, fold = found.judged, width if unicode else None
    lines = [*of_watched(found), *causes(diff, found), *of_laws(found)]
    if found.watched is None and (diff.origins or found.usual) and (command := watch_command(diff.trace)):
        lines.append(f"{RACES} {command}")
    below = [x for line in lines for x in wrapped(line, "" if line.startswith(" ") else "bold", fold)]
    return Group(*gates([diff.trace]), *wrapped(headline(diff.trace), "", fold), *below)


def of_watched(found: Explained) -> list[str]:
    """Races and bad accesses of a wrong kernel, which come before causes."""
    if found.watched is None:
        return []
    if found.watched.passed:
        return ["checked: no race, no unwritten read, no access out of bounds"]
    lines = [f"  {line}" for line in words(found.watched)]
    return ["fix this first: it can corrupt any number, and may be the cause of what follows", *lines]


def of_laws(found: Explained) -> list[str]:
    """The laws of attention that a kernel breaks, where no cause was found."""
    from workbench.report.broken_laws import lines

    return [] if found.laws is None else lines(found.laws, run_command("laws", found.judged.trace))


def wrapped(line: str, style: str, width: int | None) -> list[Text]:
    """A line of words in lines of at most `width` characters, those after the first set in; None: as it is, for other
    programs and to be copied.
    """
    inner = " " * (len(line) - len(line.lstrip()) + 4)
    keep = {"subsequent_indent": inner, "break_long_words": False, "break_on_hyphens": False}
    lines = [line] if width is None else textwrap.wrap(line, width, **keep)  # type: ignore[arg-type]
    return [Text(one, style=style, no_wrap=True, overflow="ignore") for one in lines]


def sentences(diff: Diff, full: bool) -> list[str]:
    """What stands below the table."""
    return [*findings(diff, full=full), *notes(diff), *(remarks(diff) if full else [])]


def gates(traces: Iterable[Gated]) -> list[Text]:
    """What stands above the verdicts, a line each."""
    lines = dict.fromkeys(gate for trace in traces for gate in trace.gates)
    return [Text(f"gate failed: {line}", style="bold red") for line in lines]


def console(*, stderr: bool = False) -> Console:
    """A console as wide as the tables need when it is no terminal."""
    made = Console(stderr=stderr, highlight=False)
    return made if made.is_terminal else Console(stderr=stderr, highlight=False, width=WIDTH)


def plain(part: RenderableType) -> str:
    """What a screen of WIDTH characters that is no terminal shows, for `print`."""
    # not a terminal, whatever the environment says: Jupyter asks all programs for colours
    written = StringIO()
    screen = Console(file=written, highlight=False, width=WIDTH, force_jupyter=False, force_terminal=False)
    screen.print(part, crop=False)
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines())


def in_short(diff: Diff) -> str:
    """What `workbench diff` shows, for `print`."""
    return plain(report(diff, unicode=False, width=WIDTH))


def in_full(diff: Diff) -> str:
    """What `workbench diff -v` shows, for `print`."""
    return plain(report(diff, unicode=False, width=WIDTH, full=True))


def explained_in_short(found: Explained) -> str:
    """What `workbench explain` shows, for `print`."""
    return plain(explained(found, unicode=False, width=WIDTH))


def html_table(diff: Diff) -> str:
    """What `report` shows as HTML, for Jupyter; the full report is folded away."""
    above = tables.lines([*(line.plain for line in gates([diff.trace])), headline(diff.trace)])
    short, full = (
        stage_table(diff, full).html() + tables.lines([*sentences(diff, full), *none_found(diff)])
        for full in (False, True)
    )
    return above + short + tables.folded("everything that was checked", full)


def listing(
    entries: Sequence[dict], columns: Sequence[str], *, unicode: bool, right: Sequence[str] = ()
) -> RenderableType:
    """A plain table of dicts; the columns `right`, of numbers, are aligned at the right. On a narrow screen columns of
    words take several lines, those of short cells, numbers among them, one.
    """
    table = new_screen(unicode)
    rows = [[_cell(entry[column]) for column in columns] for entry in entries]
    for i, column in enumerate(columns):
        short = all(len(row[i]) <= SHORT for row in rows)
        justify = "right" if column in right else "left"
        table.add_column(column.replace("_", " "), no_wrap=i == 0 or short, overflow="fold", justify=justify)  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def show(entries: Sequence[dict], columns: Sequence[str]) -> None:
    """Print a listing."""
    screen = console()
    screen.print(listing(entries, columns, unicode=screen.is_terminal))


def _cell(content: object) -> str:
    if content is None or isinstance(content, float):
        return number(content)
    return ", ".join(content) if isinstance(content, list) else str(content)
