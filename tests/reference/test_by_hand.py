"""Cases worked by hand: scores are logarithms of small whole numbers, so that the weights are those numbers."""

from fractions import Fraction as F
from math import inf, log

import numpy as np
import pytest

from tests.reference.conftest import tiled
from workbench.case.case import Case

pytestmark = pytest.mark.filterwarnings("error")

# log, exp, three sums and a division of numbers below 18: about ten roundings of 2^-53 each, relative to the result
CLOSE = 16 * 2.0**-53


def problem(weights, v):
    """q, k, v with exp(q @ k) = weights: query i is the i-th unit vector, key j holds the logarithms of column j."""
    weights = np.array(weights, float)
    q = np.eye(len(weights))[None, None]
    k = np.log(weights).T[None, None]
    return q, k, np.array(v, float)[None, None]


def assert_close(actual, expected):
    expected = np.array(expected, float)
    assert actual.shape == expected.shape and actual.size > 0
    finite = np.isfinite(expected)
    assert np.array_equal(actual[~finite], expected[~finite])
    assert np.all(np.abs(actual[finite] - expected[finite]) <= CLOSE * np.maximum(1, np.abs(expected[finite])))


# (weights, visible, v, out, sums of weights): out = sum of weight * v over visible keys / sum of their weights
WORKED = {
    "2x2": (
        [[1, 2], [3, 1]],
        [[1, 1], [1, 1]],
        [[3, 0], [6, 12]],
        [[F(1, 3) * 3 + F(2, 3) * 6, F(2, 3) * 12], [F(3, 4) * 3 + F(1, 4) * 6, F(1, 4) * 12]],
        [3, 4],
    ),
    "2x2 causal": ([[1, 2], [3, 1]], [[1, 0], [1, 1]], [[3], [6]], [[3], [F(15, 4)]], [1, 4]),
    "2x3": ([[1, 2, 3], [2, 2, 4]], [[1, 1, 1], [1, 1, 1]], [[6], [12], [18]], [[14], [F(27, 2)]], [6, 8]),
    "2x3 causal, bottom-right": (
        [[1, 2, 7], [1, 2, 3]],
        [[1, 1, 0], [1, 1, 1]],
        [[6], [12], [18]],
        [[F(6 + 24, 3)], [F(6 + 24 + 54, 6)]],
        [3, 6],
    ),
    "2x3 causal, top-left": ([[1, 2, 7], [1, 2, 3]], [[1, 0, 0], [1, 1, 0]], [[6], [12], [18]], [[6], [10]], [1, 3]),
    "3x2 causal, bottom-right": (
        [[5, 7], [2, 9], [1, 3]],
        [[0, 0], [1, 0], [1, 1]],
        [[5], [8]],
        [[0], [5], [F(5 + 24, 4)]],
        [0, 2, 4],
    ),
    "3x3 causal": (
        [[2, 9, 9], [1, 1, 9], [1, 2, 6]],
        [[1, 0, 0], [1, 1, 0], [1, 1, 1]],
        [[6, 1], [12, 0], [18, 0]],
        [[6, 1], [9, F(1, 2)], [F(6 + 24 + 108, 9), F(1, 9)]],
        [2, 2, 9],
    ),
    "3x3, middle key hidden, last row empty": (
        [[1, 5, 3], [2, 5, 1], [1, 1, 1]],
        [[1, 0, 1], [1, 0, 1], [0, 0, 0]],
        [[4], [100], [8]],
        [[7], [F(16, 3)], [0]],
        [4, 3, 0],
    ),
}


@pytest.mark.parametrize("name", WORKED)
def test_worked_cases(attention, name):
    weights, visible, v, out, sums = WORKED[name]
    result = attention(*problem(weights, v), scale=1.0, mask=np.array(visible, bool))
    assert_close(result["out"][0, 0], out)
    assert_close(result["lse"][0, 0], [log(total) if total else -inf for total in sums])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("2x2 causal", dict(seqlen=2)),
        ("2x3 causal, bottom-right", dict(seqlen_q=2, seqlen_k=3)),
        ("2x3 causal, top-left", dict(seqlen_q=2, seqlen_k=3, causal_alignment="top-left")),
        ("3x2 causal, bottom-right", dict(seqlen_q=3, seqlen_k=2)),
        ("3x3 causal", dict(seqlen=3)),
    ],
)
def test_the_masks_written_out_above_are_those_of_a_case(name, options):
    assert np.array_equal(Case(causal=True, **options).mask(), np.array(WORKED[name][1], bool))


def test_scale_multiplies_the_logarithms(attention):
    # scale 2 squares the weights 1 and 3: out = (1 * 10 + 9 * 20) / 10
    result = attention(*problem([[1, 3]], [[10], [20]]), scale=2.0, mask=np.ones((1, 2), bool))
    assert_close(result["out"], [[[[F(190, 10)]]]])
    assert_close(result["lse"], [[[log(10)]]])


def test_query_heads_share_kv_heads_in_groups(attention):
    # heads 0, 1 read kv head 0 (v = 1, 2), heads 2, 3 read kv head 1 (v = 10, 40);
    # the keys weigh 1 and 2 for even heads, 1 and 1 for odd ones
    q = np.array([1.0, 0.0, 1.0, 0.0]).reshape(1, 4, 1, 1)
    k = np.log([[[[1.0], [2.0]]] * 2]).reshape(1, 2, 2, 1)
    v = np.array([[1.0, 2.0], [10.0, 40.0]]).reshape(1, 2, 2, 1)
    result = attention(q, k, v, scale=1.0, mask=np.ones((1, 2), bool))
    assert_close(result["out"].reshape(4), [F(5, 3), F(3, 2), 30, 25])


# One query, weights 1, 2, 6, one key a tile: the maximum moves at every tile, and each state is a small fraction.
STEPS = {
    "row_max": [log(1), log(2), log(6)],
    "correction": [0, F(1, 2), F(1, 3)],
    "probs": [1, 1, 1],
    "row_sum": [1, F(1, 2) + 1, F(3, 2) / 3 + 1],
    "acc": [6, F(6, 2) + 12, F(15, 3) + 18],
}


def test_every_step_of_the_running_state():
    stages = tiled("flash", 1)(*problem([[1, 2, 6]], [[6], [12], [18]]), scale=1.0, mask=np.ones((1, 3), bool))
    for name, expected in STEPS.items():
        assert_close(stages[name].reshape(3), expected)
    assert_close(stages["out"].reshape(1), [F(23) / F(3, 2)])
    assert_close(stages["lse"].reshape(1), [log(9)])


def test_tiles_of_two_share_a_maximum():
    # weights 1, 2 | 6: the first key is measured against the maximum of its tile, 2
    stages = tiled("flash", 2)(*problem([[1, 2, 6]], [[6], [12], [18]]), scale=1.0, mask=np.ones((1, 3), bool))
    assert_close(stages["probs"].reshape(3), [F(1, 2), 1, 1])
    assert_close(stages["row_sum"].reshape(2), [F(3, 2), F(3, 2)])
    assert_close(stages["acc"].reshape(2), [15, 23])


@pytest.mark.parametrize("masked", ["first", "all"])
def test_a_tile_without_visible_keys(masked):
    mask = np.array([[False, masked == "first"]])
    stages = tiled("flash", 1)(*problem([[4, 2]], [[6], [12]]), scale=1.0, mask=mask)
    second = masked == "first"
    assert_close(stages["row_max"].reshape(2), [-inf, log(2) if second else -inf])
    assert_close(stages["correction"].reshape(2), [0, 0])
    assert_close(stages["probs"].reshape(2), [0, second])
    assert_close(stages["row_sum"].reshape(2), [0, second])
    assert_close(stages["out"].reshape(1), [12 * second])


def test_every_step_of_the_merge_with_a_split_that_has_no_tile():
    # 3 tiles in 4 splits: one tile each, and the fourth split empty
    args = problem([[1, 2, 6]], [[6], [12], [18]])
    stages = tiled("split_k", 1, 4)(*args, scale=1.0, mask=np.ones((1, 3), bool))
    assert_close(stages["correction"].reshape(3), [0, 0, 0])  # every split starts anew
    assert_close(stages["partial_max"].reshape(4), [log(1), log(2), log(6), -inf])
    assert_close(stages["partial_sum"].reshape(4), [1, 1, 1, 0])
    assert_close(stages["partial_O"].reshape(4), [6, 12, 18, 0])
    assert_close(stages["merge_max"].reshape(1), [log(6)])
    assert_close(stages["merge_weight"].reshape(4), [F(1, 6), F(1, 3), 1, 0])
    assert_close(stages["merge_sum"].reshape(1), [F(3, 2)])
    assert_close(stages["out"].reshape(1), [F(46, 3)])
    assert_close(stages["lse"].reshape(1), [log(9)])


def test_two_splits_of_two_tiles_and_one():
    args = problem([[1, 2, 6]], [[6], [12], [18]])
    stages = tiled("split_k", 1, 2)(*args, scale=1.0, mask=np.ones((1, 3), bool))
    assert_close(stages["correction"].reshape(3), [0, F(1, 2), 0])
    assert_close(stages["partial_sum"].reshape(2), [F(3, 2), 1])
    assert_close(stages["partial_O"].reshape(2), [15, 18])
    assert_close(stages["merge_weight"].reshape(2), [F(1, 3), 1])
    assert_close(stages["out"].reshape(1), [F(46, 3)])
