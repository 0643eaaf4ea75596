"""One stage of two runs, element by element: what arises in it, in which class, and what is not judged."""

from dataclasses import replace

import numpy as np
import pytest

from workbench.expectation.elements import State
from workbench.judge.against.stage import Side, parting, stage_against

FLOAT32 = np.dtype(np.float32)
INF, NAN = np.inf, np.nan


def one(actual: float, expected: float, budget: float, state: State) -> Side:
    return Side(np.array([actual]), np.array([expected]), np.array([budget]), np.array([state], np.uint8), FLOAT32)


RIGHT = one(1.0, 1.0, 0.5, State.EXACT)


@pytest.mark.parametrize(
    ("a", "b", "own", "over"),
    [
        (RIGHT, RIGHT, 0.0, 0.0),
        # both right, at opposite ends of their budgets: together they may be as far apart as both allow
        (one(1.5, 1.0, 0.5, State.ROUNDING), one(0.5, 1.0, 0.5, State.ROUNDING), 1.0, 1.0),
        # inputs far apart, which each did justice to
        (one(100.25, 100.0, 0.5, State.ROUNDING), RIGHT, 0.25, 0.25),
        (one(2.5, 1.0, 0.5, State.OUTSIDE), RIGHT, 1.5, 1.5),
        # beyond its own budget, but not beyond both
        (one(1.75, 1.0, 0.5, State.OUTSIDE), RIGHT, 0.75, 0.75),
        # the same mistake in both
        (one(9.0, 1.0, 0.5, State.OUTSIDE), one(9.0, 1.0, 0.5, State.OUTSIDE), 0.0, 0.0),
        (one(NAN, 1.0, 0.5, State.NAN), one(NAN, 1.0, 0.5, State.NAN), 0.0, 0.0),
        (one(NAN, 1.0, 0.5, State.NAN), RIGHT, NAN, INF),
        (one(INF, 1.0, 0.5, State.NAN), RIGHT, INF, INF),
        (one(INF, 1.0, 0.5, State.NAN), one(NAN, 1.0, 0.5, State.NAN), NAN, INF),
        (one(NAN, 1.0, 0.5, State.UNWRITTEN), RIGHT, NAN, INF),
        # a masked key in both, and in one alone
        (one(-INF, -INF, NAN, State.EXACT), one(-INF, -INF, NAN, State.EXACT), 0.0, 0.0),
        (one(3.0, -INF, NAN, State.NAN), one(-INF, -INF, NAN, State.EXACT), INF, INF),
        # right by convention: an overflow to infinity, lse of a row without keys
        (one(INF, 7e4, 100.0, State.ROUNDING), one(65504.0, 65500.0, 16.0, State.ROUNDING), -4.0, 4 / 116),
        (one(NAN, -INF, NAN, State.EXACT), one(-INF, -INF, NAN, State.EXACT), 0.0, 0.0),
        # nothing to hold against
        (one(5.0, NAN, 0.5, State.POISONED), RIGHT, 0.0, NAN),
        (one(5.0, 1.0, INF, State.VACUOUS), RIGHT, 4.0, NAN),
    ],
)
def test_what_arises_in_an_element(a: Side, b: Side, own: float, over: float) -> None:
    for sign, (x, y) in ((1, (a, b)), (-1, (b, a))):
        found, share = parting(x, y)
        np.testing.assert_allclose(found, [sign * own])
        np.testing.assert_allclose(share, [over])


def test_two_elements_that_are_right_never_part_by_a_rounding_of_float64() -> None:
    """a - e and b - e are rounded, so that their difference may come out above the sum of the budgets."""
    expected, budget = 1 / 3, 2.0**-25
    a = one(expected + budget, expected, budget - 2.0**-60, State.ROUNDING)
    b = one(expected - budget, expected, budget - 2.0**-60, State.ROUNDING)
    assert abs(a.actual - b.actual) > a.budget + b.budget
    assert parting(a, b)[1] <= 1
    assert parting(replace(a, state=np.array([State.OUTSIDE])), b)[1] > 1


def side(actual: list[float], expected: list[float], state: State = State.ROUNDING) -> Side:
    shape = (1, 1, len(actual))
    arrays = (np.array(actual).reshape(shape), np.array(expected).reshape(shape), np.full(shape, 0.5))
    return Side(*arrays, np.full(shape, state, np.uint8), FLOAT32)


def test_a_stage_adds_up_its_elements() -> None:
    good = side([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    bad = side([1.0, 2.25, 7.0], [1.0, 2.0, 3.0])
    bad = replace(bad, state=np.array([[[State.EXACT, State.ROUNDING, State.OUTSIDE]]]))
    found = stage_against("row_max", "bhq", None, {}, ("scores",), (bad, good), (bad, good))
    assert (found.verdict, found.size, found.judged, found.differing, found.outside) == ("diverges", 3, 3, 2, 1)
    assert (found.wrong, found.carried, found.over_budgets) == ((1, 0), 0, 4.0)
    assert (found.max_abs, found.max_own, found.max_ulp) == (4.0, 4.0, 4.0 / 2.0**-22)
    assert found.worst is not None and found.worst.index == {"b": 0, "h": 0, "q": 2}
    assert (found.worst.a, found.worst.b, found.worst.expected_a, found.worst.budget) == (7.0, 3.0, 3.0, 1.0)


def test_a_victim_is_carried_and_its_worst_element_is_the_one_farthest_apart() -> None:
    a, b = side([9.0, 2.0], [9.0, 2.0]), side([1.0, 2.0], [1.0, 2.0])
    from_inputs = replace(a, expected=b.expected, state=np.array([[[State.OUTSIDE, State.ROUNDING]]]))
    found = stage_against("out", "bhq", None, {}, (), (a, b), (from_inputs, b))
    assert (found.verdict, found.outside, found.carried, found.max_own, found.max_abs) == ("carried", 0, 1, 0.0, 8.0)
    assert found.worst is not None and found.worst.index == {"b": 0, "h": 0, "q": 0}


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        (side([1.0], [1.0]), side([1.0], [1.0]), "identical"),
        (side([1.0], [1.0]), side([1.25], [1.0]), "rounding"),
        (side([0.0], [0.0]), side([-0.0], [0.0]), "rounding"),  # not the same bits
        (side([NAN], [NAN], State.POISONED), side([1.0], [1.0]), "untestable"),
        (side([], []), side([], []), "untestable"),
    ],
)
def test_verdict(a: Side, b: Side, verdict: str) -> None:
    assert stage_against("row_max", "bhq", None, {}, (), (a, b), (a, b)).verdict == verdict


def test_an_element_of_some_tiles_keeps_its_place_in_the_whole() -> None:
    a, b = side([1.0, 5.0], [1.0, 1.0], State.OUTSIDE), side([1.0, 1.0], [1.0, 1.0])
    tiles = np.array([True, False, False, True])
    found = stage_against("row_max", "bht", tiles, {"t": tiles}, (), (a, b), (a, b))
    assert found.tiles == (0, 3) and found.worst is not None and found.worst.index == {"b": 0, "h": 0, "t": 3}
