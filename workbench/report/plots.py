"""Pictures of a diff: a histogram and a map of each stage, an overview of all, and how they are written to a folder.

matplotlib is imported when the first picture is made, not with this module.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from workbench.case import Case
from workbench.comparison import Comparison, StageDiff
from workbench.report.heatmap import heatmap
from workbench.report.histogram import (
    CALM,
    DPI,
    EDGES,
    FAINT,
    HOT,
    INK,
    LABEL,
    RULE,
    VICTIM,
    budget_axis,
    headline,
    histogram,
    page,
    position,
    times,
    worst_element,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["heatmap", "histogram", "overview", "role", "save"]

ROLES = {"origin": HOT, "victim": VICTIM, "clean": CALM, "not judged": FAINT}  #: role of a stage -> colour

#: heading of a column beside the overview -> its place, in widths of the plot
COLUMNS = {"role": 1.02, "verdict": 1.135, "\u25ae isolated": 1.3, "\u25c7 propagated": 1.46, "outside": 1.655}
ROW, TOP, BOTTOM = 0.27, 1.25, 0.55  #: inches of the overview: a stage's row, above the rows, below them


def save(stages: Sequence[StageDiff], case: Case, folder: Path) -> list[Path]:
    """Write `overview.png`, `<nn>-<stage>-histogram.png` and `<nn>-<stage>-heatmap.png` into `folder`; returns the files in that order.

    `stages` in data-flow order; nn is the place among them, from 01. A stage without a comparison has a row in the overview and no
    pictures. The same arguments give the same bytes. A file is there whole or not at all; files that were there are replaced.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [_write(overview(stages, case), folder / "overview.png")]
    for place, stage in enumerate(stages, 1):
        if stage.decisive is not None:
            paths.append(_write(histogram(stage), folder / f"{place:02d}-{stage.name}-histogram.png"))
            paths.append(_write(heatmap(stage, case=case), folder / f"{place:02d}-{stage.name}-heatmap.png"))
    return paths


def role(stage: StageDiff) -> str:
    """origin: wrong by its own verdict; victim: only its propagated error is outside; not judged; or clean."""
    if stage.verdict in ("bug", "missing"):
        return "origin"
    if stage.propagated is not None and stage.propagated.outside.any():
        return "victim"
    return "not judged" if stage.decisive is None or stage.verdict == "untestable" else "clean"


def overview(stages: Sequence[StageDiff], case: Case) -> "Figure":
    """One row per stage, in the order given: its largest isolated (bar) and propagated (diamond) |error| / budget, and its role."""
    height = TOP + ROW * len(stages) + BOTTOM
    figure = page(11.4, height)
    headline(figure, _named(stages, "origin") or _no_origin(stages), f"{_named(stages, 'victim') or 'no victims'}\n{_case_line(case)}")
    axes = figure.add_axes((0.105, BOTTOM / height, 0.46, ROW * len(stages) / height))
    budget_axis(axes, "largest |error| / budget")
    axes.set_ylim(len(stages) - 0.5, -0.5)
    axes.set_yticks(range(len(stages)), [stage.name for stage in stages])
    for row, stage in enumerate(stages):
        _row(axes, row, stage)
    for text, x in COLUMNS.items():
        axes.text(x, -0.85, text, transform=axes.get_yaxis_transform(), fontsize=LABEL, color=FAINT, va="center")
    axes.text(0, -0.85, "budget", ha="center", va="center", fontsize=LABEL, fontweight="bold", color=INK)
    return figure




def _row(axes: "Axes", row: int, stage: StageDiff) -> None:
    name = role(stage)
    axes.axhline(row, color=RULE, lw=0.6, zorder=0.5)
    isolated, propagated = _largest(stage.isolated), _largest(stage.propagated)
    if isolated is not None:
        axes.barh(row, position(isolated) - EDGES[0] + 0.3, left=EDGES[0] - 0.3, height=0.56, color=ROLES[name], zorder=2)
    if propagated is not None:
        axes.plot(position(propagated), row, "D", mfc="white", mec=ROLES[name], mew=1.6, ms=6.5, zorder=5)
    outside = "-" if stage.decisive is None else f"{np.count_nonzero(stage.decisive.outside):,} / {stage.decisive.actual.size:,}"
    shown = name if name in ("origin", "victim") else ""
    cells = (shown, stage.verdict, *("-" if x is None else times(x) for x in (isolated, propagated)), outside)
    for column, (x, text) in enumerate(zip(COLUMNS.values(), cells, strict=True)):
        weight, colour = ("bold", ROLES[name]) if column == 0 else ("normal", FAINT if name == "not judged" else INK)
        axes.text(x, row, text, transform=axes.get_yaxis_transform(), fontsize=LABEL, va="center", color=colour, fontweight=weight)


def _largest(comparison: Comparison | None) -> float | None:
    worst = None if comparison is None else worst_element(comparison)
    return None if comparison is None or worst is None else float(comparison.over_budget.flat[worst])


def _named(stages: Sequence[StageDiff], wanted: str) -> str:
    names = [stage.name for stage in stages if role(stage) == wanted]
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return f"{wanted}{'s' if len(names) > 1 else ''}: {', '.join(names[:6])}{more}" if names else ""


def _no_origin(stages: Sequence[StageDiff]) -> str:
    return "no origin: every judged stage is within its budget" if any(role(stage) != "not judged" for stage in stages) else "nothing was judged"


def _case_line(case: Case) -> str:
    return (
        f"batch {case.batch}, heads {case.heads} ({case.kv_heads} kv), {case.seqlen_q} queries x {case.seqlen_k} keys, "
        f"head_dim {case.head_dim}, {case.dtype}, {'causal' if case.causal else 'full'}, seed {case.seed}"
    )


def _write(figure: "Figure", path: Path) -> Path:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        figure.savefig(part, format="png", dpi=DPI, metadata={"Software": None})
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path
