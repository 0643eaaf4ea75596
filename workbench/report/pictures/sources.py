"""Where the budget of one element comes from: a bar for each line of a plain reference."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.judge.reference.diff import ReferenceDiff
from workbench.refusal import Refusal
from workbench.report.numbers import number, ratio, value
from workbench.report.pictures import style as look
from workbench.report.reference_budget import shares_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, LABELS, ROW, TOP, BOTTOM = 8.6, 4.1, 0.34, 1.0, 0.42  #: inches: the figure, words left of the bars, a bar
MOST = 10  #: bars, of which the last is all other lines
CHARACTERS = 52  #: of a line of the reference that is shown


def sources(diff: ReferenceDiff, name: str, element: Sequence[int] | None = None) -> "Figure":
    """The shares of an element's budget by line of the reference, the largest first, and its own rounding; a line
    across them at its error, where that is within.

    element: its index, of a stage with several turns the turn first; None: the one that is farthest beyond its budget.
    Refusal for an element that was not judged, and for a stage that was not given.
    """
    stage = diff[name]
    worst = stage.worst(1)
    if element is None and not worst:
        raise Refusal(f"no element of {name} was judged: {stage.reason}")
    at = worst[0].place if element is None else tuple(int(i) for i in element)
    found = stage[at].rows()[0]
    parts = shares_of(diff, name, at)
    shown, rest = (parts, []) if len(parts) <= MOST else (parts[: MOST - 1], parts[MOST - 1 :])
    rows = [(str(one._replace(where=Path(one.where).name)), one.share) for one in shown]
    rows += [(f"{len(rest)} more lines", sum(one.share for one in rest))] if rest else []
    height = TOP + ROW * max(len(rows), 1) + BOTTOM
    figure = look.page(WIDTH, height)
    place = f"{name}[{', '.join(map(str, at))}]"
    over = float(found["over_budget"])
    said = f"actual {value(found['actual'])}, expected {value(found['expected'])}: error {ratio(over)}x its budget"
    look.headline(figure, f"budget of {place}: {number(found['budget'])}", said)
    axes = figure.add_axes((LABELS / WIDTH, BOTTOM / height, 1 - (LABELS + 0.75) / WIDTH, 1 - (TOP + BOTTOM) / height))
    look.bare(axes)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, 1)
    axes.set_yticks([])
    axes.set_xticks([0, 0.5, 1], ["0", "50%", "budget"])
    axes.axvline(1, color=look.INK, lw=1.4)
    axes.barh(range(len(rows)), [share for _, share in rows], height=0.62, color=look.CALM, zorder=2)
    if 0 < over <= 1:
        axes.axvline(over, color=look.HOT, lw=1.4, zorder=3)
        style: dict[str, Any] = {
            "ha": "right" if over > 0.5 else "left",
            "fontsize": look.SMALL,
            "color": look.HOT,
            "va": "bottom",
        }
        axes.text(over, 1.01, f" error {ratio(over)}x ", transform=axes.get_xaxis_transform(), **style)
    for row, (words, share) in enumerate(rows):
        cut = words if len(words) <= CHARACTERS else f"{words[: CHARACTERS - 3]}..."
        axes.text(-0.02, row, cut, ha="right", va="center", fontsize=look.SMALL, color=look.INK)
        axes.text(share + 0.015, row, f"{share:.1%}", va="center", fontsize=look.SMALL, color=look.FAINT, zorder=4)
    return look.signed(figure, diff.headline)
