"""Maps of a page: every cell is the worst element of its block, and has that element's numbers."""

import zlib
from base64 import b64decode
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.report.page.judged import CASE, wrong
from tests.report.pictures.figures import stage as a_stage
from workbench.expectation.elements import State
from workbench.judge.stage import StageDiff
from workbench.report.page.maps import IN_FULL, OF_CELL_IN_SHORT, TILE, VERDICTS, Detail, map_of, palette
from workbench.report.pictures.shades import OVER, UNWRITTEN, colours, shade

#: of a level, at most, that are held against their block
CELLS = 100
FIELDS = ("actual", "expected", "error", "budget", "over")


def unpacked(level: dict[str, Any]) -> dict[str, np.ndarray]:
    """The arrays of a level, as the script of the page reads them."""
    packed = zlib.decompress(b64decode(level["values"]))
    count = level["height"] * level["width"]
    kinds = {"shade": "<i2", "down": "<u2", "right": "<u2", **dict.fromkeys(FIELDS, "<f4")}
    found = {}
    for name, kind in kinds.items():
        size = np.dtype(kind).itemsize
        part, packed = packed[: count * size], packed[count * size :]
        planes = np.frombuffer(part, np.uint8).reshape(size, count)
        found[name] = np.ascontiguousarray(planes.T).view(kind).reshape(level["height"], level["width"])
    assert packed == b""
    return found


@pytest.mark.parametrize("name", ["qk", "probs", "merge_weight", "out", "lse"])
def test_every_cell_is_the_worst_element_of_its_block(name: str) -> None:
    stage = wrong()[name]
    made = map_of(stage, CASE, IN_FULL).data
    levels = made["levels"]
    assert levels
    compared = stage.reported
    for level in levels:
        found = unpacked(level)
        places = [*np.ndindex(level["height"], level["width"])]
        for i, j in places[:: 1 + len(places) // CELLS]:
            corner = level["row"] + i * level["steps"][0], level["column"] + j * level["steps"][1]
            at = corner[0] + found["down"][i, j], corner[1] + found["right"][i, j]
            index = {**made["fixed"], **{axis: int(x) for axis, x in zip(made["axes"], at, strict=True) if axis}}
            block = {
                axis: slice(int(first), int(first + step))
                for axis, first, step in zip(made["axes"], corner, level["steps"], strict=True)
                if axis
            }
            chosen = stage.select(**{**index, **block})
            assert chosen.over_budget is not None and chosen.state is not None
            shades = shade(chosen.over_budget, chosen.state)
            assert found["shade"][i, j] == shades.max()
            own = stage.select(**index).rows()[0]
            assert own["over_budget"] == chosen.over_budget[shades == shades.max()].max()
            numbers = [own[key] for key in ("actual", "expected", "error", "budget", "over_budget")]
            assert [float(found[field][i, j]) for field in FIELDS] == [float(np.float32(x)) for x in numbers]
    assert compared is not None and compared.summary.worst is not None


def test_the_largest_errors_are_there_element_by_element() -> None:
    made = map_of(wrong()["qk"], CASE, IN_FULL).data
    whole, *tiles = made["levels"]
    assert max(made_of(whole)) == max(max(made_of(tile)) for tile in tiles)
    assert made["worst"] is not None
    inside = [
        all(
            first <= at < first + size
            for at, first, size in zip(
                made["worst"], (tile["row"], tile["column"]), (tile["height"], tile["width"]), strict=True
            )
        )
        for tile in tiles
    ]
    assert inside[0] and all(tile["steps"] == [1, 1] for tile in tiles)


def made_of(level: dict[str, Any]) -> list[float]:
    return [float(x) for x in unpacked(level)["over"].ravel()]


def test_the_picture_is_the_map_in_its_colours() -> None:
    made = map_of(wrong()["qk"], CASE, IN_FULL)
    picture = np.asarray(Image.open(BytesIO(b64decode(made.picture))).convert("RGB"))
    table = np.frombuffer(b64decode(palette()), np.uint8).reshape(UNWRITTEN + 1, 3)
    assert np.array_equal(picture, table[unpacked(made.data["levels"][0])["shade"]])
    assert np.array_equal(table, colours(np.arange(UNWRITTEN + 1)))
    assert made.caption == (
        "query down, key across; b=0 h=0, isolated |error| / budget, a cell is the worst of 4 x 4 elements"
    )


def test_a_map_without_numbers_is_a_picture_alone() -> None:
    made = map_of(wrong()["qk"], CASE, OF_CELL_IN_SHORT)
    assert made.data == {} and made.picture and made.ring


def odd() -> StageDiff:
    """A stage with a NaN, an element that was not judged and one that is wrong, in blocks of right ones."""
    over = np.full((1, 1, 40, 40), 0.5)
    state = np.full(over.shape, int(State.ROUNDING))
    for (q, k), (x, kind) in {
        (1, 2): (np.inf, State.NAN),
        (1, 3): (2.0, State.OUTSIDE),
        (20, 20): (np.nan, State.VACUOUS),
        (39, 39): (3.0, State.OUTSIDE),
    }.items():
        over[0, 0, q, k], state[0, 0, q, k] = x, kind
    return a_stage(over, state)


def test_what_is_no_number_hides_nothing_and_is_not_hidden() -> None:
    made = map_of(odd(), CASE, Detail(10, 0, 1)).data
    (level,) = made["levels"]
    found = unpacked(level)
    assert level["steps"] == [4, 4] and made["worst"] == [1, 2]
    assert [one[1] for one in map_of(odd(), CASE, Detail(10, 0, 1)).named] == ["not judged", "NaN or wrong class"]
    words = [[next(word for first, word in reversed(VERDICTS) if first <= x) for x in row] for row in found["shade"]]
    assert words[0][0] == "bug" and np.isinf(found["over"][0, 0]), "a NaN before the largest number"
    assert words[5][5] == "not judged" and np.isnan(found["over"][5, 5])
    assert words[9][9] == "bug" and found["over"][9, 9] == 3 and found["shade"][9, 9] >= OVER
    assert sum(word == "rounding" for row in words for word in row) == 97


def test_tiles_of_the_kernel_are_those_of_the_map() -> None:
    edges = map_of(wrong()["qk"], CASE, IN_FULL).data["edges"]
    assert edges == [[*range(0, 161, 16)]] * 2
    untold = map_of(wrong()["qk"], CASE.but(block_q=None, block_k=None, splits=None), IN_FULL).data["edges"]
    assert untold == [[*range(0, 161, TILE)]] * 2
