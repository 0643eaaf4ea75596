"""The page of judged runs of an operation beside attention."""

from collections.abc import Sequence
from pathlib import Path

from workbench.operations.judge import OperationDiff
from workbench.report.operation import repeat_command, sentences, stage_table
from workbench.report.page import page as pages
from workbench.report.page.page import Page, Part
from workbench.report.text import gates, kind


def save(diffs: Sequence[OperationDiff], path: str | Path) -> None:
    """Write the page of a run, or of several, to a file. Refusal where nothing can be written there."""
    pages.save(page(diffs), path)


def page(diffs: Sequence[OperationDiff]) -> Page:
    """The page: of one run its judgement first, of several the worst of them, and a part for each."""
    worst = max(diffs, key=lambda one: one.origin is not None)
    command = repeat_command(worst)
    return Page(
        title=f"{worst.run.target}: {worst.verdict}",
        verdict=worst.verdict,
        kind=next((kind(one) for one in worst.stages if one.name == worst.origin), "clean"),
        lines=sentences(worst),
        gates=[line.plain for line in gates([one.run for one in diffs])],
        about=[worst.headline],
        commands=[("repeat", command)] if command else [],
        parts=[
            Part(title=one.headline, lines=sentences(one), table=stage_table(one), opened=len(diffs) == 1)
            for one in diffs
        ],
    )
