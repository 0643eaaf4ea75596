"""How many bits the sums of a run lose to cancellation: a small histogram for each stage that is a sum."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.judge.cancellation import GOOD_BITS, PRECISION, ill_conditioned
from workbench.report.pictures import style as look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: inches: the figure, a stage's row and the histogram in it, above the rows, below them
WIDTH, ROW, PANEL, TOP, BOTTOM = 7.6, 1.08, 0.8, 0.85, 0.5
BITS = int(PRECISION)  #: where the axis ends
LIMIT = BITS - GOOD_BITS  #: bits lost beyond which a sum is ill-conditioned
#: edges of all bars: one a bit, a gap, and what lost more than there are, inf among it
EDGES = np.array([*range(BITS + 1), BITS + 1, BITS + 3])


def cancellation(bits_lost: Mapping[str, np.ndarray], run: str = "") -> "Figure":
    """Counts of the bits lost by each element of each stage of `bits_lost`, with a line where fewer than GOOD_BITS are
    left of float32's. Elements whose terms are NaN or infinite are in no bar. `run`: what was run, in words.
    """
    height = TOP + ROW * max(len(bits_lost), 1) + BOTTOM
    figure = look.page(WIDTH, height)
    few = sum(int(ill_conditioned(bits).sum()) for bits in bits_lost.values())
    look.headline(
        figure,
        f"cancellation: {f'{few:,}' if few else 'no'} ill-conditioned element{'' if few == 1 else 's'}",
        "bits lost = log2(sum|t| / |sum t|) over the terms t of each element, of float32's 24\n"
        f"ill-conditioned: fewer than {GOOD_BITS} good bits left, neither a bug nor rounding",
    )
    for row, (name, bits) in enumerate(bits_lost.items()):
        bottom = (BOTTOM + ROW * (len(bits_lost) - 1 - row)) / height
        axes = figure.add_axes((0.09, bottom, 0.885, PANEL / height))
        _stage(axes, name, bits)
        if row == 0:
            note: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "fontsize": look.SMALL, "color": look.INK}
            axes.text(LIMIT + 0.2, 0.97, f"fewer than {GOOD_BITS} good bits", va="top", **note)
    if bits_lost:
        names = {float(bit): str(bit) for bit in range(0, BITS + 1, 4)} | {float(EDGES[-2:].mean()): f">{BITS}"}
        look.name_axis(axes, names, "bits lost")
    return look.signed(figure, run)


def counts(bits: np.ndarray) -> np.ndarray:
    """How many elements lie between each two EDGES, nan in the gap. A bin holds its upper edge, the first also 0."""
    known = bits[~np.isnan(bits)]
    where = np.where(known > BITS, EDGES[-2:].mean(), np.maximum(np.ceil(known), 1) - 0.5)
    found = np.histogram(where, EDGES)[0].astype(float)
    found[-2] = np.nan
    return found


def in_words(bits: np.ndarray) -> str:
    """Median, maximum and how many are ill-conditioned."""
    known = bits[~np.isnan(bits)]
    if not known.size:
        return "no finite sum"
    few = int(ill_conditioned(bits).sum())
    return f"median {np.median(known):.1f}, max {known.max():.1f}; {few:,} of {bits.size:,} ill-conditioned"


def _stage(axes: "Axes", name: str, bits: np.ndarray) -> None:
    bars = counts(bits)
    look.bare(axes)
    look.count_axis(axes, np.nanmax(bars))
    ill = EDGES[1:] > LIMIT
    axes.stairs(np.where(ill, np.nan, bars), EDGES, fill=True, color=look.CALM, zorder=2)
    axes.stairs(np.where(ill, bars, np.nan), EDGES, fill=True, color=look.WARM, zorder=2)
    axes.axvline(LIMIT, color=look.INK, lw=1.4, zorder=4)
    axes.set(xticks=[], xlim=(-0.3, EDGES[-1] + 0.3))
    style: dict[str, Any] = {"fontsize": look.LABEL, "transform": axes.transAxes, "va": "bottom"}
    axes.text(0, 1.03, name, color=look.INK, fontweight="bold", **style)
    axes.text(1, 1.03, in_words(bits), color=look.FAINT, ha="right", **style)
