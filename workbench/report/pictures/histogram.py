"""How large the errors of a stage are: a histogram in units of budget, and the axis that the overview shares."""

from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.expectation.elements import Comparison, State
from workbench.judge.stage import StageDiff
from workbench.report.numbers import ratio
from workbench.report.pictures import style as look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOW, HIGH = -4, 8  #: decades of the budget axis; smaller errors count into its first bin
BINS_PER_DECADE = 4
SLOT = 0.7  #: width, in decades, of the bars beside the axis (exactly 0, beyond the axis, inf) and of the gaps between

_AXIS = np.arange(LOW * BINS_PER_DECADE, HIGH * BINS_PER_DECADE + 1) / BINS_PER_DECADE
#: edges of all bars, in decades: 0, the axis, beyond it, inf; what lies between is a gap
EDGES = np.concatenate([[LOW - 2 * SLOT, LOW - SLOT], _AXIS, HIGH + SLOT * np.arange(1, 5)])


def histogram(stage: StageDiff) -> "Figure":
    """Counts of |error| / budget, log-log: the comparison that tables show filled, the other one as an outline; of a
    victim the propagated one is filled.

    Errors of exactly 0, beyond the axis and inf (NaN, wrong class, unwritten, or an error where none is allowed) have
    bars of their own. Elements that were not judged are in no bar. Refuses a stage without a comparison.

    The tick `statistical` is the median of the elements' statistical budgets, each in units of the element's budget;
    independent roundings take any error of a stage beyond its own in one run of a million. Suspicious elements, within
    their budget but beyond the statistical one, are counted once more in bars of another colour.
    """
    comparison = look.shown(stage)
    bars = counts(comparison.over_budget)
    suspicious = counts(comparison.over_budget[comparison.state == State.SUSPICIOUS])
    other = stage.propagated if comparison is stage.isolated else stage.isolated
    outline = None if other is None else counts(other.over_budget)
    figure = look.page(7.6, 4.6)
    look.headline(figure, look.title(stage), f"{look.numbers_line(comparison)}\n{look.worst_line(stage)}")
    axes = figure.add_axes((0.09, 0.115, 0.885, 0.635))
    budget_axis(axes, f"{look.kind(stage)} |error| / budget")
    look.count_axis(axes, max(np.nanmax(bars), 1 if outline is None else np.nanmax(outline)))
    _bars(axes, bars, suspicious, outline, look.kind(stage))
    _strip(axes, comparison)
    _mark_statistical(axes, comparison)
    worst = look.worst_element(comparison)
    if worst is None:
        axes.text(
            0.5, 0.5, "nothing was judged", transform=axes.transAxes, ha="center", color=look.FAINT, fontsize=look.TITLE
        )
    else:
        drawn = bars if outline is None else np.fmax(bars, outline)
        _mark_worst(axes, float(comparison.over_budget.flat[worst]), bars, drawn)
    return look.signed(figure, stage.run)


def counts(over_budget: np.ndarray) -> np.ndarray:
    """How many elements lie between each two EDGES, nan in gaps. A bin holds its upper edge: 1.0 is within budget."""
    ratios = over_budget[~np.isnan(over_budget)]
    bins = np.searchsorted(10.0**_AXIS, ratios[(ratios > 0) & (ratios <= 10.0**HIGH)]) - 1
    axis = np.bincount(np.maximum(bins, 0), minlength=len(_AXIS) - 1)
    infinite = np.count_nonzero(np.isinf(ratios))
    beyond = np.count_nonzero(ratios > 10.0**HIGH) - infinite
    return np.array([np.count_nonzero(ratios == 0), np.nan, *axis, np.nan, beyond, np.nan, infinite])


def position(over_budget: float) -> float:
    """Where a ratio lies on the budget axis, in decades; 0, beyond the axis and inf lie in the middle of their bars."""
    if over_budget == 0:
        return float(EDGES[:2].mean())
    if over_budget <= 10.0**HIGH:
        return max(float(np.log10(over_budget)), float(LOW))
    return float(EDGES[-2:].mean() if np.isinf(over_budget) else EDGES[-4:-2].mean())


def budget_axis(axes: "Axes", label: str) -> None:
    """Make x the budget axis: its bars beside it, a line at 1.0, and the side outside the budget tinted."""
    look.bare(axes)
    names = {float(decade): look.power(decade) for decade in range(LOW, HIGH, 2)}
    names |= {LOW: f"\u2264{look.power(LOW)}", position(0): "0", position(np.inf): "inf"}
    names[position(10.0 ** (HIGH + 1))] = f">{look.power(HIGH)}"
    look.name_axis(axes, names, label)
    axes.set_xlim(EDGES[0] - SLOT, EDGES[-1] + SLOT)
    axes.axvspan(0, EDGES[-1] + SLOT, color=look.HOT_WASH, lw=0, zorder=0)
    axes.axvline(0, color=look.INK, lw=1.4, zorder=4)


def _bars(axes: "Axes", bars: np.ndarray, suspicious: np.ndarray, outline: np.ndarray | None, kind: str) -> None:
    """The bars of a comparison, isolated or propagated as `kind` says, and the outline of the other one."""
    within = EDGES[1:] <= 0
    axes.stairs(np.where(within, bars, np.nan), EDGES, fill=True, color=look.CALM, zorder=2, label=kind)
    if np.nansum(suspicious):
        # before the others, not on top of them: on a logarithmic axis a few on top of many would not be seen
        axes.stairs(suspicious, EDGES, fill=True, color=look.WARM, zorder=2, label="suspicious")
    axes.stairs(np.where(within, np.nan, bars), EDGES, fill=True, color=look.HOT, zorder=2)
    if outline is not None:
        axes.stairs(
            outline, EDGES, color=look.INK, lw=1.2, zorder=3, label="propagated" if kind == "isolated" else "isolated"
        )
    if len(axes.get_legend_handles_labels()[1]) > 1:
        style: dict[str, Any] = {"frameon": False, "borderaxespad": 0, "fontsize": look.LABEL, "labelcolor": look.INK}
        axes.legend(loc="upper right", bbox_to_anchor=(1, 1.35), ncols=3, **style)


def _strip(axes: "Axes", comparison: Comparison) -> None:
    outside = np.count_nonzero(comparison.outside)
    within = np.count_nonzero(comparison.judged) - outside
    for x, text, side, colour in (
        (0, "budget", "center", look.INK),
        (-0.95, f"{within:,} within", "right", look.CALM),
        (0.95, f"{outside:,} over budget", "left", look.HOT),
    ):
        style: dict[str, Any] = {
            "ha": side,
            "va": "bottom",
            "color": colour,
            "fontsize": look.LABEL,
            "fontweight": "bold",
        }
        axes.text(x, 1.015, text, transform=axes.get_xaxis_transform(), **style)


def _mark_statistical(axes: "Axes", comparison: Comparison) -> None:
    """A dashed line at the median statistical budget; none where it is the budget itself, or nothing was judged."""
    shares = comparison.statistical[comparison.judged & np.isfinite(comparison.expected)]
    if not shares.size or (median := float(np.median(shares))) >= 1:
        return
    x = position(median)
    axes.plot((x, x), (0, 1), color=look.INK, lw=1, ls=(0, (3, 2)), zorder=4, transform=axes.get_xaxis_transform())
    style: dict[str, Any] = {"ha": "right", "va": "top", "fontsize": look.SMALL, "color": look.INK}
    axes.text(x - 0.12, 0.985, f"statistical {ratio(median)}", transform=axes.get_xaxis_transform(), **style)


def _mark_worst(axes: "Axes", over_budget: float, bars: np.ndarray, drawn: np.ndarray) -> None:
    x = position(over_budget)
    height = bars[counts(np.array([over_budget])) == 1][0]
    clear = np.nanmax(drawn[(EDGES[1:] > x - 1.2) & (EDGES[:-1] < x + 1.2)])  # the text lies above what is near
    side, anchor = ("center", 0.5) if abs(x) > 0.8 else ("right", 1) if x <= 0 else ("left", 0)  # and beside the line
    arrow = {"arrowstyle": "-|>", "color": look.INK, "lw": 0.9, "shrinkA": 0, "shrinkB": 1, "relpos": (anchor, 0)}
    style: dict[str, Any] = {"ha": side, "va": "bottom", "fontsize": look.SMALL, "color": look.INK, "zorder": 5}
    if x <= 0:  # the dashed line at the statistical budget may pass behind the text
        style["bbox"] = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
    beside = x if side == "center" else min(x, -0.12) if x <= 0 else max(x, 0.12)
    text_at = (beside, clear * axes.get_ylim()[1] ** 0.07)
    axes.annotate(f"worst {ratio(over_budget)}", (x, height), text_at, arrowprops=arrow, **style)
