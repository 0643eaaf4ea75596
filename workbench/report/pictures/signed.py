"""To which side the errors of a stage lie: signed histograms in ulps and in units of budget."""

from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.expectation.elements import Comparison, State
from workbench.judge.stage import StageDiff
from workbench.report.numbers import number
from workbench.report.pictures import style as look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: of what stands above a histogram
BOLD: dict[str, Any] = {"va": "bottom", "fontsize": look.LABEL, "fontweight": "bold", "color": look.INK}
WIDTH, HEIGHT, PANEL = 7.6, 6.5, 1.98  #: inches: the figure, and the height of one histogram in it
LOW, HIGH = -8, 24  #: octaves of the ulp axis on either side; smaller errors count into its first bins
_ONE = 2 - LOW  #: where 1 ulp lies on the axis, in octaves from its middle: a bar for exactly 0, then a gap
_SIDE = np.array([1, *range(_ONE + LOW, _ONE + HIGH + 1), _ONE + HIGH + 1, _ONE + HIGH + 3])
#: edges of all bars of the ulp axis: beyond it, negative errors, exactly 0, positive errors, beyond it
EDGES = np.concatenate([-_SIDE[::-1], _SIDE])
GAPS = np.flatnonzero(np.isin(np.abs(EDGES[:-1] + EDGES[1:]), [1 + _SIDE[1], _SIDE[-3] + _SIDE[-2]]))
BINS = 40  #: between the ends of the axis in units of budget


def errors(stage: StageDiff) -> "Figure":
    """Counts of the signed errors of the comparison that tables show. Above in ulps of the stored dtype, log-log,
    symmetric about a bar for exactly 0; red where outside the budget. Below in units of budget, linear, with their
    mean.

    Below, the axis ends beyond all but one in 200 errors, which have bars of their own, and errors of exactly 0 are in
    none. Elements are told apart by the sign of the expectation: rounding toward zero takes positive ones down and
    negative ones up. Errors that are no numbers (NaN, wrong class, unwritten) and elements that were not judged are in
    no bar. Refuses a stage without a comparison.
    """
    comparison = look.shown(stage)
    known = comparison.judged & np.isfinite(comparison.error)
    figure = look.page(WIDTH, HEIGHT)
    look.headline(
        figure,
        look.title(stage),
        f"{look.numbers_line(comparison)}\n{_bit_match(comparison)}\n{look.worst_line(stage)}",
    )
    above, below = (figure.add_axes((0.09, bottom / HEIGHT, 0.885, PANEL / HEIGHT)) for bottom in (3.22, 0.5))
    _in_ulps(above, comparison, known)
    _in_budgets(below, comparison, known, f"{look.kind(stage)} error / budget")
    handles, names = below.get_legend_handles_labels()
    if len(names) > 1:
        style: dict[str, Any] = {"frameon": False, "borderaxespad": 0, "fontsize": look.LABEL, "labelcolor": look.INK}
        corner = (0.975, 1 - 0.18 / HEIGHT)
        figure.legend(handles, names, loc="upper right", bbox_to_anchor=corner, ncols=2, borderpad=0, **style)
    return look.signed(figure, stage.run)


def ulp_counts(error_ulp: np.ndarray) -> np.ndarray:
    """How many signed errors lie between each two EDGES, nan in gaps. A bin holds the end that is farther from 0."""
    fraction, octave = np.frexp(np.abs(error_ulp))  # of a power of two the fraction is 0.5
    octave = np.maximum(octave - (fraction == 0.5), LOW + 1)
    size = np.where(octave > HIGH, _ONE + HIGH + 2, _ONE + octave - 0.5)
    found = np.histogram(np.where(error_ulp == 0, 0, np.sign(error_ulp) * size), EDGES)[0].astype(float)
    found[GAPS] = np.nan
    return found


def signed_counts(signed: np.ndarray, top: float) -> tuple[np.ndarray, np.ndarray]:
    """Edges of the bars from -top to top, with one beyond on either side, and how many errors lie in each: those of
    exactly 0 in none, nan in gaps.
    """
    width = 2 * top / BINS
    ends = top + width * np.array([1, 2.5])
    axis = np.linspace(-top, top, BINS + 1)
    inner = np.histogram(signed[signed != 0], axis)[0]
    found = [np.count_nonzero(signed < -top), np.nan, *inner, np.nan, np.count_nonzero(signed > top)]
    return np.array([*-ends[::-1], *axis, *ends]), np.array(found)


def reach(signed: np.ndarray) -> float:
    """Where a linear axis ends: at 1, 2 or 5 times a power of ten, beyond all but one in 200 of the errors but 0."""
    sizes = np.abs(signed[signed != 0])
    if not sizes.size:
        return 1.0
    wanted = float(np.quantile(sizes, 0.995))
    decade = 10.0 ** np.floor(np.log10(wanted))
    return next(step * decade for step in (1.0, 2.0, 5.0, 10.0) if step * decade >= wanted)


def _bit_match(comparison: Comparison) -> str:
    exact, size = comparison.summary.count(State.EXACT), comparison.summary.size
    line = f"{exact:,} of {size:,} ({exact / size:.1%}) correctly rounded to the last bit"
    unnumbered = comparison.summary.count(State.NAN, State.UNWRITTEN)
    return f"{line}; {unnumbered:,} NaN, wrong class or unwritten" if unnumbered else line


def _in_ulps(axes: "Axes", comparison: Comparison, known: np.ndarray) -> None:
    error, outside = comparison.error_ulp[known], comparison.outside[known]
    bars = ulp_counts(error)
    look.bare(axes)
    look.count_axis(axes, np.nanmax(bars))
    axes.stairs(bars, EDGES, fill=True, color=look.CALM, zorder=2)
    if outside.any():
        axes.stairs(ulp_counts(error[outside]), EDGES, fill=True, color=look.HOT, zorder=2)
    octaves = range(0, HIGH, 8)
    names = {float(sign * (_ONE + octave)): _power_of_2(sign, octave) for octave in octaves for sign in (-1, 1)}
    beyond = _ONE + HIGH + 2
    names |= {0: "0", -beyond: f"<{_power_of_2(-1, HIGH)}", beyond: f">{_power_of_2(1, HIGH)}"}
    look.name_axis(axes, names, f"error in ulps of {comparison.actual.dtype}")
    axes.set_xlim(EDGES[0] - 1, EDGES[-1] + 1)
    for half in (1 - _ONE, _ONE - 1):
        axes.axvline(half, color=look.INK, lw=1, ls=(0, (3, 2)), zorder=4)
    style: dict[str, Any] = {
        "ha": "center",
        "va": "bottom",
        "fontsize": look.LABEL,
        "fontweight": "bold",
        "color": look.INK,
    }
    axes.text(0, 1.015, "half an ulp", transform=axes.get_xaxis_transform(), **style)


def _power_of_2(sign: int, octave: int) -> str:
    """sign * 2 ** octave in few characters: 1, -256, 64k."""
    return f"{sign * 2 ** (octave % 10)}{('', 'k', 'M')[octave // 10]}"


def _in_budgets(axes: "Axes", comparison: Comparison, known: np.ndarray, label: str) -> None:
    largest = np.finfo(np.float32).max  # a ratio beyond it is stored as inf
    over = np.minimum(comparison.over_budget[known].astype(np.float64), largest)
    signed = np.copysign(over, comparison.error[known])
    top = reach(signed)
    above = comparison.expected[known] >= 0
    edges, bars = signed_counts(signed, top)
    look.bare(axes)
    end = edges[-1] + top / BINS
    axes.set(xlim=(-end, end))
    look.linear_count_axis(axes, np.nanmax(bars))
    if not above.all():
        axes.stairs(bars, edges, fill=True, color=look.PALE, zorder=2, label="expected below 0")
    upper = signed_counts(signed[above], top)[1]
    axes.stairs(upper, edges, fill=True, color=look.CALM, zorder=2, label="expected 0 or above")
    look.name_axis(axes, {top * share: number(top * share) for share in (-1, -0.5, 0, 0.5, 1)}, label)
    for sign in (-1, 1):
        axes.axvspan(sign, sign * max(end, 1), color=look.HOT_WASH, lw=0, zorder=0)
    axes.axvline(0, color=look.RULE, lw=1, zorder=1)
    below, zero = np.count_nonzero(signed < 0), np.count_nonzero(signed == 0)
    counts = (f"{below:,} negative", f"{zero:,} exactly 0", f"{signed.size - below - zero:,} positive")
    for place, text, side in zip((0.0, 0.5, 1.0), counts, ("left", "center", "right"), strict=True):
        style: dict[str, Any] = {
            "ha": side,
            "va": "bottom",
            "color": look.INK,
            "fontsize": look.LABEL,
            "fontweight": "bold",
        }
        axes.text(place, 1.015, text, transform=axes.transAxes, **style)
    if np.nansum(bars):
        _mark_mean(axes, float(signed.mean()), end)
    else:
        words = "every error is 0" if signed.size else "nothing was judged"
        axes.text(0.5, 0.5, words, transform=axes.transAxes, ha="center", color=look.FAINT, fontsize=look.TITLE)


def _mark_mean(axes: "Axes", mean: float, end: float) -> None:
    x = np.clip(mean, -end, end)
    axes.axvline(x, color=look.INK, lw=1.4, zorder=4)
    style: dict[str, Any] = {"fontsize": look.SMALL, "color": look.INK, "va": "top", "textcoords": "offset points"}
    side, offset = ("right", -4) if x > 0 else ("left", 4)
    axes.annotate(
        f"mean {number(mean)}", (x, 0.985), (offset, 0), ha=side, xycoords=axes.get_xaxis_transform(), **style
    )
