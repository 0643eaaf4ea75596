"""One element against one expectation: class before size, and what is not judged never counts as right."""

from dataclasses import fields, replace

import numpy as np
import pytest

from workbench.expectation.elements import Comparison, Elements, State, compare, element, whole
from workbench.floats import to_float64
from workbench.judge.stage import StageDiff
from workbench.reference.bound import Budget
from workbench.refusal import Refusal
from workbench.trace.trace import blank, unwritten

INF, NAN = np.inf, np.nan


def compared(actual, expected, bound, size, statistical=None) -> Comparison:
    """The comparison of arrays, as a diff makes it; the statistical bound is the bound unless given."""
    expected, bound = np.asarray(expected, np.float64), np.asarray(bound, np.float64)
    likely = bound if statistical is None else np.asarray(statistical, np.float64)
    budget = Budget(bound, likely, np.asarray(size, np.float64))
    found = compare(to_float64(actual), unwritten(actual), expected, budget, actual.dtype)
    return whole(Elements(actual, *(getattr(found, f.name) for f in fields(Elements)[1:])))


def one(actual, expected, bound, size=10.0, dtype=np.float32, statistical=None) -> Comparison:
    """The comparison of a single element."""
    likely = None if statistical is None else [statistical]
    return compared(np.array([actual], dtype), [expected], [bound], [size], likely)


@pytest.mark.parametrize(
    ("actual", "expected", "bound", "state", "over"),
    [
        (1.5, 1.0, 1.0, State.ROUNDING, 0.5),
        (3.0, 1.0, 1.0, State.OUTSIDE, 2.0),
        (-INF, -INF, 1.0, State.EXACT, 0.0),
        (INF, -INF, 1.0, State.NAN, INF),
        (0.0, -INF, 1.0, State.NAN, INF),
        (-INF, 0.0, 1.0, State.NAN, INF),
        (NAN, 0.0, 1.0, State.NAN, INF),
        (NAN, NAN, 1.0, State.POISONED, NAN),
        (0.0, NAN, 1.0, State.POISONED, NAN),
        (0.0, 1.0, INF, State.VACUOUS, NAN),
        (0.0, 1.0, NAN, State.VACUOUS, NAN),
        (0.0, 1.0, 10.0, State.VACUOUS, NAN),
        (99.0, 1.0, 10.0, State.OUTSIDE, 9.8),  # wrong by more than a vacuous budget is wrong all the same
    ],
)
def test_state_and_x_of_budget(actual, expected, bound, state, over):
    found = one(actual, expected, bound)
    assert found.state[0] == state
    np.testing.assert_allclose(found.over_budget, [over])
    assert found.judged[0] == (state not in (State.POISONED, State.VACUOUS))
    assert found.outside[0] == (over > 1)


@pytest.mark.parametrize(("actual", "state"), [(1.5, State.ROUNDING), (NAN, State.NAN), (INF, State.NAN)])
def test_a_number_without_axes_is_an_element(actual, state):
    found = compared(np.array(actual, np.float32), 1.0, 1.0, 10.0)
    assert found.state == state and found.outside == (state == State.NAN)


def test_slot_nobody_wrote_is_outside_whatever_the_budget():
    actual = blank((1,), "float32")
    found = compared(actual, [NAN], [INF], [1.0])
    assert (found.state[0], found.over_budget[0]) == (State.UNWRITTEN, INF)


def test_infinity_is_right_only_where_the_dtype_can_reach_no_further():
    beyond = one(INF, 65519.0, 2.0, size=6e4, dtype=np.float16)
    assert (beyond.state[0], beyond.over_budget[0]) == (State.ROUNDING, 1.0)
    assert one(-INF, 65519.0, 2.0, size=6e4, dtype=np.float16).state[0] == State.NAN
    assert one(INF, 60000.0, 2.0, size=6e4, dtype=np.float16).state[0] == State.NAN


def test_exact_stage_allows_its_correct_rounding_and_nothing_else():
    third = np.float32(1 / 3)
    assert one(third, 1 / 3, 0.0).over_budget[0] <= 1
    assert one(third, 1 / 3, 0.0).exact
    neighbour = one(np.nextafter(third, np.float32(1)), 1 / 3, 0.0)
    assert neighbour.over_budget[0] > 1 and not neighbour.exact


def test_error_has_no_size_where_classes_differ():
    found = compared(np.array([2.0, -INF, NAN], np.float32), [1.5, -INF, 0.0], np.ones(3), np.full(3, 9.0))
    np.testing.assert_array_equal(found.error, [0.5, 0.0, NAN])


def stage(verdict, isolated=None, propagated=None) -> StageDiff:
    return StageDiff("lse", "k", verdict, isolated, propagated, reason="nobody dumped it")


def test_roles():
    good, bad, vacuous = one(1.0, 1.0, 0.1), one(2.0, 1.0, 0.1), one(1.0, 1.0, INF)
    assert stage("bug", bad, bad).role == "origin"
    assert stage("missing").role == "origin"
    assert stage("rounding", good, bad).role == "victim"
    assert stage("suspicious", good, good).role == "clean"
    assert stage("untestable", None, vacuous).role == "not judged"
    assert stage("not judged").role == "not judged"


def test_worst_elements_come_first_and_unjudged_ones_never():
    expected = np.array([0.0, 0.0, NAN, 0.0])
    isolated = compared(np.array([0.5, 2.0, 9.0, NAN], np.float32), expected, np.ones(4), np.full(4, 9.0))
    found = stage("bug", isolated).worst(10)
    assert [element.index for element in found] == [{"k": 3}, {"k": 1}, {"k": 0}]
    assert [element.over_budget for element in found] == [INF, 2.0, 0.5]


def test_of_errors_that_are_equal_but_for_the_order_of_sums_the_first_is_the_worst():
    """Whole, and of two parts."""
    expected = np.array([0.0, 1.0, 1 - 2.0**-50, 1 - 2.0**-51])
    found = compared(np.array([0, 2, 2, 2], np.float32), expected, np.full(4, 0.5), np.full(4, 9.0))
    over = found.elements.over_budget
    assert over[1] < over[3] < over[2] and found.summary.worst.place == (1,)
    swapped = replace(found.summary, worst=element(found, (2,)))
    assert (found.summary + swapped).worst.place == (swapped + found.summary).worst.place == (1,)


def test_stage_that_was_not_judged_says_why():
    with pytest.raises(Refusal, match=r"^stage lse was not judged: nobody dumped it$"):
        stage("not judged").worst()
