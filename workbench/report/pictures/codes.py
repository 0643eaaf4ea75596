"""How codes were decoded: a table against the ideal one, and a decoded tile beside its errors."""

from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.case.case import Case
from workbench.case.stages import CODES
from workbench.floats import to_float64
from workbench.judge.stage import StageDiff
from workbench.refusal import Refusal
from workbench.report.pictures import heatmap as maps
from workbench.report.pictures import style as look
from workbench.report.pictures.histogram import EDGES, SLOT, position
from workbench.report.pictures.style import FAINT, INK, LABEL, RULE, SMALL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def decode_table(stage: StageDiff) -> "Figure":
    """The 256 entries of lut_k or lut_v at the head of the worst one: values on the line of the ideal ones, below
    them how far they are from it, and |error| / budget of each. Codes that stand for no number are left out.

    Refuses a stage without a comparison, and one that is no table.
    """
    comparison = look.shown(stage)
    if stage.axes != "hc":
        raise Refusal(f"a decode table has axes h, c; {stage.name} has {', '.join(stage.axes)}")
    head = look.indices(stage, look.worst_element(comparison) or 0)["h"]
    row = head - stage.first.get("h", 0)
    actual, ideal = to_float64(comparison.actual)[row], comparison.expected[row]
    ratios, state = comparison.over_budget[row], comparison.state[row]
    codes = np.arange(CODES)
    shown = np.isfinite(ideal)
    colours = maps.colours(maps.shade(ratios, state)) / 255

    figure = look.page(7.75, 7.5)
    title = f"head {head}, {look.kind(stage)} |error| / budget\n{look.worst_line(stage)}"
    look.headline(figure, look.title(stage), title)
    values, differences, errors = (
        figure.add_axes((0.11, y, 0.86, h)) for y, h in ((0.56, 0.31), (0.33, 0.17), (0.08, 0.19))
    )
    values.plot(codes[shown], ideal[shown], color=FAINT, lw=1.0, zorder=1, label="ideal")
    style: dict[str, Any] = {"s": 9, "edgecolors": INK, "linewidths": 0.3, "zorder": 2}
    drawn = shown & np.isfinite(actual)
    values.scatter(codes[drawn], actual[drawn], c=colours[drawn], label="table", **style)
    values.legend(loc="upper left", frameon=False, fontsize=SMALL, labelcolor=INK)
    values.set_ylabel("value", fontsize=LABEL, color=INK)
    differences.scatter(codes[drawn], (actual - ideal)[drawn], c=colours[drawn], **style)
    differences.axhline(0, color=FAINT, lw=1.0, zorder=1)
    differences.ticklabel_format(axis="y", scilimits=(-3, 4))
    differences.yaxis.get_offset_text().set(fontsize=SMALL, color=INK)
    differences.set_ylabel("table - ideal", fontsize=LABEL, color=INK)
    judged = shown & ~np.isnan(ratios)
    heights = np.array([position(float(ratio)) for ratio in ratios[judged]])
    errors.scatter(codes[judged], heights, c=colours[judged], **style)
    errors.axhline(0, color=INK, lw=1.2, zorder=1)
    decades = {position(0.0): "0", -2.0: "1e-2", 0.0: "budget", 4.0: "1e4", position(np.inf): "inf"}
    errors.set_yticks(list(decades), list(decades.values()))
    errors.set_ylim(EDGES[0] - SLOT, EDGES[-1] + SLOT)
    errors.set_ylabel("error / budget", fontsize=LABEL, color=INK)
    errors.set_xlabel("code", fontsize=LABEL, color=INK)
    for axes in (values, differences, errors):
        look.bare(axes)
        axes.set(xlim=(-2, CODES + 1), xticks=range(0, CODES + 1, 32))
        axes.grid(color=RULE, lw=0.6)
        axes.set_axisbelow(True)
    figure.align_ylabels()
    return look.signed(figure, stage.run)


def decoded_tile(stage: StageDiff, *, case: Case) -> "Figure":
    """The tile of dequant_q, dequant_k or dequant_v that holds the worst element: its values, and beside them |error| /
    budget; the worst element is marked. `case` with its tiles.

    Refuses a stage without a comparison, and one that is not decoded.
    """
    comparison = look.shown(stage)
    rows = stage.axes[2:3]
    block = {"bhqd": case.block_q, "bhkd": case.block_k}.get(stage.axes)
    if not stage.name.startswith("dequant") or block is None:
        raise Refusal(f"decoded tiles exist only for dequant_q, dequant_k and dequant_v; got {stage.name}")
    worst = look.worst_element(comparison)
    at = look.indices(stage, worst or 0)
    inside, start = look.positions(stage, at), stage.first.get(rows, 0)
    tile_start = at[rows] // block * block
    first = max(tile_start, start)  # a part of a run may begin within the tile
    tile = (inside["b"], inside["h"], slice(first - start, tile_start + block - start))
    actual = to_float64(comparison.actual)[tile]
    shades = maps.shade(comparison.over_budget[tile], comparison.state[tile])

    width, height = 10.7, 5.2  # inches, as of all places below
    figure = look.page(width, height)
    word = maps.WORDS[rows]
    place = f"b={at['b']} h={at['h']}, {maps.PLURALS[rows]} {first} to {first + len(actual) - 1}"
    subtitle = f"{place}, {look.kind(stage)} |error| / budget\n{look.worst_line(stage)}"
    look.headline(figure, look.title(stage), subtitle)
    left, right, scale = (
        figure.add_axes((x / width, 0.57 / height, w / width, 3.45 / height))
        for x, w in ((0.75, 3.5), (5.7, 3.5), (4.35, 0.14))
    )
    limit = float(np.abs(actual[np.isfinite(actual)]).max(initial=0.0)) or 1.0
    extent = (-0.5, actual.shape[1] - 0.5, first + len(actual) - 0.5, first - 0.5)
    style: dict[str, Any] = {"extent": extent, "aspect": "auto", "interpolation": "nearest"}
    image = left.imshow(actual, cmap="RdBu_r", vmin=-limit, vmax=limit, **style)
    bar = figure.colorbar(image, cax=scale)
    bar.ax.tick_params(labelsize=SMALL, labelcolor=INK)
    right.imshow(maps.colours(shades), **style)
    for axes, heading in ((left, "decoded values"), (right, "error / budget")):
        _labelled(axes, heading, word)
        if worst is not None:
            ring: dict[str, Any] = {"marker": "o", "ls": "", "mfc": "none", "mec": INK, "ms": 11, "clip_on": False}
            axes.plot(at["d"], at[rows], **ring)
    maps.key(figure, maps.swatches(shades), left=9.35, top=4.02)
    return look.signed(figure, stage.run)


def _labelled(axes: "Axes", title: str, rows: str) -> None:
    look.bare(axes)
    axes.set_title(title, fontsize=LABEL, color=INK)
    axes.set_xlabel("dim", fontsize=LABEL, color=INK)
    axes.set_ylabel(rows, fontsize=LABEL, color=INK)
    axes.spines[:].set(visible=True, color=FAINT, linewidth=0.8)
