"""The steps on special values, one by one; what the casts reach."""

from dataclasses import replace

import numpy as np
import pytest

from tests.reference.conftest import tiled
from workbench.case.case import Case
from workbench.case.stages import ALGORITHMS, shape
from workbench.floats import round_to
from workbench.reference.forward import PLAIN, forward

pytestmark = pytest.mark.filterwarnings("error")

INF, NAN = np.inf, np.nan


def row(*values):
    return np.array(values, float)


def assert_same(actual, expected):
    """The same numbers, NaN in the same places."""
    assert actual.size > 0 and np.array_equal(actual, expected, equal_nan=True)


def made(name, given, *, v=1.0, mask=True, scale=1.0, tiles=1, splits=None, softcap=None, attn_bias=None):
    """What the step of `name` makes of `given`, stages of one batch and head by name, of as many queries as the first
    has, one key a tile, and one dim.
    """
    algorithm = "flash" if splits is None else "split_k"
    sizes = {"b": 1, "h": 1, "k": tiles, "t": tiles, "d": 1, "s": splits or 1}
    first, array = next(iter(given.items()))
    stages = ALGORITHMS[algorithm]
    sizes["q"] = array.shape[stages[first].axes[2:].index("q")]
    q, k = np.zeros((1, 1, sizes["q"], 1)), np.zeros((1, 1, tiles, 1))
    found = forward(
        algorithm, q, k, np.full_like(k, v), scale=scale, mask=np.broadcast_to(mask, (sizes["q"], tiles)),
        attn_bias=attn_bias, softcap=softcap, contract=replace(PLAIN, block_k=1, splits=splits),
        given={other: x.reshape(shape(stages[other], sizes)) for other, x in given.items()},
    )  # fmt: skip
    return found[name][0, 0]


def test_scores_are_minus_infinity_where_masked_whatever_is_there():
    qk = np.array([[1.0, NAN, INF], [NAN, 2.0, -INF]])
    mask = np.array([[True, False, False], [True, True, True]])
    expected = np.array([[0.5, -INF, -INF], [NAN, 1.0, -INF]])
    assert_same(made("scores", {"qk": qk}, scale=0.5, mask=mask, tiles=3), expected)
    bias = np.array([[3.0, NAN, NAN], [0.0, -INF, INF]])
    expected = np.array([[3.5, -INF, -INF], [NAN, -INF, NAN]])
    assert_same(made("scores", {"qk": qk}, scale=0.5, mask=mask, tiles=3, attn_bias=bias), expected)
    # a softcap hides an infinite score, but no NaN, and is no business of a masked one
    capped = np.array([[2 * np.tanh(0.25), NAN, 2.0], [NAN, 2 * np.tanh(0.5), -2.0]])
    assert_same(made("capped", {"qk": qk}, scale=0.5, mask=mask, tiles=3, softcap=2.0), capped)
    expected = np.where(mask, capped, -INF)
    assert_same(made("scores", {"capped": capped}, scale=0.5, mask=mask, tiles=3, softcap=2.0), expected)


def test_row_max_keeps_nan_and_starts_from_minus_infinity():
    previous = row(-INF, -INF, 1, 3, NAN, 1)
    tile = row(-INF, 2, 2, 2, 5, NAN)
    scores, row_max = (np.stack([x, y], axis=1) for x, y in ((np.zeros(6), tile), (previous, previous)))
    found = made("row_max", {"scores": scores, "row_max": row_max}, tiles=2)
    assert_same(found[:, 1], row(-INF, 2, 2, 3, NAN, NAN))
    assert_same(made("row_max", {"scores": tile[:, None]})[:, 0], tile)
    # of several keys in one tile
    q, k = np.zeros((1, 1, 3, 1)), np.zeros((1, 1, 2, 1))
    scores = np.array([[-INF, -INF], [2, 1], [7, NAN]])[None, None]
    options = dict(scale=1.0, mask=np.ones((3, 2), bool), given={"scores": scores})
    assert_same(tiled("flash", 2)(q, k, k, **options)["row_max"][0, 0, :, 0], row(-INF, 2, NAN))


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
    assert_same(made("correction", {"row_max": row(previous, now)[None]}, tiles=2)[:, 1], row(expected))
    # a split's weight is the same step with other reads: partial_max [.., s, q] and merge_max [.., q]
    given = {"merge_max": row(now), "partial_max": row(previous, previous)[:, None]}
    assert_same(made("merge_weight", given, tiles=2, splits=2), row(expected, expected)[:, None])


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
    assert_same(made("probs", {"scores": row(score)[None], "row_max": row(maximum)[None]}), row(expected)[None])


def test_a_probability_of_zero_does_not_hide_bad_values():
    zero = np.zeros((1, 2))
    for bad in (NAN, INF, -INF):
        assert_same(made("acc", {"probs_cast": zero, "correction": zero}, v=bad, tiles=2), np.full((1, 2, 1), NAN))
        given = {"correction": zero, "row_sum": row(bad, bad)[None], "probs": zero}
        assert_same(made("row_sum", given, tiles=2)[:, 1], row(NAN))


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
    assert_same(made("out", {"row_sum": row(row_sum)[None], "acc": row(acc)}), row(expected)[None])
    merged = {"merge_sum": row(row_sum), "merge_weight": row(1), "partial_O": row(acc)}  # one split of weight 1
    assert_same(made("out", merged, splits=1), row(expected)[None])


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
    assert_same(made("lse", {"row_max": row(maximum)[None], "row_sum": row(total)[None]}), row(expected))
    assert_same(made("lse", {"merge_max": row(maximum), "merge_sum": row(total)}, splits=1), row(expected))


def test_merge_max_and_merge_sum():
    partial_max = np.array([[0.0, -INF, NAN, -INF], [-INF, -INF, 0.0, 2.0]])
    partial_sum = np.array([[1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 1.0, 4.0]])
    given = {"partial_max": partial_max, "partial_sum": partial_sum}
    assert_same(made("merge_max", given, tiles=2, splits=2), row(0, -INF, NAN, 2))
    assert_same(made("merge_sum", given, tiles=2, splits=2), row(1, 0, NAN, 4))


CASE = Case(heads=2, seqlen_q=5, seqlen_k=20, head_dim=8, causal=True)
OPTIONS = dict(scale=CASE.scale, mask=CASE.mask())
CAST = replace(PLAIN, block_k=4, probs_dtype="float16")


def to_float16(x):
    return round_to(x, "float16")


def test_cast_reaches_acc_and_row_sum_only_where_asked():
    q, k, v = CASE.inputs()
    plain = tiled("flash", 4)(q, k, v, **OPTIONS)
    cast = forward("flash", q, k, v, **OPTIONS, contract=CAST)
    both = forward("flash", q, k, v, **OPTIONS, contract=replace(CAST, row_sum_of_cast=True))
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


@pytest.mark.parametrize(
    "change", [dict(assumed=("probs_rounding",)), dict(probs_rounding="any"), dict(block_k=None)], ids=lambda x: [*x][0]
)
def test_a_cast_that_is_not_known_is_not_made(change):
    """Whoever compares allows for it instead."""
    q, k, v = CASE.inputs()
    made = forward("flash", q, k, v, **OPTIONS, contract=replace(CAST, **change))
    assert_same(made["probs_cast"], made["probs"])


def test_partial_cast_rounds_what_the_merge_reads():
    q, k, v = CASE.inputs()
    plain = tiled("split_k", 4, 2)(q, k, v, **OPTIONS)
    contract = replace(PLAIN, block_k=4, splits=2, partials_dtype="float16")
    cast = forward("split_k", q, k, v, **OPTIONS, contract=contract)
    assert_same(cast["partial_O"], to_float16(plain["partial_O"]))
    for name in ("acc", "partial_sum", "merge_sum", "lse"):
        assert_same(cast[name], plain[name])
    merged = (cast["merge_weight"][..., None] * cast["partial_O"]).sum(axis=2) / cast["merge_sum"][..., None]
    assert_same(cast["out"], merged)
    assert np.any(cast["out"] != plain["out"])


def test_the_states_of_splits_start_anew():
    """Each split's are those of its keys alone."""
    q, k, v = CASE.inputs()
    merged = tiled("split_k", 4, 2)(q, k, v, **OPTIONS)
    for tiles, keys in ((slice(0, 3), slice(0, 12)), (slice(3, 5), slice(12, 20))):
        mask = CASE.mask()[:, keys]
        alone = tiled("flash", 4)(q, k[:, :, keys], v[:, :, keys], scale=CASE.scale, mask=mask)
        for name in ("row_max", "correction", "row_sum"):
            assert_same(merged[name][..., tiles], alone[name])
        assert_same(merged["probs"][..., keys], alone["probs"])
        assert_same(merged["acc"][:, :, :, tiles], alone["acc"])
