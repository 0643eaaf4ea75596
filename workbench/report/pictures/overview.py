"""Pictures of a diff: histograms and a map of each stage, an overview of all, and how they are written to a folder.

matplotlib is imported when the first picture is made, not with this module.
"""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.case.case import Case
from workbench.expectation.elements import Comparison
from workbench.files import write_atomically
from workbench.judge.diff import Diff
from workbench.judge.stage import StageDiff
from workbench.report.numbers import ratio
from workbench.report.pictures import style as look
from workbench.report.pictures.cancellation import cancellation
from workbench.report.pictures.codes import decode_table, decoded_tile
from workbench.report.pictures.fragments import tensor_core_tile
from workbench.report.pictures.heatmap import heatmap
from workbench.report.pictures.histogram import EDGES, budget_axis, histogram, position
from workbench.report.pictures.signed import errors
from workbench.trace.headline import headline as headline_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["cancellation", "errors", "heatmap", "histogram", "overview", "save"]

#: role of a stage -> colour
ROLES = {"origin": look.HOT, "victim": look.VICTIM, "clean": look.CALM, "not judged": look.FAINT}

#: heading of a column beside the overview -> its place, in widths of the plot
COLUMNS = {"role": 1.02, "verdict": 1.135, "\u25ae isolated": 1.3, "\u25c7 propagated": 1.46, "over budget": 1.655}
ROW, TOP, BOTTOM = 0.27, 1.1, 0.55  #: inches of the overview: a stage's row, above the rows, below them


def save(diff: Diff, folder: Path) -> list[Path]:
    """Write `overview.png`, `cancellation.png` and each stage's `<nn>-<stage>-histogram.png`, `-errors.png` and
    `-heatmap.png`; return them. A decode table has a `-table.png` too, a decoded stage a `-tile.png`, qk of tensor
    cores a `-fragments.png`.

    nn is the stage's place in data-flow order, from 01. A stage without a comparison has a row in the overview and no
    pictures of its own; a run without sums has no `cancellation.png`. A file that was there is replaced, and is whole
    at any time. The same diff gives the same bytes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    case = diff.trace.case_run
    run = headline_of(diff.trace)
    paths = [write(overview(diff.rows, run), folder / "overview.png")]
    if diff.bits_lost:
        paths.append(write(cancellation(diff.bits_lost, run), folder / "cancellation.png"))
    for place, stage in enumerate(diff.rows, 1):
        if stage.decisive is not None:
            drawn = {"histogram": histogram(stage), "errors": errors(stage), "heatmap": heatmap(stage, case=case)}
            drawn |= _of_codes(stage, case)
            paths += [write(figure, folder / f"{place:02d}-{stage.name}-{kind}.png") for kind, figure in drawn.items()]
    return paths


def _of_codes(stage: StageDiff, case: Case) -> dict[str, "Figure"]:
    """The pictures, by name, that only stages of a kernel on codes have."""
    if stage.name.startswith("lut"):
        return {"table": decode_table(stage)}
    if stage.name.startswith("dequant"):
        return {"tile": decoded_tile(stage, case=case)}
    return {"fragments": tensor_core_tile(stage)} if stage.name == "qk" and case.scores == "mma" else {}


def overview(stages: Sequence[StageDiff], run: str) -> "Figure":
    """A row for each stage, in the order given: its role, its largest isolated (bar) and propagated (diamond) error.
    `run`: what was run, in words.
    """
    rows = max(len(stages), 1)  # nothing judged: an empty row, as axes of no height cannot be drawn
    height = TOP + ROW * rows + BOTTOM
    figure = look.page(11.4, height)
    victims = _named(stages, "victim") or "no victims"
    look.headline(figure, _named(stages, "origin") or _no_origin(stages), victims)
    axes = figure.add_axes((0.105, BOTTOM / height, 0.46, ROW * rows / height))
    budget_axis(axes, "largest |error| / budget")
    axes.set_ylim(rows - 0.5, -0.5)
    axes.set_yticks(range(len(stages)), [stage.name for stage in stages])
    axes.text(0, -0.85, "budget", ha="center", va="center", fontsize=look.LABEL, fontweight="bold", color=look.INK)
    for column, x in COLUMNS.items():
        _cell(axes, x, -0.85, column, look.FAINT)
    for row, stage in enumerate(stages):
        _row(axes, row, stage)
    return look.signed(figure, run)


def _row(axes: "Axes", row: int, stage: StageDiff) -> None:
    name = stage.role
    judged = stage.reported
    isolated, propagated = _largest(stage.isolated), _largest(stage.propagated)
    axes.axhline(row, color=look.RULE, lw=0.6, zorder=0.5)
    if isolated is not None:
        start = EDGES[0] - 0.3
        axes.barh(row, position(isolated) - start, left=start, height=0.56, color=ROLES[name], zorder=2)
    if propagated is not None:
        axes.plot(position(propagated), row, "D", mfc="white", mec=look.INK, mew=1.3, ms=6.5, zorder=5)
    texts = (
        stage.verdict,
        "-" if isolated is None else ratio(isolated),
        "-" if propagated is None else ratio(propagated),
        "-" if judged is None else f"{judged.summary.outside:,} / {judged.summary.size:,}",
    )
    place, *places = COLUMNS.values()
    if name in ("origin", "victim"):
        _cell(axes, place, row, name, ROLES[name], "bold")
    for place, text in zip(places, texts, strict=True):
        _cell(axes, place, row, text, look.FAINT if name == "not judged" else look.INK)


def _cell(axes: "Axes", x: float, y: float, text: str, colour: str, weight: str = "normal") -> None:
    style = {"fontsize": look.LABEL, "color": colour, "fontweight": weight}
    axes.text(x, y, text, transform=axes.get_yaxis_transform(), va="center", fontdict=style)


def _largest(comparison: Comparison | None) -> float | None:
    worst = None if comparison is None else look.worst_element(comparison)
    return None if comparison is None or worst is None else float(comparison.over_budget.flat[worst])


def _named(stages: Sequence[StageDiff], wanted: str) -> str:
    names = [stage.name for stage in stages if stage.role == wanted]
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return f"{wanted}{'s' if len(names) > 1 else ''}: {', '.join(names[:6])}{more}" if names else ""


def _no_origin(stages: Sequence[StageDiff]) -> str:
    if all(stage.role == "not judged" for stage in stages):
        return "nothing was judged"
    return "no origin: no stage is wrong on its own inputs"


def write(figure: "Figure", path: Path) -> Path:
    """The file of a picture."""
    figure.savefig(content := BytesIO(), format="png", dpi=look.DPI, metadata={"Software": None})
    write_atomically(path, content.getvalue())
    return path
