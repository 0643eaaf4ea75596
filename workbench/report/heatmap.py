"""Where the errors of a stage are: a map in units of budget, through the worst element.

Each element becomes a shade, an integer that grows with importance, so that reducing a large map is a block maximum.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.case import Case
from workbench.comparison import State
from workbench.refusal import Refusal
from workbench.report import look
from workbench.report.look import FAINT, INK, LABEL, SMALL
from workbench.stage_diff import StageDiff
from workbench.stages import AXIS_NAMES, AXIS_PLURALS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT, MAP, BAR = 7.75, 6.25, 4.75, 2.85  #: inches: the figure, the side of the map in it, the bar of colours
CELLS = 512  #: most cells drawn in a direction; the map is 522 pixels wide at 110 dpi, so that each cell keeps a pixel
LINES = 64  #: most tile lines drawn in a direction

LOW, HIGH = -3, 6  #: decades of the colour scale; smaller and larger errors have the colours of its ends
RAMP = 240  #: shades on either side of the budget
EXACT, WITHIN = 0, 1
NOT_JUDGED = WITHIN + RAMP
POISONED = NOT_JUDGED + 1
SUSPICIOUS = POISONED + 1
OVER = SUSPICIOUS + 1
NAN = OVER + RAMP
UNWRITTEN = NAN + 1

#: shade -> colour and words, for the shades that are no size of an error
NAMED = {
    EXACT: ("#ffffff", "exact, error 0"),
    NOT_JUDGED: ("#e9dfc3", "not judged"),
    POISONED: ("#9aa0a6", "poisoned: inputs NaN"),
    SUSPICIOUS: ("#159a8c", "suspicious"),  # neither blue nor on the way from yellow to red
    NAN: ("#4a0d66", "NaN or wrong class"),
    UNWRITTEN: ("#000000", "unwritten"),
}
CALM_RAMP = ("#e1eef9", "#a9cfe9", "#5ba3d4", "#1f6fb0")
HOT_RAMP = ("#ffd23f", "#fb9a29", "#e8541e", "#b5121b", "#7d0012")

WORDS = {**AXIS_NAMES, "t": "key tile"}
PLURALS = {**AXIS_PLURALS, "t": "key tiles"}


@dataclass(frozen=True)
class Slice:
    """The two axes of a stage that are drawn, and where the others are held."""

    rows: str  #: an axis letter; blank for a stage of one axis
    columns: str
    held: Mapping[str, int]  #: the other axes -> index, at the worst element
    corner: tuple[int, int]  #: indices of the first row and column
    worst: tuple[int, int] | None  #: indices of the worst element
    over_budget: np.ndarray  #: [rows, columns]
    state: np.ndarray  #: [rows, columns]


def heatmap(stage: StageDiff, *, case: Case, axes: tuple[str, str] | None = None) -> "Figure":
    """A map of |error| / budget of the decisive comparison, in the plane through its worst element, which is marked.

    `axes`: the letters of rows and columns; None: query by the first of key, dim, tile and split that the stage has,
    else head by query. Tile lines need the case's block_q and block_k. In a map of more than CELLS elements in a
    direction, a cell is the worst of a block. Refuses a stage without a comparison, and axes that it does not have.
    """
    cut = slice_at_worst(stage, axes or default_axes(stage.axes))
    shades, steps = reduced(shade(cut.over_budget, cut.state))
    figure = look.page(WIDTH, HEIGHT)
    look.headline(figure, f"{stage.name}: {stage.verdict}", f"{_place(stage, cut, steps)}\n{look.worst_line(stage)}")
    plot = figure.add_axes((0.72 / WIDTH, 0.55 / HEIGHT, MAP / WIDTH, MAP / HEIGHT))
    _image(plot, shades, steps, cut)
    handles = [*_mark_worst(plot, cut.worst), *_lines(plot, case, cut), *swatches(shades)]
    key(figure, handles, left=5.75, top=0.55 + MAP)
    return figure


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
    """The plane of `axes` through the worst element of the decisive comparison, or the first where nothing was
    judged.
    """
    comparison = look.decisive(stage)
    rows, columns = axes
    if rows == columns or columns not in stage.axes or rows not in (*stage.axes, " "):
        raise Refusal(f"axes are two different ones of {stage.name}: {', '.join(stage.axes)}; got {', '.join(axes)}")
    worst = look.worst_element(comparison)
    at = look.indices(stage, worst or 0)
    index = tuple(slice(None) if axis in axes else i for axis, i in look.positions(stage, at).items())
    turned = stage.axes.find(rows) > stage.axes.find(columns)
    planes = [np.atleast_2d(array[index]) for array in (comparison.over_budget, comparison.state)]
    over_budget, state = [plane.T if turned else plane for plane in planes]
    held = {axis: i for axis, i in at.items() if axis not in axes}
    corner = stage.first.get(rows, 0), stage.first.get(columns, 0)
    found = None if worst is None else (at.get(rows, 0), at[columns])
    return Slice(rows, columns, held, corner, found, over_budget, state)


def shade(over_budget: np.ndarray, state: np.ndarray) -> np.ndarray:
    """A shade for each element, int16, that grows with importance.

    exact < within budget, by size < not judged < poisoned < suspicious < over budget, by size < NaN < unwritten
    """
    with np.errstate(divide="ignore"):
        decades = np.log10(over_budget)
    calm = np.clip((decades - LOW) / -LOW * (RAMP - 1), 0, RAMP - 1)
    hot = np.clip(decades / HIGH * (RAMP - 1), 0, RAMP - 1)
    conditions = [
        state == State.UNWRITTEN,
        state == State.NAN,
        state == State.POISONED,
        (state == State.VACUOUS) | np.isnan(over_budget),
        over_budget > 1,
        state == State.SUSPICIOUS,
        over_budget == 0,
    ]
    shades = [UNWRITTEN, NAN, POISONED, NOT_JUDGED, OVER + hot, SUSPICIOUS, EXACT]
    return np.select(conditions, shades, WITHIN + calm).astype(np.int16)


def reduced(shades: np.ndarray, limit: int = CELLS) -> tuple[np.ndarray, tuple[int, int]]:
    """The largest shade of each block, at most `limit` blocks in a direction, and the rows and columns of a block."""
    rows, columns = (-(-size // limit) for size in shades.shape)
    shades = np.maximum.reduceat(shades, np.arange(0, shades.shape[0], rows), axis=0)
    return np.maximum.reduceat(shades, np.arange(0, shades.shape[1], columns), axis=1), (rows, columns)


def colours(shades: np.ndarray) -> np.ndarray:
    """RGB of each shade, uint8 [..., 3]."""
    table = np.zeros((UNWRITTEN + 1, 3))
    table[WITHIN:NOT_JUDGED] = _ramp(CALM_RAMP)
    table[OVER:NAN] = _ramp(HOT_RAMP)
    for name, (colour, _) in NAMED.items():
        table[name] = _rgb(colour)
    return np.round(table).astype(np.uint8)[shades]


def grid(case: Case, axis: str, size: int, first: int = 0) -> tuple[list[int], list[int]]:
    """Where tiles and splits begin within `size` elements of an axis from index `first` on, which is left out; no place
    is in both lists.
    """
    block = {"q": case.block_q, "k": case.block_k, "t": 1 if case.block_k else None}.get(axis)
    if block is None:
        return [], []
    splits: list[int] = []
    if axis in "kt" and case.splits is not None:
        key_tiles = -(-size // block)
        splits = list(range(block * -(-key_tiles // case.splits), size, block * -(-key_tiles // case.splits)))
    edges = range(block, first + size, block)
    return [edge for edge in edges if edge > first and edge not in splits and axis != "t"], splits


def _rgb(colour: str) -> list[int]:
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def _ramp(anchors: tuple[str, ...]) -> np.ndarray:
    known = np.array([_rgb(anchor) for anchor in anchors])
    places = np.linspace(0, len(anchors) - 1, RAMP)
    return np.stack([np.interp(places, np.arange(len(anchors)), channel) for channel in known.T], axis=1)


def _place(stage: StageDiff, cut: Slice, steps: tuple[int, int]) -> str:
    sizes = dict(zip(stage.axes, look.decisive(stage).state.shape, strict=True))
    several = [f"{sizes[axis]} {PLURALS[axis]}" for axis in cut.held if sizes[axis] > 1]
    place = " ".join(f"{axis}={i}" for axis, i in cut.held.items())
    if several:
        place = f"{'first' if cut.worst is None else 'worst'} of {' x '.join(several)}: {place}"
    cells = f"a cell is the worst of {steps[0]} x {steps[1]} elements" if max(steps) > 1 else ""
    return ", ".join(part for part in (place, f"{look.kind(stage)} |error| / budget", cells) if part)


def _image(axes: "Axes", shades: np.ndarray, steps: tuple[int, int], cut: Slice) -> None:
    look.bare(axes)
    (rows, columns), (height, width), (top, left) = shades.shape, cut.over_budget.shape, cut.corner
    extent = (left - 0.5, left + columns * steps[1] - 0.5, top + rows * steps[0] - 0.5, top - 0.5)
    image, outside = colours(shades), shades >= OVER
    axes.imshow(image, extent=extent, aspect="auto", interpolation="nearest", zorder=0)
    if outside.any():  # once more over the lines, which may be wider than a cell
        image = np.dstack([image, 255 * outside.astype(np.uint8)])
        axes.imshow(image, extent=extent, aspect="auto", interpolation="nearest", zorder=3)
    axes.set(xlim=(left - 0.5, left + width - 0.5), ylim=(top + height - 0.5, top - 0.5))
    axes.set(xticks=_ticks(left, width), yticks=_ticks(top, height))
    axes.set_xlabel(WORDS.get(cut.columns, cut.columns), fontsize=LABEL, color=INK)
    axes.set_ylabel(WORDS.get(cut.rows, cut.rows), fontsize=LABEL, color=INK)
    axes.spines[:].set(visible=True, color=FAINT, linewidth=0.8)


def _ticks(first: int, size: int) -> range:
    step = 1
    while size > 9 * step:
        step *= 2
    return range(-(-first // step) * step, first + size, step)


def _lines(axes: "Axes", case: Case, cut: Slice) -> list:
    (height, width), (top, left) = cut.over_budget.shape, cut.corner
    tile: dict[str, Any] = {"colors": FAINT, "linewidths": 0.6, "alpha": 0.5, "label": "tile bounds"}
    split: dict[str, Any] = {"colors": INK, "linewidths": 1.8, "label": "split bounds"}
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
    if worst is None:
        return []
    ring: dict[str, Any] = {"marker": "o", "ls": "", "mfc": "none", "clip_on": False, "zorder": 5}
    axes.plot(worst[1], worst[0], **ring, mec="white", mew=3.6, ms=13)
    return axes.plot(worst[1], worst[0], **ring, mec=INK, mew=1.5, ms=13, label="worst element")
