"""Which heads are wrong: a strip with the worst element of each head of each batch."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.judge.stage import StageDiff
from workbench.report.pictures import style as look
from workbench.report.pictures.shades import OVER, colours, reduced, shade
from workbench.report.pictures.style import FAINT, INK, LABEL

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARGIN, ROW, ROWS = 0.5, 0.2, 8  #: inches below the strip and of a batch in it; rows that it has room for
LISTED = 8  #: heads that are listed by number


def height(stage: StageDiff, fixed: Mapping[str, int]) -> float:
    """Inches that the strip takes; 0 where `fixed`, the axes that a map does not show, have no head but one."""
    n = _sizes(stage)
    return MARGIN + ROW * min(n.get("b", 1), ROWS) if "h" in fixed and n["h"] > 1 else 0.0


def worst_shades(stage: StageDiff) -> np.ndarray:
    """The most important shade of each batch and head of a stage with heads, [batches, heads]."""
    comparison, n = look.shown(stage), _sizes(stage)
    order = [stage.axes.index(axis) for axis in "bh" if axis in stage.axes]
    over, state = (np.moveaxis(x, order, range(len(order))) for x in (comparison.over_budget, comparison.state))
    shape = (n.get("b", 1), n["h"])
    over, state = (x.reshape(*shape, -1) for x in (over, state))
    return np.array([shade(over[i], state[i]).max() for i in np.ndindex(shape)]).reshape(shape)


def strip(figure: "Figure", stage: StageDiff, fixed: Mapping[str, int], *, left: float, width: float) -> None:
    """Draw the strip at the lower edge of a figure, at `left`, so many inches wide, with a mark at the head `fixed`."""
    worst = worst_shades(stage)
    shades, steps = reduced(worst)
    inches = figure.get_size_inches()
    tall = ROW * min(len(worst), ROWS)
    axes = figure.add_axes((left / inches[0], (MARGIN - 0.05) / inches[1], width / inches[0], tall / inches[1]))
    first = stage.first.get("b", 0), stage.first.get("h", 0)
    ends = [start - 0.5 + n * step for start, n, step in zip(first, shades.shape, steps, strict=True)]
    look.bare(axes)
    extent = (first[1] - 0.5, ends[1], ends[0], first[0] - 0.5)
    axes.imshow(colours(shades), extent=extent, aspect="auto", interpolation="nearest")
    lines: dict[str, Any] = {"color": "white", "lw": 1.0}
    for h in range(1, worst.shape[1]) if worst.shape[1] <= 64 else ():
        axes.axvline(first[1] + h - 0.5, **lines)
    look.ring(axes, fixed["h"], fixed.get("b", 0), size=8)
    axes.set(
        xticks=look.ticks(first[1], worst.shape[1]), yticks=look.ticks(first[0], len(worst)) if len(worst) > 1 else []
    )
    axes.set_xlabel(in_words(worst, first[1]), fontsize=LABEL, color=INK)
    axes.set_ylabel("batch" if len(worst) > 1 else "", fontsize=LABEL, color=INK)
    axes.spines[:].set(visible=True, color=FAINT, linewidth=0.8)


def in_words(worst: np.ndarray, first: int = 0) -> str:
    """How many heads have elements outside their budget, and which where they are few."""
    outside = np.flatnonzero((worst >= OVER).any(axis=0))
    if not outside.size:
        return f"worst of each head, none of {worst.shape[1]} over budget"
    if len(outside) == worst.shape[1]:
        return f"worst of each head, all {len(outside)} over budget"
    listed = f": {', '.join(str(h + first) for h in outside)}" if len(outside) <= LISTED else ""
    return f"worst of each head, {len(outside)} of {worst.shape[1]} over budget{listed}"


def _sizes(stage: StageDiff) -> dict[str, int]:
    return dict(zip(stage.axes, look.shown(stage).state.shape, strict=True))
