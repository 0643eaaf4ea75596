"""Where the errors of a stage are: a map in units of budget, through the worst element."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import digits
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.case.case import Case
from workbench.case.ranks import spoken
from workbench.case.stages import AXIS_NAMES, AXIS_PLURALS
from workbench.judge.stage import StageDiff
from workbench.refusal import Refusal
from workbench.report.pictures import style as look
from workbench.report.pictures.heads import height as heads_height
from workbench.report.pictures.heads import strip as heads_strip
from workbench.report.pictures.shades import HIGH, LOW, NAMED, OVER, RAMP, colours, reduced, shade
from workbench.report.pictures.style import FAINT, INK, LABEL, SMALL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT, MAP, BAR = 7.75, 6.25, 4.75, 2.85  #: inches: the figure, the side of the map in it, the bar of colours
LINES = 64  #: most tile lines drawn in a direction

#: axes of a stage of a plain reference are numbered
_NUMBERED = {axis: f"axis {axis}" for axis in digits}
WORDS = {**AXIS_NAMES, "t": "key tile", **_NUMBERED}
PLURALS = {**AXIS_PLURALS, "t": "key tiles", **{axis: f"of {name}" for axis, name in _NUMBERED.items()}}


@dataclass(frozen=True)
class Slice:
    """The two axes of a stage that are drawn, and where the others are fixed."""

    rows: str  #: an axis letter; blank for a stage of one axis
    columns: str
    fixed: Mapping[str, int]  #: the other axes -> index, at the worst element
    corner: tuple[int, int]  #: indices of the first row and column
    worst: tuple[int, int] | None  #: indices of the worst element
    over_budget: np.ndarray  #: [rows, columns]
    state: np.ndarray  #: [rows, columns]


def heatmap(stage: StageDiff, *, case: Case | None, axes: tuple[str, str] | None = None) -> "Figure":
    """A map of |error| / budget of the comparison that tables show, in the plane through its worst element, which is
    marked; of a stage with several heads below it a strip with the worst of each.

    `axes`: the letters of rows and columns; None: query by the first of key, dim, tile and split that the stage has,
    else head by query, else the last two. Tile lines need the case's block_q and block_k; None has none. In a map of
    more than CELLS elements in a direction, a cell is the worst of a block. Refuses a stage without a comparison, and
    axes that it does not have.
    """
    cut = slice_at_worst(stage, axes or default_axes(stage.axes))
    shades, steps = reduced(shade(cut.over_budget, cut.state))
    below = heads_height(stage, cut.fixed)
    height = HEIGHT + below
    figure = look.page(WIDTH, height)
    look.headline(figure, look.title(stage), f"{place(stage, cut, steps)}\n{look.worst_line(stage)}")
    plot = figure.add_axes((0.72 / WIDTH, (0.55 + below) / height, MAP / WIDTH, MAP / height))
    _image(plot, shades, steps, cut, stage.of_ranks)
    handles = [*_mark_worst(plot, cut.worst), *_lines(plot, case, cut, stage.of_ranks), *swatches(shades)]
    key(figure, handles, left=5.75, top=0.55 + below + MAP)
    if below:
        heads_strip(figure, stage, cut.fixed, left=0.72, width=MAP)
    return look.signed(figure, stage.run)


def key(figure: "Figure", handles: Sequence[Any], *, left: float, top: float) -> None:
    """The colours of errors at a place of a figure in inches, and below them what `handles` mean; 2.85 + 0.2 for each
    of these high.
    """
    width, height = figure.get_size_inches()
    _colour_bar(figure.add_axes((left / width, (top - BAR) / height, 0.2 / width, BAR / height)))
    style: dict[str, Any] = {"borderaxespad": 0, "borderpad": 0, "frameon": False, "fontsize": SMALL, "labelcolor": INK}
    corner = (left / width, (top - BAR - 0.25) / height)
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=corner, **style)


def default_axes(axes: str) -> tuple[str, str]:
    """Letters of the rows and columns drawn of a stage with `axes`; the rows of a stage of one axis are blank."""
    pairs = (("q", "k"), ("q", "d"), ("q", "t"), ("q", "s"), ("h", "q"))
    last = axes[-2:].rjust(2)
    return next((pair for pair in pairs if set(pair) <= set(axes)), (last[0], last[1]))


def slice_at_worst(stage: StageDiff, axes: tuple[str, str]) -> Slice:
    """The plane of `axes` through its worst element, or the first where nothing was
    judged.
    """
    comparison = look.shown(stage)
    rows, columns = axes
    if rows == columns or columns not in stage.axes or rows not in (*stage.axes, " "):
        raise Refusal(
            f"axes must be two different axes of {stage.name}: {', '.join(stage.axes)}; got {', '.join(axes)}"
        )
    worst = look.worst_element(comparison)
    at = look.indices(stage, worst or 0)
    index = tuple(slice(None) if axis in axes else i for axis, i in look.positions(stage, at).items())
    turned = stage.axes.find(rows) > stage.axes.find(columns)
    planes = [np.atleast_2d(array[index]) for array in (comparison.over_budget, comparison.state)]
    over_budget, state = [plane.T if turned else plane for plane in planes]
    fixed = {axis: i for axis, i in at.items() if axis not in axes}
    corner = stage.first.get(rows, 0), stage.first.get(columns, 0)
    found = None if worst is None else (at.get(rows, 0), at[columns])
    return Slice(rows, columns, fixed, corner, found, over_budget, state)


def grid(case: Case | None, axis: str, size: int, first: int = 0) -> tuple[list[int], list[int]]:
    """Where tiles and splits begin within `size` elements of an axis from index `first` on, which is left out; no place
    is in both lists.
    """
    if case is None:
        return [], []
    block = {"q": case.block_q, "k": case.block_k, "t": 1 if case.block_k else None}.get(axis)
    if block is None:
        return [], []
    splits: list[int] = []
    if axis in "kt" and case.splits is not None:
        key_tiles = -(-size // block)
        splits = list(range(block * -(-key_tiles // case.splits), size, block * -(-key_tiles // case.splits)))
    edges = range(block, first + size, block)
    return [edge for edge in edges if edge > first and edge not in splits and axis != "t"], splits


def place(stage: StageDiff, cut: Slice, steps: tuple[int, int]) -> str:
    """Where a plane lies among the others, what is drawn of it, and of how many elements a cell is the worst."""
    sizes = dict(zip(stage.axes, look.shown(stage).state.shape, strict=True))
    several = [f"{sizes[axis]} {spoken(PLURALS[axis], stage.of_ranks)}" for axis in cut.fixed if sizes[axis] > 1]
    where = " ".join(f"{WORDS[axis] if axis in _NUMBERED else axis}={i}" for axis, i in cut.fixed.items())
    if several:
        where = f"{'first' if cut.worst is None else 'worst'} of {' x '.join(several)}: {where}"
    cells = f"a cell is the worst of {steps[0]} x {steps[1]} elements" if max(steps) > 1 else ""
    return ", ".join(part for part in (where, f"{look.kind(stage)} |error| / budget", cells) if part)


def _image(axes: "Axes", shades: np.ndarray, steps: tuple[int, int], cut: Slice, of_ranks: bool) -> None:
    look.bare(axes)
    (rows, columns), (height, width), (top, left) = shades.shape, cut.over_budget.shape, cut.corner
    extent = (left - 0.5, left + columns * steps[1] - 0.5, top + rows * steps[0] - 0.5, top - 0.5)
    image, outside = colours(shades), shades >= OVER
    axes.imshow(image, extent=extent, aspect="auto", interpolation="nearest", zorder=0)
    if outside.any():  # once more over the lines, which may be wider than a cell
        image = np.dstack([image, 255 * outside.astype(np.uint8)])
        axes.imshow(image, extent=extent, aspect="auto", interpolation="nearest", zorder=3)
    axes.set(xlim=(left - 0.5, left + width - 0.5), ylim=(top + height - 0.5, top - 0.5))
    axes.set(xticks=look.ticks(left, width), yticks=look.ticks(top, height))
    across, down = (spoken(WORDS.get(axis, axis), of_ranks) for axis in (cut.columns, cut.rows))
    axes.set_xlabel(across, fontsize=LABEL, color=INK)
    axes.set_ylabel(down, fontsize=LABEL, color=INK)
    axes.spines[:].set(visible=True, color=FAINT, linewidth=0.8)


def _lines(axes: "Axes", case: Case | None, cut: Slice, of_ranks: bool) -> list:
    (height, width), (top, left) = cut.over_budget.shape, cut.corner
    tile: dict[str, Any] = {"colors": FAINT, "linewidths": 0.6, "alpha": 0.5, "label": "tile bounds"}
    split: dict[str, Any] = {"colors": INK, "linewidths": 1.8, "label": spoken("split bounds", of_ranks)}
    drawn = {}
    across = (cut.rows, top, height, axes.hlines, left, width)
    down = (cut.columns, left, width, axes.vlines, top, height)
    for axis, first, size, lines, start, length in (across, down):
        for style, edges in zip((tile, split), grid(case, axis, size, first), strict=True):
            if 0 < len(edges) <= LINES:
                places = [edge - 0.5 for edge in edges]
                drawn[style["label"]] = lines(places, start - 0.5, start + length - 0.5, **style)
    return list(drawn.values())


def swatches(shades: np.ndarray) -> list:
    """Legend handles of the shades that are no size of an error, of those that are there."""
    from matplotlib.patches import Patch

    present = [NAMED[name] for name in NAMED if (shades == name).any()]
    return [Patch(facecolor=colour, edgecolor=FAINT, linewidth=0.6, label=words) for colour, words in present]


def _colour_bar(axes: "Axes") -> None:
    axes.set_axis_off()
    decades = np.linspace(HIGH, LOW, 2 * RAMP)
    shades = shade(10.0**decades, np.zeros(decades.size, np.uint8))
    axes.imshow(colours(shades[:, None]), extent=(0, 1, LOW, HIGH), aspect="auto", interpolation="nearest")
    axes.axhline(0, color=INK, lw=1.4)
    names = {LOW: f"\u2264{look.power(LOW)}", 0: "1  budget", HIGH: f"\u2265{look.power(HIGH)}"}
    for decade in range(LOW, HIGH + 1):
        style = {"fontsize": SMALL, "color": INK, "fontweight": "bold" if decade == 0 else "normal"}
        axes.text(1.3, decade, names.get(decade, look.power(decade)), va="center_baseline", fontdict=style)


def _mark_worst(axes: "Axes", worst: tuple[int, int] | None) -> list:
    return [] if worst is None else look.ring(axes, worst[1], worst[0], size=13, label="worst element")
