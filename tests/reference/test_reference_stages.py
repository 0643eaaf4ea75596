"""The stage functions on special values, stage by stage; what the casts reach."""

import numpy as np
import pytest

from workbench.case.case import Case
from workbench.floats import round_to
from workbench.reference import online, split_k

pytestmark = pytest.mark.filterwarnings("error")

INF, NAN = np.inf, np.nan


def column(*values):
    """A float64 array [len(values), 1]: one key (or dim) for each query."""
    return np.array(values, float)[:, None]


def row(*values):
    return np.array(values, float)


def assert_same(actual, expected):
    """The same numbers, NaN in the same places."""
    assert actual.size > 0 and np.array_equal(actual, expected, equal_nan=True)


def test_scores_are_minus_infinity_where_masked_whatever_is_there():
    qk = np.array([[1.0, NAN, INF], [NAN, 2.0, -INF]])
    mask = np.array([[True, False, False], [True, True, True]])
    assert_same(online.scores(qk, 0.5, mask), np.array([[0.5, -INF, -INF], [NAN, 1.0, -INF]]))


def test_row_max_keeps_nan_and_starts_from_minus_infinity():
    previous = row(-INF, -INF, 1, 3, NAN, 1)
    tile = np.array([[-INF, -INF], [2, 1], [2, 0], [2, 0], [5, 5], [7, NAN]])
    assert_same(online.row_max(previous, tile), row(-INF, 2, 2, 3, NAN, NAN))
    assert_same(online.row_max(-INF, tile), row(-INF, 2, 2, 2, 5, NAN))


@pytest.mark.parametrize(
    ("previous", "now", "expected"),
    [
        (0.0, 0.0, 1.0),
        (-INF, 3.0, 0.0),
        (-INF, -INF, 0.0),  # IEEE: exp(-inf - -inf) is NaN
        (-INF, INF, 0.0),
        (-800.0, 0.0, 0.0),  # exp underflows
        (INF, INF, NAN),
        (0.0, INF, 0.0),
        (NAN, 0.0, NAN),
        (0.0, NAN, NAN),
        (-INF, NAN, NAN),
    ],
)
def test_correction(previous, now, expected):
    assert_same(online.correction(row(previous), row(now)), row(expected))
    # a split's weight is the same function of other arguments: partial_max [.., s, q] and merge_max [.., q]
    assert_same(split_k.merge_weight(np.array([[previous]]), row(now)), np.array([[expected]]))


@pytest.mark.parametrize(
    ("score", "maximum", "expected"),
    [
        (2.0, 2.0, 1.0),
        (-INF, 2.0, 0.0),
        (-INF, -INF, 0.0),  # a row that has seen no key
        (-INF, INF, 0.0),
        (INF, INF, NAN),
        (0.0, INF, 0.0),
        (0.0, -INF, INF),  # a maximum that missed its key
        (NAN, 0.0, NAN),
        (0.0, NAN, NAN),
        (-INF, NAN, NAN),
    ],
)
def test_probs(score, maximum, expected):
    assert_same(online.probs(column(score), row(maximum)), column(expected))


def test_a_probability_of_zero_does_not_hide_bad_values():
    zero = np.zeros((1, 1, 1))
    for bad in (NAN, INF, -INF):
        v = np.full((1, 1, 1, 1), bad)
        assert_same(online.acc(zero, 0.0, np.zeros((1, 1, 1, 1)), v), np.full((1, 1, 1, 1), NAN))
        assert_same(online.row_sum(zero, np.full((1, 1, 1), bad), np.ones((1, 1, 1, 1))), np.full((1, 1, 1), NAN))


@pytest.mark.parametrize(
    ("acc", "row_sum", "expected"),
    [
        (3.0, 2.0, 1.5),
        (0.0, 0.0, 0.0),
        (3.0, 0.0, 0.0),
        (INF, 0.0, 0.0),
        (NAN, 0.0, NAN),
        (1.0, NAN, NAN),
        (INF, INF, NAN),
    ],
)
def test_out(acc, row_sum, expected):
    assert_same(online.out(column(acc), row(row_sum)), column(expected))
    merged = split_k.merged_out(np.ones((1, 1)), np.array([[[acc]]]), row(row_sum))  # one split of weight 1
    assert_same(merged, column(expected))


@pytest.mark.parametrize(
    ("maximum", "total", "expected"),
    [
        (3.0, 1.0, 3.0),
        (-INF, 0.0, -INF),
        (3.0, 0.0, -INF),
        (INF, 0.0, -INF),
        (NAN, 0.0, NAN),
        (0.0, NAN, NAN),
        (0.0, -1.0, NAN),
        (-INF, INF, NAN),
    ],
)
def test_lse(maximum, total, expected):
    assert_same(online.lse(row(maximum), row(total)), row(expected))
    assert_same(split_k.merged_lse(row(maximum), row(total)), row(expected))


def test_merge_max_and_merge_sum():
    partial_max = np.array([[0.0, -INF, NAN, -INF], [-INF, -INF, 0.0, 2.0]])
    partial_sum = np.array([[1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 1.0, 4.0]])
    maximum = split_k.merge_max(partial_max)
    assert_same(maximum, row(0, -INF, NAN, 2))
    assert_same(split_k.merge_sum(partial_max, maximum, partial_sum), row(1, 0, NAN, 4))


CASE = Case(heads=2, seqlen_q=5, seqlen_k=20, head_dim=8, causal=True)
OPTIONS = dict(scale=CASE.scale, mask=CASE.mask(), block_k=4)


def to_float16(x):
    return round_to(x, "float16")


def test_cast_reaches_acc_and_row_sum_only_where_asked():
    q, k, v = CASE.inputs()
    plain = online.forward(q, k, v, **OPTIONS)
    cast = online.forward(q, k, v, **OPTIONS, cast=to_float16)
    both = online.forward(q, k, v, **OPTIONS, cast=to_float16, row_sum_of_cast=True)
    assert_same(plain["probs_cast"], plain["probs"])
    assert_same(cast["probs_cast"], to_float16(plain["probs"]))
    assert np.any(cast["probs_cast"] != cast["probs"])
    assert_same(cast["probs"], plain["probs"])
    assert_same(cast["row_sum"], plain["row_sum"])
    assert np.any(cast["acc"] != plain["acc"])
    assert_same(both["acc"], cast["acc"])
    last_tile = both["probs_cast"][..., 16:].sum(axis=-1)
    assert_same(both["row_sum"][..., -1], both["correction"][..., -1] * both["row_sum"][..., -2] + last_tile)
    assert np.any(both["row_sum"] != cast["row_sum"])


def test_partial_cast_rounds_what_the_merge_reads():
    q, k, v = CASE.inputs()
    plain = split_k.forward(q, k, v, **OPTIONS, splits=2)
    cast = split_k.forward(q, k, v, **OPTIONS, splits=2, partial_cast=to_float16)
    assert_same(cast["partial_O"], to_float16(plain["partial_O"]))
    for name in ("acc", "partial_sum", "merge_sum", "lse"):
        assert_same(cast[name], plain[name])
    merged = (cast["merge_weight"][..., None] * cast["partial_O"]).sum(axis=2) / cast["merge_sum"][..., None]
    assert_same(cast["out"], merged)
    assert np.any(cast["out"] != plain["out"])


def test_flash_with_splits_has_tile_stages_and_no_output():
    q, k, v = CASE.inputs()
    split = online.forward(q, k, v, **OPTIONS, splits=2)
    assert tuple(split) == online.TILE_STAGES
    merged = split_k.forward(q, k, v, **OPTIONS, splits=2)
    assert all(np.array_equal(split[name], merged[name]) for name in online.TILE_STAGES)
