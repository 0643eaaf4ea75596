"""Which keys a tile has, which tiles a split has, and the order in which a row visits them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.case.tiling import split_tiles, tiles, tiling


@pytest.mark.parametrize(
    ("n_tiles", "splits", "expected"),
    [
        (4, 1, [[0, 1, 2, 3]]),
        (4, 2, [[0, 1], [2, 3]]),
        (5, 2, [[0, 1, 2], [3, 4]]),
        (5, 4, [[0, 1], [2, 3], [4], []]),  # two tiles a split leave the last without any
        (2, 5, [[0], [1], [], [], []]),
    ],
)
def test_split_tiles(n_tiles, splits, expected):
    assert [list(tiles) for tiles in split_tiles(n_tiles, splits)] == expected


def test_tiles():
    assert tiles(7, 3) == [slice(0, 3), slice(3, 6), slice(6, 7)]
    assert tiles(6, 3) == [slice(0, 3), slice(3, 6)]
    assert tiles(2, 64) == [slice(0, 2)]


@given(n_tiles=st.integers(1, 50), splits=st.integers(1, 60))
def test_splits_cover_every_tile_once_in_order(n_tiles, splits):
    ranges = split_tiles(n_tiles, splits)
    assert len(ranges) == splits
    assert [tile for tiles in ranges for tile in tiles] == list(range(n_tiles))
    assert max(len(tiles) for tiles in ranges) == -(-n_tiles // splits)


def test_splits_of_keys_that_are_no_whole_tiles() -> None:
    found = tiling(13, 4, split_bounds=(0, 6, 6, 13))
    assert found.keys == (slice(0, 4), slice(4, 6), slice(6, 10), slice(10, 13))
    assert found.splits == ((0, 1), (), (2, 3)) and found.starts == {0, 2} and found.last == 3


def test_orders_are_kept_within_each_split() -> None:
    assert tiling(20, 4, 2, tile_order="descending").splits == ((2, 1, 0), (4, 3))
    backwards = tiling(20, 4, tile_order=[0, 4, 1, 3, 2])
    assert backwards.order == ((0, None), (4, 0), (1, 4), (3, 1), (2, 3)) and backwards.last == 2
    assert backwards.keys == tiling(20, 4).keys
