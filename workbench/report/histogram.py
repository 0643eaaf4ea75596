"""How large the errors of a stage are: a histogram in units of budget; also the axis and look that pictures share."""

from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.comparison import Comparison, State
from workbench.refusal import Refusal
from workbench.stage_diff import StageDiff
from workbench.trace import to_float64

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 110
TITLE, LABEL, SMALL = 13, 9.5, 8.5  #: font sizes, in points

INK, FAINT, RULE = "#1f2328", "#6a737d", "#d0d7de"
CALM, HOT, VICTIM = "#2b7bba", "#c4281c", "#e08a00"  #: within budget, outside it, outside only end to end
HOT_WASH = "#fdf1ec"

LOW, HIGH = -4, 8  #: decades of the budget axis; smaller errors count into its first bin
BINS_PER_DECADE = 4
SLOT = 0.7  #: width, in decades, of the bars beside the axis (exactly 0, beyond the axis, inf) and of the gaps between

_AXIS = np.arange(LOW * BINS_PER_DECADE, HIGH * BINS_PER_DECADE + 1) / BINS_PER_DECADE
#: edges of all bars, in decades: 0, the axis, beyond it, inf; what lies between is a gap
EDGES = np.concatenate([[LOW - 2 * SLOT, LOW - SLOT], _AXIS, HIGH + SLOT * np.arange(1, 5)])


def histogram(stage: StageDiff) -> "Figure":
    """Counts of |error| / budget, log-log: the decisive comparison filled, the propagated one beside it as an outline.

    Errors of exactly 0, beyond the axis and inf (NaN, wrong class, unwritten, or an error where none is allowed) have
    bars of their own. Elements that were not judged are in no bar. Refuses a stage without a comparison.
    """
    comparison = decisive(stage)
    bars = counts(comparison.over_budget)
    outline = None if stage.isolated is None or stage.propagated is None else counts(stage.propagated.over_budget)
    figure = page(7.6, 4.6)
    headline(figure, f"{stage.name}: {stage.verdict}", f"{_numbers(comparison)}\n{worst_line(stage)}")
    axes = figure.add_axes((0.09, 0.115, 0.885, 0.635))
    budget_axis(axes, f"{kind(stage)} |error| / budget")
    _count_axis(axes, max(np.nanmax(bars), 1 if outline is None else np.nanmax(outline)))
    _bars(axes, bars, outline)
    _strip(axes, comparison)
    worst = worst_element(comparison)
    if worst is None:
        axes.text(0.5, 0.5, "nothing was judged", transform=axes.transAxes, ha="center", color=FAINT, fontsize=TITLE)
    else:
        drawn = bars if outline is None else np.fmax(bars, outline)
        _mark_worst(axes, float(comparison.over_budget.flat[worst]), bars, drawn)
    return figure


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


def decisive(stage: StageDiff) -> Comparison:
    """The comparison that the verdict rests on; refuses a stage that has none."""
    if stage.decisive is None:
        raise Refusal(f"{stage.name} cannot be drawn: {stage.verdict}{f' ({stage.reason})' if stage.reason else ''}")
    return stage.decisive


def worst_element(comparison: Comparison) -> int | None:
    """Flat index of the largest |error| / budget, the first of equals; None where nothing was judged."""
    if not comparison.judged.any():
        return None
    return int(np.nanargmax(comparison.over_budget))


def indices(stage: StageDiff, flat: int) -> dict[str, int]:
    """Axis letter -> index of the element at position `flat` in C order."""
    place = np.unravel_index(flat, decisive(stage).state.shape)
    return {axis: int(i) for axis, i in zip(stage.axes, place, strict=True)}


def kind(stage: StageDiff) -> str:
    """Which comparison is the decisive one: isolated or propagated."""
    return "isolated" if stage.isolated is not None else "propagated"


def worst_line(stage: StageDiff) -> str:
    """The worst element of the decisive comparison in one line: its place, actual, expected, x of budget."""
    comparison = decisive(stage)
    flat = worst_element(comparison)
    if flat is None:
        return "nothing was judged"
    place = " ".join(f"{axis}={i}" for axis, i in indices(stage, flat).items())
    actual, expected = float(to_float64(comparison.actual).flat[flat]), float(comparison.expected.flat[flat])
    ratio = times(float(comparison.over_budget.flat[flat]))
    return f"worst at {place}: actual {actual:.7g}, expected {expected:.7g}, {ratio} x budget"


def times(over_budget: float) -> str:
    """A ratio in few characters: 0, 0.25, 3.1e5, inf; with all its digits close to 1, where they decide."""
    if over_budget == 0 or np.isinf(over_budget) or 1e-2 <= over_budget < 1e3:
        return f"{over_budget:.{9 if abs(over_budget - 1) < 1e-2 else 3}g}"
    digits, exponent = f"{over_budget:.1e}".split("e")
    return f"{digits}e{int(exponent)}"


def page(width: float, height: float) -> "Figure":
    """An empty figure of so many inches, which Jupyter shows as a picture."""
    from matplotlib.figure import Figure

    class Page(Figure):
        def _repr_png_(self) -> bytes:
            """For Jupyter, which knows how to show a Figure only once pyplot is imported."""
            picture = BytesIO()
            self.savefig(picture, format="png")
            return picture.getvalue()

    return Page(figsize=(width, height), dpi=DPI, facecolor="white")


def headline(figure: "Figure", title: str, subtitle: str) -> None:
    """Write the title and the line below it at the top left, at the same distance from the edges of every figure."""
    width, height = figure.get_size_inches()
    figure.text(0.2 / width, 1 - 0.17 / height, title, fontsize=TITLE, fontweight="bold", color=INK, va="top")
    figure.text(0.2 / width, 1 - 0.45 / height, subtitle, fontsize=LABEL, color=FAINT, va="top", linespacing=1.4)


def bare(axes: "Axes") -> None:
    """Take frame and tick marks off; tick labels small, in ink."""
    axes.tick_params(length=0, labelsize=SMALL, labelcolor=INK)
    axes.spines[:].set_visible(False)


def budget_axis(axes: "Axes", label: str) -> None:
    """Make x the budget axis: its bars beside it, a line at 1.0, and the side outside the budget tinted."""
    bare(axes)
    names = {float(decade): power(decade) for decade in range(LOW, HIGH, 2)}
    names |= {LOW: f"\u2264{power(LOW)}", position(0): "0", position(np.inf): "inf"}
    names[position(10.0 ** (HIGH + 1))] = f">{power(HIGH)}"
    below: dict[str, Any] = {"xycoords": axes.get_xaxis_transform(), "textcoords": "offset points", "ha": "center"}
    for x, name in names.items():  # as ticks they would take three times as long
        axes.annotate(name, (x, 0), (0, -13), **below, fontsize=SMALL, color=INK)
    axes.set(xticks=[], xlim=(EDGES[0] - SLOT, EDGES[-1] + SLOT))
    axes.set_xlabel(label, fontsize=LABEL, color=INK, labelpad=18)
    axes.axvspan(0, EDGES[-1] + SLOT, color=HOT_WASH, lw=0, zorder=0)
    axes.axvline(0, color=INK, lw=1.4, zorder=4)


def power(decade: int) -> str:
    """10 ** decade in few characters: 1e-3, 1, 1e6."""
    return "1" if decade == 0 else f"1e{decade}"


def _bars(axes: "Axes", bars: np.ndarray, outline: np.ndarray | None) -> None:
    within = EDGES[1:] <= 0
    axes.stairs(np.where(within, bars, np.nan), EDGES, fill=True, color=CALM, zorder=2, label="isolated")
    axes.stairs(np.where(within, np.nan, bars), EDGES, fill=True, color=HOT, zorder=2)
    if outline is not None:
        axes.stairs(outline, EDGES, color=INK, lw=1.2, zorder=3, label="propagated")
        style: dict[str, Any] = {"frameon": False, "borderaxespad": 0, "fontsize": LABEL, "labelcolor": INK}
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, **style)


def _count_axis(axes: "Axes", largest: float) -> None:
    top = np.log10(max(largest, 10))
    axes.set_ylim(0.6, 10 ** (1.22 * top))  # the room above the bars is for the mark of the worst element
    axes.set_yscale("log")
    names = "1 10 100 1k 10k 100k 1M 10M 100M 1G 10G".split()[: int(top) + 1]
    axes.set_yticks([10**n for n in range(len(names))], names)
    axes.set_yticks([], minor=True)
    style: dict[str, Any] = {"rotation": 90, "ha": "center", "va": "center", "fontsize": LABEL, "color": INK}
    axes.text(-0.075, 0.5, "elements", transform=axes.transAxes, **style)
    axes.grid(axis="y", color=RULE, lw=0.6)
    axes.set_axisbelow(True)


def _numbers(comparison: Comparison) -> str:
    judged, poisoned = np.count_nonzero(comparison.judged), np.count_nonzero(comparison.state == State.POISONED)
    unjudged = comparison.state.size - judged - poisoned
    outside = f"{np.count_nonzero(comparison.outside):,} outside"
    size = comparison.state.size
    text = f"{size:,} element{'s' if size > 1 else ''}, {outside}, {poisoned:,} poisoned"
    return f"{text}, {unjudged:,} not judged" if unjudged else text


def _strip(axes: "Axes", comparison: Comparison) -> None:
    outside = np.count_nonzero(comparison.outside)
    within = np.count_nonzero(comparison.judged) - outside
    for x, text, side, colour in (
        (0, "budget", "center", INK),
        (-0.95, f"{within:,} within", "right", CALM),
        (0.95, f"{outside:,} outside", "left", HOT),
    ):
        style: dict[str, Any] = {"ha": side, "va": "bottom", "color": colour, "fontsize": LABEL, "fontweight": "bold"}
        axes.text(x, 1.015, text, transform=axes.get_xaxis_transform(), **style)


def _mark_worst(axes: "Axes", ratio: float, bars: np.ndarray, drawn: np.ndarray) -> None:
    x = position(ratio)
    height = bars[counts(np.array([ratio])) == 1][0]
    clear = np.nanmax(drawn[(EDGES[1:] > x - 1.2) & (EDGES[:-1] < x + 1.2)])  # the text lies above what is near
    side, anchor = ("center", 0.5) if abs(x) > 0.8 else ("right", 1) if x <= 0 else ("left", 0)  # and beside the line
    arrow = {"arrowstyle": "-|>", "color": INK, "lw": 0.9, "shrinkA": 0, "shrinkB": 1, "relpos": (anchor, 0)}
    style: dict[str, Any] = {"ha": side, "va": "bottom", "fontsize": SMALL, "color": INK, "zorder": 5}
    text_at = (x, clear * axes.get_ylim()[1] ** 0.07)
    axes.annotate(f"worst {times(ratio)}", (x, height), text_at, arrowprops=arrow, **style)
