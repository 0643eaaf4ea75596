"""The map of a stage's errors as a page holds it: the plane through its worst element, in cells, each of which is the
worst of a block of elements, and tiles of single elements where the errors are largest.

A cell has the numbers of its worst element, so that no number of a map is a mean of others.
"""

import zlib
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.case.case import Case
from workbench.case.ranks import spoken
from workbench.floats import to_float64
from workbench.judge.stage import StageDiff
from workbench.report.page.png import png
from workbench.report.pictures import style as look
from workbench.report.pictures.heatmap import WORDS, Slice, default_axes, grid, place, slice_at_worst
from workbench.report.pictures.shades import (
    EXACT,
    NAMED,
    NAN,
    NOT_JUDGED,
    OVER,
    POISONED,
    SUSPICIOUS,
    UNWRITTEN,
    WITHIN,
    colours,
    shade,
)

#: elements along an edge of a tile, of an axis that the kernel does not cut into tiles, or into larger ones
TILE = 32
#: largest edge of a tile of the kernel that is shown as one
LARGEST_TILE = 64


@dataclass(frozen=True)
class Detail:
    """How much of a map a page holds."""

    cells: int  #: most cells in a direction of the whole plane
    tiles: int  #: tiles of single elements, the worst ones
    worst: int  #: elements that are listed
    numbers: bool = True  #: whether it has the numbers of its cells; else it is a picture alone


#: pixels of the picture: its width; a plane is drawn no higher than wide, and no flatter than this
WIDTH, FLATTEST = 320, 0.12
#: of stages that are wrong, victims or doubtful, and of the others
IN_FULL, IN_SHORT = Detail(64, 4, 10), Detail(64, 1, 5)
#: the same for a cell of a notebook, which keeps what it shows
OF_CELL, OF_CELL_IN_SHORT = Detail(32, 0, 5), Detail(32, 0, 3, numbers=False)
#: the verdict on an element by its shade: from which shade on, in the words of `values.STATES`
VERDICTS = (
    *((EXACT, "exact"), (WITHIN, "rounding"), (NOT_JUDGED, "not judged"), (POISONED, "poisoned")),
    *((SUSPICIOUS, "suspicious"), (OVER, "bug"), (NAN, "bug"), (UNWRITTEN, "unwritten")),
)


@dataclass(frozen=True)
class Map:
    """A map as a picture and as data."""

    caption: str
    picture: str  #: PNG in base64, a pixel a cell
    height: float  #: of the picture where it is WIDTH wide, in pixels
    ring: tuple[float, ...]  #: around the cell of the worst element: left, top, width, height; () where nothing is
    named: Sequence[tuple[str, str]]  #: colours that are no size of an error, of those that are there, in words
    data: dict[str, Any]  #: of plain Python values; empty of a picture alone


@dataclass(frozen=True)
class _Plane:
    """The plane of a stage that is drawn; arrays are [rows, columns]."""

    cut: Slice
    shades: np.ndarray
    numbers: dict[str, np.ndarray]  #: actual, expected, error, budget, over_budget


def map_of(stage: StageDiff, case: Case | None, detail: Detail) -> Map:
    """The map of a compared stage, of what its row in tables shows."""
    plane = _plane(stage)
    cut = plane.cut
    rows, columns = plane.shades.shape
    steps = _steps(rows, columns, detail.cells)
    down, across = (spoken(WORDS.get(axis, axis), stage.of_ranks) for axis in (cut.rows, cut.columns))
    directions = f"{down} down, {across} across" if down.strip() else f"{across} across"
    height = WIDTH * min(1, max(rows / columns, FLATTEST))
    return Map(
        caption=f"{directions}; {place(stage, cut, steps)}",
        picture=_picture(plane.shades, steps),
        height=round(height, 1),
        ring=_ring(cut, steps, (WIDTH / columns, height / rows)),
        named=[NAMED[name] for name in NAMED if (plane.shades == name).any()],
        data=_data(plane, stage, case, steps, detail) if detail.numbers else {},
    )


def _data(plane: _Plane, stage: StageDiff, case: Case | None, steps: tuple[int, int], detail: Detail) -> dict[str, Any]:
    """What a script draws a map from, and reads from it."""
    cut, (rows, columns) = plane.cut, plane.shades.shape
    first = cut.corner
    edges = _edges(case, cut.rows, rows, first[0]), _edges(case, cut.columns, columns, first[1])
    tiles = _worst_tiles(plane.shades, edges, detail.tiles) if max(steps) > 1 else []
    return {
        "order": list(stage.axes),
        "axes": [cut.rows.strip(), cut.columns],
        "first": list(first),
        "fixed": dict(cut.fixed),
        "flattest": FLATTEST,
        "worst": None if cut.worst is None else list(cut.worst),
        "edges": [[0, *found, size] for found, size in zip(edges, (rows, columns), strict=True)],
        "levels": [
            _level(plane, (0, rows), (0, columns), steps),
            *(_level(plane, *tile, (1, 1)) for tile in tiles),
        ],
    }


def palette() -> str:
    """The colours of all shades, RGB in base64."""
    return b64encode(colours(np.arange(UNWRITTEN + 1)).tobytes()).decode()


def _plane(stage: StageDiff) -> _Plane:
    axes = default_axes(stage.axes)
    cut = slice_at_worst(stage, axes)
    index = tuple(slice(None) if axis in axes else cut.fixed[axis] - stage.first.get(axis, 0) for axis in stage.axes)
    turned = stage.axes.find(axes[0]) > stage.axes.find(axes[1])
    found = look.shown(stage).elements

    def cut_out(array: np.ndarray) -> np.ndarray:
        plane = np.atleast_2d(to_float64(np.asarray(array[index])))
        return plane.T if turned else plane

    numbers = {name: cut_out(getattr(found, name)) for name in ("actual", "expected", "budget", "over_budget")}
    with np.errstate(invalid="ignore"):
        equal = numbers["actual"] == numbers["expected"]
        numbers["error"] = np.where(equal, 0.0, numbers["actual"] - numbers["expected"])
    return _Plane(cut, shade(cut.over_budget, cut.state), numbers)


def _steps(rows: int, columns: int, cells: int) -> tuple[int, int]:
    """Rows and columns of the block that a cell stands for, powers of 2 as tiles are, so that a plane has at most
    `cells` squared cells; of a narrow one more in the long direction.
    """
    limits = max(cells, cells**2 // columns), max(cells, cells**2 // rows)
    down, across = (
        1 << (-(-size // most) - 1).bit_length() for size, most in zip((rows, columns), limits, strict=True)
    )
    return down, across


def _ring(cut: Slice, steps: tuple[int, int], scale: tuple[float, float]) -> tuple[float, ...]:
    """The cell of the worst element in pixels; `scale`: those of an element across and down."""
    if cut.worst is None:
        return ()
    top, left = ((i - first) // step * step for i, first, step in zip(cut.worst, cut.corner, steps, strict=True))
    box = (left * scale[0], top * scale[1], steps[1] * scale[0], steps[0] * scale[1])
    return tuple(round(x, 1) for x in box)


def _edges(case: Case | None, axis: str, size: int, first: int) -> list[int]:
    """Where tiles begin within `size` elements of an axis, 0 left out."""
    own = sorted(edge - first for edges in grid(case, axis, size, first) for edge in edges if 0 < edge - first < size)
    longest = max(np.diff([0, *own, size]), default=size)
    return own if 1 < longest <= LARGEST_TILE else list(range(TILE, size, TILE))


def _worst_tiles(
    shades: np.ndarray, edges: tuple[Sequence[int], Sequence[int]], count: int
) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Rows and columns of the tiles with the largest shades, the largest first."""
    starts = [np.array([0, *found]) for found in edges]
    largest = np.maximum.reduceat(np.maximum.reduceat(shades, starts[0], axis=0), starts[1], axis=1)
    order = np.argsort(-largest, axis=None, kind="stable")[:count]
    ends = [[*found, size] for found, size in zip(edges, shades.shape, strict=True)]
    places = zip(*np.unravel_index(order, largest.shape), strict=True)
    return [((int(starts[0][i]), int(ends[0][i])), (int(starts[1][j]), int(ends[1][j]))) for i, j in places]


def _level(plane: _Plane, rows: tuple[int, int], columns: tuple[int, int], steps: tuple[int, int]) -> dict[str, Any]:
    """A part of a plane in cells of so many rows and columns of elements. `values`: what the worst element of each cell
    has, an array after the other, little-endian, deflated, in base64: shade int16, row and column in the cell uint16,
    actual, expected, error, budget and over_budget float32.
    """
    part = np.s_[rows[0] : rows[1], columns[0] : columns[1]]
    at = _worst_of_blocks(plane.shades[part], plane.numbers["over_budget"][part], steps)
    arrays = [plane.shades[part][at].astype("<i2")]
    arrays += [(index % step).astype("<u2") for index, step in zip(at, steps, strict=True)]
    with np.errstate(over="ignore", under="ignore"):
        arrays += [
            plane.numbers[name][part][at].astype("<f4")
            for name in ("actual", "expected", "error", "budget", "over_budget")
        ]
    height, width = at[0].shape
    return {
        "row": rows[0],
        "column": columns[0],
        "height": height,
        "width": width,
        "steps": list(steps),
        "values": _packed(arrays),
    }


def _worst_of_blocks(shades: np.ndarray, over: np.ndarray, steps: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns [blocks, blocks] of the element of each block with the largest shade, of equals that with the
    largest x of budget, then the first.
    """
    height, width = (-(-size // step) for size, step in zip(shades.shape, steps, strict=True))
    room = [(0, n * step - size) for n, step, size in zip((height, width), steps, shades.shape, strict=True)]

    def blocks(array: np.ndarray, blank: float) -> np.ndarray:
        padded = np.pad(array, room, constant_values=blank)
        cut = padded.reshape(height, steps[0], width, steps[1])
        return cut.transpose(0, 2, 1, 3).reshape(height, width, -1)

    shown = blocks(shades, -1)
    size = blocks(np.where(np.isnan(over), 0, over), -1)
    best = np.where(shown == shown.max(axis=-1, keepdims=True), size, -2).argmax(axis=-1)
    row, column = np.divmod(best, steps[1])
    return (
        row + steps[0] * np.arange(height)[:, None],
        column + steps[1] * np.arange(width)[None, :],
    )


def _packed(arrays: Sequence[np.ndarray]) -> str:
    return b64encode(zlib.compress(b"".join(_planes(arrays)), 9)).decode()


def _planes(arrays: Sequence[np.ndarray]) -> Iterator[bytes]:
    """The bytes of each array, the first of all its numbers before the second of all, which deflates better."""
    for array in arrays:
        yield np.ascontiguousarray(array).view(np.uint8).reshape(-1, array.itemsize).T.tobytes()


def _picture(shades: np.ndarray, steps: tuple[int, int]) -> str:
    for axis, step in enumerate(steps):
        shades = np.maximum.reduceat(shades, np.arange(0, shades.shape[axis], step), axis=axis)
    return b64encode(png(colours(shades))).decode()
