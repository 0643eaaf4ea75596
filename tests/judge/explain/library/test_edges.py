"""Edges of masks that lie elsewhere, against masks that are made from the definition."""

import numpy as np
import pytest

from workbench.judge.explain.library.edges import between, moved

MOVED = {name: ends for name, _, ends in moved()}
#: in each the edges of a window are seen in some row
SHAPES = [(7, 7), (5, 12), (12, 5)]


def mask(q: int, k: int, left: int | None, right: int | None, shift: int) -> np.ndarray:
    """Keys in [i + shift - left, i + shift + right] of query i; None for no edge."""
    i, j = np.arange(q)[:, None] + shift, np.arange(k)
    seen = np.ones((q, k), bool)
    seen &= True if left is None else j >= i - left
    seen &= True if right is None else j <= i + right
    return seen


@pytest.mark.parametrize(("q", "k"), SHAPES)
@pytest.mark.parametrize(("left", "right"), [(2, 0), (2, 2), (3, 1)])
def test_an_edge_goes_on_where_the_keys_end(q: int, k: int, left: int, right: int) -> None:
    seen, shift = mask(q, k, left, right, k - q), k - q
    expected = {
        "right--1": mask(q, k, left, right - 1, shift),
        "right-+1": mask(q, k, left, right + 1, shift),
        "left--1": mask(q, k, left - 1, right, shift),
        "left-+1": mask(q, k, left + 1, right, shift),
        "top-left": mask(q, k, left, right, 0),
        "left-top-left": mask(q, k, left, None, 0) & mask(q, k, None, right, shift),
        "window-top-left": mask(q, k, left, right, 0) & mask(q, k, None, right, shift),
    }
    for name, other in expected.items():
        assert np.array_equal(between(seen, MOVED[name]), other), name


@pytest.mark.parametrize(("q", "k"), SHAPES)
def test_causal(q: int, k: int) -> None:
    seen = mask(q, k, None, 0, k - q)
    assert np.array_equal(between(seen, MOVED["top-left"]), mask(q, k, None, 0, 0))
    assert np.array_equal(between(seen, MOVED["right--1"]), mask(q, k, None, -1, k - q))


def test_no_edge_stays_none() -> None:
    seen = np.ones((4, 6), bool)
    for name in ("right-+1", "right--1", "left--1", "top-left", "shift+1"):
        assert between(seen, MOVED[name]).all()


def test_holes_stay_inside() -> None:
    seen = mask(6, 9, 4, 0, 3)
    inside = seen[:, 5] & seen[:, 4] & seen[:, 6]
    seen[:, 5] = False
    found = between(seen, MOVED["right-+1"])
    assert inside.any() and not found[inside, 5].any() and found.sum() > seen.sum()
