"""Algebra of attention, over drawn cases."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.reference.conftest import tiled
from workbench.case.case import Case
from workbench.case.fields import ALIGNMENTS

pytestmark = pytest.mark.filterwarnings("error")

# The terms of a score sum to 10^3 or so in absolute value (outlier channels: 9 dims, one of them 20 * 20 larger), so
# that it, and every weight relatively, is off by 10 * 10^3 * 2^-53 = 1e-12 at worst; out by ten times that at |v| = 10.
CLOSE = 1e-11

cases = st.builds(
    Case,
    batch=st.integers(1, 2),
    heads=st.sampled_from([2, 4]),
    kv_heads=st.sampled_from([1, 2]),
    seqlen_q=st.integers(1, 12),
    seqlen_k=st.integers(1, 20),
    head_dim=st.integers(1, 9),
    causal=st.booleans(),
    causal_alignment=st.sampled_from(ALIGNMENTS),
    seed=st.integers(0, 100),
    distribution=st.sampled_from(["normal", "peaked", "outlier-channels", "zero-head"]),
)
quick = settings(max_examples=25, deadline=None)


def inputs(case):
    return tuple(x.astype(np.float64) for x in case.inputs())


def assert_close(actual, expected):
    assert actual.shape == expected.shape and actual.size > 0
    finite = np.isfinite(expected)
    assert np.array_equal(actual[~finite], expected[~finite])
    assert np.all(np.abs(actual[finite] - expected[finite]) <= CLOSE * np.maximum(1, np.abs(expected[finite])))


@pytest.mark.campaign(every=4)
@quick
@given(case=cases, shift=st.floats(-60, 60))
def test_adding_a_number_to_every_score_shifts_lse_and_leaves_out(attention, case, shift):
    q, k, v = inputs(case)
    plain = attention(q, k, v, scale=1.0, mask=case.mask())
    one = np.ones((*q.shape[:3], 1))  # a further dim adds 1 * shift to every dot product
    shifted_k = np.concatenate([k, np.full((*k.shape[:3], 1), shift)], axis=-1)
    shifted = attention(np.concatenate([q, one], axis=-1), shifted_k, v, scale=1.0, mask=case.mask())
    assert_close(shifted["lse"], plain["lse"] + shift)
    assert_close(shifted["out"], plain["out"])


@pytest.mark.campaign(but=4)
@quick
@given(case=cases, data=st.data())
def test_the_order_of_the_keys_does_not_matter(attention, case, data):
    q, k, v = inputs(case)
    order = data.draw(st.permutations(range(case.seqlen_k)))
    plain = attention(q, k, v, scale=case.scale, mask=case.mask())
    permuted = attention(q, k[:, :, order], v[:, :, order], scale=case.scale, mask=case.mask()[:, order])
    assert_close(permuted["out"], plain["out"])
    assert_close(permuted["lse"], plain["lse"])


@pytest.mark.campaign(but=4)
@quick
@given(case=cases)
def test_a_row_attends_to_its_visible_keys_only(attention, case):
    q, k, v = inputs(case)
    mask = case.mask()
    result = attention(q, k, v, scale=case.scale, mask=mask)
    for i, visible in enumerate(mask):
        if not visible.any():
            assert np.all(result["out"][:, :, i] == 0) and np.all(result["lse"][:, :, i] == -np.inf)
            continue
        row = q[:, :, i : i + 1]
        alone = attention(
            row, k[:, :, visible], v[:, :, visible], scale=case.scale, mask=np.ones((1, visible.sum()), bool)
        )
        assert_close(result["out"][:, :, i : i + 1], alone["out"])
        assert_close(result["lse"][:, :, i : i + 1], alone["lse"])


@pytest.mark.campaign(every=4)
@quick
@given(case=cases)
def test_out_is_a_mean_of_visible_values(attention, case):
    q, k, v = inputs(case)
    result = attention(q, k, np.ones_like(v), scale=case.scale, mask=case.mask())
    sees = case.mask().any(axis=1)
    expected = np.broadcast_to(np.where(sees, 1.0, 0.0)[:, None], result["out"].shape)
    assert_close(result["out"], expected)


@quick
@given(case=cases, block_k=st.integers(1, 24), splits=st.integers(1, 6))
def test_tiles_and_splits_do_not_matter(case, block_k, splits):
    options = dict(scale=case.scale, mask=case.mask())
    whole = tiled("flash", case.seqlen_k)(*inputs(case), **options)
    by_tile = tiled("flash", block_k)(*inputs(case), **options)
    merged = tiled("split_k", block_k, splits)(*inputs(case), **options)
    for name in ("out", "lse"):
        assert_close(by_tile[name], whole[name])
        assert_close(merged[name], whole[name])


@quick
@given(case=cases, block_k=st.integers(1, 24))
def test_the_denominator_is_the_sum_over_keys_at_the_last_maximum(case, block_k):
    stages = tiled("flash", block_k)(*inputs(case), scale=case.scale, mask=case.mask())
    last_max = stages["row_max"][..., -1:]
    sees = np.isfinite(last_max)
    total = np.exp(stages["scores"] - np.where(sees, last_max, 0.0)).sum(axis=-1)
    assert_close(stages["row_sum"][..., -1], total)
    assert np.all(stages["row_max"][..., 1:] >= stages["row_max"][..., :-1])
    assert np.all((stages["probs"] >= 0) & (stages["probs"] <= 1))
    assert np.all((stages["correction"] >= 0) & (stages["correction"] <= 1))
