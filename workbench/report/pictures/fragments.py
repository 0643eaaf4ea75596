"""Which lane and register of a tensor core held which element of a 16x16 tile of products, coloured by error.

A wrong fragment shows as a pattern of lanes or registers: every register 2 and 3 wrong, say, is rows g + 8.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.judge.stage import StageDiff
from workbench.refusal import Refusal
from workbench.report.pictures import heatmap as maps
from workbench.report.pictures import style as look
from workbench.report.pictures.style import FAINT, INK, LABEL, SMALL

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZE = 16  #: rows and columns of a tile: two products of 16x8
CELL = 0.36  #: inches


def owner(row: int, column: int) -> tuple[int, int, int]:
    """The product (0: columns 0 to 7, 1: columns 8 to 15), lane and register that hold an element of the tile.

    "PTX ISA 9.0", "Matrix fragments for mma.m16n8k16", accumulators C and D.

    >>> owner(0, 0), owner(8, 0), owner(1, 11)
    ((0, 0, 0), (0, 0, 2), (1, 5, 1))
    """
    return column // 8, row % 8 * 4 + column % 8 // 2, row // 8 * 2 + column % 2


def tensor_core_tile(stage: StageDiff) -> "Figure":
    """The 16x16 tile of a stage [b h q k] around its worst element: each cell has its lane and register, as "lane.reg",
    and the colour of its |error| / budget. Queries and keys that do not exist are left blank.

    Refuses a stage without a comparison, and one without queries and keys.
    """
    comparison = look.shown(stage)
    if stage.axes != "bhqk":
        raise Refusal(f"tiles of tensor cores have axes b, h, q, k; {stage.name} has {', '.join(stage.axes)}")
    worst = look.worst_element(comparison)
    at = look.indices(stage, worst or 0)
    query, key = at["q"] // SIZE * SIZE, at["k"] // SIZE * SIZE
    inside, start = look.positions(stage, at), stage.first.get("q", 0)
    first = max(query, start)  # a part of a run may begin within the tile
    tile = (inside["b"], inside["h"], slice(first - start, query + SIZE - start), slice(key, key + SIZE))
    shades = maps.shade(comparison.over_budget[tile], comparison.state[tile])
    image = maps.colours(shades)
    rows, columns = image.shape[:2]

    width, height = SIZE * CELL + 2.7, SIZE * CELL + 1.7
    figure = look.page(width, height)
    place = f"b={at['b']} h={at['h']}, lane.register of two products of 16x8, {look.kind(stage)} |error| / budget"
    look.headline(figure, look.title(stage), f"{place}\n{look.worst_line(stage)}")
    axes = figure.add_axes((0.8 / width, 0.6 / height, SIZE * CELL / width, SIZE * CELL / height))
    look.bare(axes)
    axes.imshow(image, extent=(key - 0.5, key + columns - 0.5, first + rows - 0.5, first - 0.5), aspect="auto")
    for row, column in np.ndindex(rows, columns):
        _, lane, register = owner(first - query + row, column)
        ink = "white" if image[row, column].mean() < 130 else INK
        text: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": SMALL - 2, "color": ink}
        axes.text(key + column, first + row, f"{lane}.{register}", **text)
    axes.axvline(key + 7.5, color=INK, lw=1.6)  # between the two products
    axes.axhline(query + 7.5, color=FAINT, lw=0.8)  # between registers 0, 1 and 2, 3
    if worst is not None:
        ring: dict[str, Any] = {"marker": "s", "ls": "", "mfc": "none", "mec": INK, "mew": 1.8, "ms": 19}
        axes.plot(at["k"], at["q"], **ring)
    maps.key(figure, maps.swatches(shades), left=SIZE * CELL + 1.0, top=SIZE * CELL + 0.6)
    axes.set(xlim=(key - 0.5, key + SIZE - 0.5), ylim=(query + SIZE - 0.5, query - 0.5))
    axes.set(xticks=range(key, key + SIZE), yticks=range(query, query + SIZE))
    axes.set_xlabel("key", fontsize=LABEL, color=INK)
    axes.set_ylabel("query", fontsize=LABEL, color=INK)
    return look.signed(figure, stage.run)
