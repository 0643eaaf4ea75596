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
    assert in_words(source, DIMS).startswith("chunks of 8 elements are swizzled (75.0% of its elements are others): ")


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
