"""Index maps: what is filled in of one that was read in part, and its words."""

import numpy as np
import pytest

from workbench.readings.maps import bits_of, completed, in_words

ROWS, DIMS = 48, 32
ROW, DIM = np.divmod(np.arange(ROWS * DIMS).reshape(ROWS, DIMS), DIMS)


def swizzled(rows: np.ndarray = ROW) -> np.ndarray:
    found: np.ndarray = ROW * DIMS + (DIM ^ (rows & 3) * 8)
    return found


@pytest.mark.parametrize("known", [1.0, 0.5, 0.05])
def test_a_linear_map_is_told_from_a_part(known: float) -> None:
    source = swizzled()
    part = np.where(np.random.default_rng(3).random(source.shape) <= known, source, -2)
    assert np.array_equal(completed(part, DIMS), source)
    assert in_words(source, DIMS).startswith(
        "chunks of 8 elements are swizzled (75.0% of its elements come from elsewhere): "
    )


def test_one_element_that_is_another_makes_it_no_linear_map() -> None:
    source = swizzled().reshape(-1)
    assert bits_of(source) is not None
    source[100] ^= 1
    assert bits_of(source) is None


def test_a_bit_that_no_part_shows_is_not_guessed() -> None:
    part = np.where(ROW < 16, swizzled(), -2)  # rows 16 to 47 have a bit that these have not
    assert bits_of(part.reshape(-1)) is None
    assert bits_of(np.full(8, -2)) is None


def test_a_map_that_comes_again_after_some_rows_is_completed() -> None:
    """Rows whose third bit is set have their halves exchanged; of 144 rows, which are no power of two, 128 were read."""
    row, dim = np.divmod(np.arange(144 * 64).reshape(144, 64), 64)
    whole = row * 64 + np.where(row & 4, dim ^ 32, dim)
    read = whole.copy()
    read[128:] = -2
    assert np.array_equal(completed(read, 64), whole)
    chance = np.random.default_rng(0).permutation(whole.reshape(-1)).reshape(whole.shape)
    chance[128:] = -2
    assert np.all(completed(chance.copy(), 64)[128:] == -2)


def zeroed(of: np.ndarray, source: np.ndarray | None = None) -> np.ndarray:
    whole = ROW * DIMS + DIM if source is None else source
    found: np.ndarray = np.where(of, -1, whole)
    return found


#: maps whose elements fill no box, and their words
RAGGED = {
    "from an element on, to the end of the tile": (
        zeroed((ROW * DIMS + DIM) % (16 * DIMS) >= 13 * DIMS + 8), "elements from row 13, dim 8 on in each tile of 16 rows are read as 0",
    ),
    "the same, of whole tiles alone": (
        zeroed(((ROW % 32) * DIMS + DIM >= 25 * DIMS + 8) & (ROW < 32)),
        "elements from row 25, dim 8 on in each tile of 32 rows are read as 0",
    ),
    "a box": (zeroed((ROW >= 40) & (DIM < 4)), "dims 0-3 of rows 40-47 are read as 0"),
    "zeros and others": (
        zeroed((ROW == 3) & (DIM > 7) | (ROW == 9) & (DIM == 0), swizzled()),
        "75.0% of its elements come from elsewhere; 25 elements, such as dims 8-31 of row 3 are read as 0",
    ),
    "rows of others, up to a dim of each": (
        np.where((ROW >= 8) & (ROW < 24) & (DIM < ROW), (ROW + 8) * DIMS + DIM, ROW * DIMS + DIM),
        "rows 8-23 come from row i + 8, in 248 elements, such as dims 0-22 of row 23",
    ),
    "rows of others, of some dims": (
        np.where((ROW >= 8) & (ROW < 24) & (DIM < 8), (ROW + 8) * DIMS + DIM, ROW * DIMS + DIM),
        "rows 8-23 come from row i + 8, in dims 0-7",
    ),
    "dims of others, from a row on": (
        np.where((DIM < 8) & (ROW > 4 * DIM), ROW * DIMS + DIM + 8, ROW * DIMS + DIM),
        "dims 0-7 come from dim i + 8, in 264 elements, such as dims 0-7 of row 29",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("source", "said"), RAGGED.values(), ids=RAGGED)
def test_elements_that_fill_no_box_are_not_said_as_one(source: np.ndarray, said: str) -> None:
    assert in_words(source, DIMS) == said


def test_elements_in_no_order_are_counted_and_shown() -> None:
    source = ROW * DIMS + DIM
    chosen = np.random.default_rng(0).permutation(source.size)[:12]
    source.reshape(-1)[chosen] = np.random.default_rng(1).permutation(chosen)
    assert "in rows" not in in_words(source, DIMS) and "(row " in in_words(source, DIMS)
