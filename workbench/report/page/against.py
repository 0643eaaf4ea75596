"""The page of two runs held against each other."""

from collections.abc import Sequence
from pathlib import Path

from workbench.judge.against.pair import Against
from workbench.judge.against.stage import StageAgainst
from workbench.report import against as words
from workbench.report.command import against_command
from workbench.report.numbers import number, ratio, value
from workbench.report.page import page as pages
from workbench.report.page.diff import short
from workbench.report.page.flow import Flow, Panel
from workbench.report.page.graph import flow, laid_out
from workbench.report.page.page import Page, Part
from workbench.report.tables import Table
from workbench.report.text import gates
from workbench.report.values import definition

#: kinds of boxes -> what they are called of two runs
_WORDS = {"origin": "diverges", "victim": "carried", "clean": "rounding or identical", "not judged": "not comparable"}


def page(pair: Against) -> Page:
    """The page of two judged runs of one problem."""
    return Page(
        title=f"{pair.a.trace.target} against {pair.b.trace.target}: {pair.verdict}",
        verdict=pair.verdict,
        kind={"diverges": "origin", "untestable": "untestable"}.get(pair.verdict, "clean"),
        lines=_verdict_first(words.findings(pair)),
        about=words.headlines(pair),
        gates=[line.plain for line in gates([pair.a.trace, pair.b.trace])],
        commands=[("repeat", command)] if (command := against_command(pair)) else [],
        flow=_flow(pair),
        parts=_parts(pair),
    )


def summary(pairs: Sequence[Against]) -> Page:
    """The page of several pairs: a row each, and what is said of each folded below."""
    table, total = words.pairs_table(pairs)
    parted = any(pair.parts_at is not None for pair in pairs)
    each = [
        Part(
            " against ".join(words.headlines(pair)),
            words.findings(pair),
            words.stage_table(pair),
            against_command(pair),
        )
        for pair in pairs
    ]
    verdict = "diverges" if parted else "rounding"
    kind = "origin" if parted else "clean"
    return Page(total, verdict, kind, [total], parts=[Part("All pairs", table=table, opened=True), *each])


def save(path: str | Path, pair: Against) -> None:
    """Write the page of two runs to a file."""
    pages.save(page(pair), path)


def cell(pair: Against) -> str:
    """The graph and its panels in a frame, for Jupyter."""
    return pages.cell(page(pair))


def _verdict_first(lines: Sequence[str]) -> list[str]:
    """The sentences, those on where they diverge first."""
    first = next(i for i, line in enumerate(lines) if line.startswith(words.OF_DIVERGENCE))
    return [*lines[first:], *lines[:first]]


def _flow(pair: Against) -> Flow:
    one, other = pair.a.run, pair.b.run
    reads = flow(one) if len(flow(one)) >= len(flow(other)) else flow(other)
    table = words.stage_table(pair)
    rows = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    compared = {stage.name: stage for stage in pair}
    panels = [_panel(pair, name, compared.get(name), rows.get(name, {})) for name in reads]
    chosen = pair.parts_at or pair.differs_at or panels[-1].name
    return Flow(laid_out(reads), panels, chosen, _WORDS)


def _panel(pair: Against, name: str, stage: StageAgainst | None, row: dict[str, str]) -> Panel:
    run = pair.a.run if name in flow(pair.a.run) else pair.b.run
    facts = [[column, cell] for column, cell in row.items() if cell and column != "stage"]
    worst = None if stage is None else stage.worst
    if worst is not None:
        facts += [
            ["expected in A", value(worst.expected_a)],
            ["expected in B", value(worst.expected_b)],
            ["budget of the difference", number(worst.budget)],
        ]
    return Panel(
        name=name,
        kind=(words.kind(pair, name) or "untestable") if row else "not given",
        role=row.get("A against B", "not given"),
        number=f"{ratio(stage.over_budgets)} x" if stage is not None and stage.judged and stage.differing else "",
        definition=definition(run, name),
        lines=[pair.apart[name]] if name in pair.apart else [],
        facts=Table(("", "A against B"), facts, [""] * len(facts), left=("",)) if facts else None,
    )


def _parts(pair: Against) -> list[Part]:
    return [Part("All stages", table=words.stage_table(pair), opened=True), short(pair.a), short(pair.b)]
