"""What all pictures share: colours, sizes, an empty page, its headline, and the words for a stage's worst element."""

import textwrap
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.expectation.elements import Comparison, State
from workbench.extras import needed
from workbench.floats import to_float64
from workbench.judge.stage import StageDiff
from workbench.refusal import Refusal
from workbench.report.numbers import ratio, value

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 110
TITLE, LABEL, SMALL, TINY = 13, 9.5, 8.5, 7.5  #: font sizes, in points
CHARACTERS = 16.5  #: of the smallest size that fit into an inch

INK, FAINT, RULE = "#1f2328", "#6a737d", "#d0d7de"
CALM, HOT, VICTIM = "#2b7bba", "#c4281c", "#e08a00"  #: within budget, outside it, outside only end to end
PALE = "#a9cfe9"  #: the other half of what is within budget
WARM = "#f2b134"  #: within budget, but suspicious
HOT_WASH = "#fdf1ec"


def shown(stage: StageDiff) -> Comparison:
    """The comparison that is drawn, as tables show it: of a victim the propagated one, else that on which the verdict
    rests; refuses a stage that has none.
    """
    if stage.reported is None:
        raise Refusal(f"{stage.name} cannot be drawn: {stage.verdict}{f' ({stage.reason})' if stage.reason else ''}")
    return stage.reported


def title(stage: StageDiff) -> str:
    """A stage and what it is, in a few words."""
    victim = f"victim ({stage.verdict} given its inputs)" if not stage.behind else "victim, or wrong by itself too"
    return f"{stage.name}: {victim if stage.role == 'victim' else stage.verdict}"


def worst_element(comparison: Comparison) -> int | None:
    """Flat index of the largest |error| / budget, the first of equals; None where nothing was judged."""
    if not comparison.judged.any():
        return None
    return int(np.nanargmax(comparison.over_budget))


def indices(stage: StageDiff, flat: int) -> dict[str, int]:
    """Axis letter -> index in the run of the element at position `flat` in C order."""
    place = np.unravel_index(flat, shown(stage).state.shape)
    return {axis: int(i) + stage.first.get(axis, 0) for axis, i in zip(stage.axes, place, strict=True)}


def at(index: Mapping[str, int]) -> str:
    """An index in words: q=3 k=5; of axes without names as NumPy takes it: [3, 5]."""
    if all(axis.isdigit() for axis in index):
        return f"[{', '.join(map(str, index.values()))}]"
    return " ".join(f"{axis}={i}" for axis, i in index.items())


def positions(stage: StageDiff, index: Mapping[str, int]) -> dict[str, int]:
    """Axis letter -> where an index in the run is in the stage's arrays, which may be of a part of it."""
    return {axis: i - stage.first.get(axis, 0) for axis, i in index.items()}


def kind(stage: StageDiff) -> str:
    """Which comparison is drawn: isolated or propagated."""
    return "isolated" if stage.reported is stage.isolated else "propagated"


def numbers_line(comparison: Comparison) -> str:
    """How many elements a comparison has, and how many of each kind worth a word."""
    judged, poisoned = np.count_nonzero(comparison.judged), np.count_nonzero(comparison.state == State.POISONED)
    size = np.count_nonzero(comparison.state != State.ABSENT)
    unjudged = size - judged - poisoned
    outside = f"{np.count_nonzero(comparison.outside):,} over budget"
    if suspicious := np.count_nonzero(comparison.state == State.SUSPICIOUS):
        outside = f"{suspicious:,} suspicious, {outside}"
    text = f"{size:,} element{'s' if size > 1 else ''}, {outside}, {poisoned:,} poisoned"
    return f"{text}, {unjudged:,} not judged" if unjudged else text


def worst_line(stage: StageDiff) -> str:
    """The worst element that is drawn in one line: its place, actual, expected, x of budget."""
    comparison = shown(stage)
    flat = worst_element(comparison)
    if flat is None:
        return "nothing was judged"
    place = at(indices(stage, flat))
    actual, expected = float(to_float64(comparison.actual).flat[flat]), float(comparison.expected.flat[flat])
    over = ratio(float(comparison.over_budget.flat[flat]))
    return f"worst at {place}: actual {value(actual)}, expected {value(expected)}, error {over}x its budget"


def page(width: float, height: float) -> "Figure":
    """An empty figure of so many inches, which Jupyter shows as a picture; Unavailable without matplotlib."""
    with needed("pictures need", "matplotlib"):
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


def signed(figure: "Figure", run: str) -> "Figure":
    """The figure with a strip below it that says what was run; as it is where that is not known."""
    if not run:
        return figure
    width, height = figure.get_size_inches()
    lines = textwrap.wrap(run, int((width - 0.4) * CHARACTERS), break_on_hyphens=False)
    strip = 0.14 * len(lines) + 0.14
    whole = height + strip

    def up(y: float) -> float:
        return (y * height + strip) / whole

    for axes in figure.axes:
        box = axes.get_position()
        axes.set_position((box.x0, up(box.y0), box.width, box.height * height / whole))
    for text in figure.texts:
        text.set_y(up(text.get_position()[1]))
    for legend in figure.legends:
        corner = legend.get_bbox_to_anchor().transformed(figure.transFigure.inverted())
        legend.set_bbox_to_anchor((corner.x0, up(corner.y0)), transform=figure.transFigure)
    figure.set_size_inches(width, whole)
    figure.text(0.2 / width, 0.1 / whole, "\n".join(lines), fontsize=TINY, color=FAINT, va="bottom", linespacing=1.2)
    return figure


def bare(axes: "Axes") -> None:
    """Take frame and tick marks off; tick labels small, in ink."""
    axes.tick_params(length=0, labelsize=SMALL, labelcolor=INK)
    axes.spines[:].set_visible(False)


def ticks(first: int, size: int) -> range:
    """Where an axis of so many elements has its numbers: every power of two, at most nine."""
    step = 1
    while size > 9 * step:
        step *= 2
    return range(-(-first // step) * step, first + size, step)


def ring(axes: "Axes", x: float, y: float, *, size: float, label: str = "") -> list:
    """A mark that is seen on every colour, `size` points wide; returns its handle for a legend."""
    style: dict[str, Any] = {"marker": "o", "ls": "", "mfc": "none", "clip_on": False, "zorder": 5, "ms": size}
    axes.plot(x, y, **style, mec="white", mew=3.6)
    return axes.plot(x, y, **style, mec=INK, mew=1.5, label=label)


def power(decade: int) -> str:
    """10 ** decade in few characters: 1e-3, 1, 1e6."""
    return "1" if decade == 0 else f"1e{decade}"


def name_axis(axes: "Axes", names: Mapping[float, str], label: str) -> None:
    """Write `names` below the x axis, each at its place, and `label` below them."""
    below: dict[str, Any] = {"xycoords": axes.get_xaxis_transform(), "textcoords": "offset points", "ha": "center"}
    for x, name in names.items():  # as ticks they would take three times as long
        axes.annotate(name, (x, 0), (0, -13), **below, fontsize=SMALL, color=INK)
    axes.set_xticks([])
    axes.set_xlabel(label, fontsize=LABEL, color=INK, labelpad=18)


def count_axis(axes: "Axes", largest: float) -> None:
    """Make y a logarithmic axis of elements, with room above bars of up to `largest` for a mark."""
    top = np.log10(max(largest, 10))
    axes.set_ylim(0.6, 10 ** (1.22 * top))
    axes.set_yscale("log")
    _name_counts(axes, [10**n for n in range(int(top) + 1)])


def linear_count_axis(axes: "Axes", largest: float) -> None:
    """As `count_axis`, from 0 and linear: for bars that are to be compared with each other."""
    largest = max(largest, 2)
    axes.set_ylim(0, 1.18 * largest)
    step = 10 ** int(np.log10(largest))
    if largest < 4 * step:
        step = max(1, step // 2)
    _name_counts(axes, range(0, int(1.18 * largest) + 1, step * (1 if largest < 6 * step else 2)))


def _name_counts(axes: "Axes", counts: Sequence[int]) -> None:
    units = ((10**9, "G"), (10**6, "M"), (10**3, "k"), (1, ""))
    named = [next(f"{count / unit:g}{name}" for unit, name in units if count >= unit or unit == 1) for count in counts]
    axes.set_yticks(counts, named)
    axes.set_yticks([], minor=True)
    style: dict[str, Any] = {"rotation": 90, "ha": "center", "va": "center", "fontsize": LABEL, "color": INK}
    axes.text(-0.075, 0.5, "elements", transform=axes.transAxes, **style)
    axes.grid(axis="y", color=RULE, lw=0.6)
    axes.set_axisbelow(True)
