"""What a case draws for its inputs."""

import re

import numpy as np
import pytest

from workbench.case.case import Case
from workbench.case.distributions import DISTRIBUTIONS
from workbench.floats import DTYPES, round_to
from workbench.refusal import Refusal

pytestmark = pytest.mark.filterwarnings("error")


def inputs64(case):
    return tuple(x.astype(np.float64) for x in case.inputs())


def scores_of(case):
    """Dot products q @ k times scale, [b, heads, q, k]."""
    q, k, _ = inputs64(case)
    return q @ np.repeat(k, case.heads // case.kv_heads, axis=1).swapaxes(-1, -2) * case.scale


def attend(case):
    """Softmax of the visible scores, and its product with v; every row must see a key."""
    weights = np.where(case.mask(), scores_of(case), -np.inf)
    weights = np.exp(weights - weights.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights, weights @ np.repeat(inputs64(case)[2], case.heads // case.kv_heads, axis=1)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_inputs_are_repeatable_finite_and_in_the_dtype_of_the_case(distribution, dtype):
    case = Case(
        batch=2, heads=4, kv_heads=2, seqlen_q=9, seqlen_k=13, head_dim=9, dtype=dtype, distribution=distribution
    )
    first, again = case.inputs(), case.inputs()
    assert [x.shape for x in first] == [(2, 4, 9, 9), (2, 2, 13, 9), (2, 2, 13, 9)]
    for x, y in zip(first, again, strict=True):
        assert x.dtype == DTYPES[dtype] and x.tobytes() == y.tobytes() and np.all(np.isfinite(x.astype(np.float64)))
    other = case.but(seed=1).inputs()
    drawn = distribution not in ("one-hot", "index-coded", "comb")
    assert any(x.tobytes() != y.tobytes() for x, y in zip(first, other, strict=True)) == drawn


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_inputs_are_the_float32_inputs_rounded(dtype):
    # one float32 number in 2^13 is a float16 midpoint, where a cast of what was drawn in float64 may go the other way
    wide, narrow = inputs64(Case(seqlen=1024)), inputs64(Case(seqlen=1024, dtype=dtype))
    for x, rounded in zip(wide, narrow, strict=True):
        assert np.array_equal(rounded, round_to(x, dtype)) and np.any(rounded != x)


def flat(case):
    return np.concatenate([np.ravel(x) for x in inputs64(case)])


@pytest.mark.parametrize(
    ("distribution", "std"), [("normal", 1.0), ("uniform", 1.0), ("large", 8.0), ("tiny", 2.0**-14)]
)
@pytest.mark.parametrize("input_std", [1.0, 0.25])
def test_mean_and_standard_deviation(distribution, std, input_std):
    x = flat(Case(seqlen=256, distribution=distribution, input_std=input_std)) / (std * input_std)
    assert x.size == 3 * 256 * 64
    # mean and mean square of n independent draws scatter by 1/sqrt(n) and at most sqrt(2/n): six of these
    assert abs(x.mean()) <= 6 / np.sqrt(x.size)
    assert abs(np.mean(x**2) - 1) <= 6 * np.sqrt(2 / x.size)
    # beyond sqrt(3) lie 8.3 % of a normal distribution and none of a uniform one
    beyond = np.mean(np.abs(x) > np.sqrt(3) * (1 + 2**-23))
    assert beyond == 0 if distribution == "uniform" else abs(beyond - 0.083) < 0.01


def test_tiny_reaches_the_subnormal_numbers_of_float16():
    x = np.abs(flat(Case(dtype="float16", distribution="tiny")))
    subnormal = np.mean((x > 0) & (x < 2.0**-14))
    assert 0.6 < subnormal < 0.75  # 68 % of a normal distribution lie within one standard deviation
    assert np.mean(np.abs(flat(Case(dtype="float16"))) < 2.0**-14) < 0.001


def test_outlier_channels():
    gain = np.where(np.isin(np.arange(64), [0, 16, 32, 48]), 20.0, 1.0)
    for x in inputs64(Case(seqlen=4096, distribution="outlier-channels")):
        squares = np.mean((x / gain) ** 2, axis=(0, 1, 2))  # of each channel; scatters by sqrt(2 / 4096) = 2.2 %
        assert np.all(np.abs(squares - 1) < 6 * np.sqrt(2 / 4096))
        assert abs(squares[gain == 20].mean() - 1) < 6 * np.sqrt(2 / (4 * 4096))


@pytest.mark.parametrize("head_dim", [64, 63])
def test_near_cancelling_sums_are_far_smaller_than_their_terms(head_dim):
    case = Case(heads=2, kv_heads=1, seqlen=64, head_dim=head_dim, distribution="near-cancelling")

    def over_dims(case):
        q, k, _ = inputs64(case)
        return np.abs(q @ k.swapaxes(-1, -2)) / (np.abs(q) @ np.abs(k).swapaxes(-1, -2))

    def over_keys(case):
        _, _, v = inputs64(case)
        return np.abs(v.sum(axis=2)).sum() / np.abs(v).sum()

    # a pair is a * (1 - (1 + 2^-7 n)): 2^-8 n of its |terms|, and |n| stays below 5; the same for the pairs of v in all
    assert np.all(over_dims(case) <= 5 * 2.0**-8) and over_keys(case) <= 5 * 2.0**-8
    plain = case.but(distribution="normal")
    assert np.median(over_dims(plain)) > 10 * 2.0**-8 and over_keys(plain) > 10 * 2.0**-8
    # what is left is no zero: the terms differ
    assert np.all(over_dims(case) > 0)


@pytest.mark.parametrize(
    "shape", [dict(seqlen=40), dict(seqlen_q=50, seqlen_k=20), dict(heads=4, kv_heads=2, seqlen=30)]
)
def test_peaked_rows_attend_to_one_key(shape):
    case = Case(distribution="peaked", **shape)
    weights, _ = attend(case)
    own = np.arange(case.seqlen_q) % case.seqlen_k
    assert np.all(weights.argmax(axis=-1) == own)
    assert np.quantile(weights.max(axis=-1), 0.01) > 0.99
    assert np.quantile(attend(case.but(distribution="normal"))[0].max(axis=-1), 0.99) < 0.9


@pytest.mark.parametrize("input_std", [1.0, 0.25])
def test_constant_v_gives_input_std_everywhere(input_std):
    case = Case(seqlen=33, distribution="constant-v", input_std=input_std, causal=True)
    _, out = attend(case)
    assert np.all(inputs64(case)[2] == input_std) and np.all(np.abs(out - input_std) < 1e-14)
    assert np.all(np.ptp(inputs64(case)[0], axis=2) > 0)


def test_zero_head_is_kv_head_0_and_its_query_heads():
    case = Case(heads=6, kv_heads=3, seqlen=17, distribution="zero-head")
    q, k, v = inputs64(case)
    assert np.all(q[:, :2] == 0) and np.all(k[:, 0] == 0) and np.all(v[:, 0] == 0)
    assert np.all(q[:, 2:] != 0) and np.all(k[:, 1:] != 0) and np.all(v[:, 1:] != 0)


def test_one_hot_written_out():
    q, k, v = inputs64(Case(seqlen_q=3, seqlen_k=4, head_dim=2, distribution="one-hot", input_std=0.5))
    assert q[0, 0].tolist() == [[4, 0], [0, 4], [4, 0]]
    assert k[0, 0].tolist() == [[4, 0], [0, 4], [4, 0], [0, 4]]
    assert v[0, 0].tolist() == [[0.5, 0], [0, 0.5], [0.5, 0], [0, 0.5]]


@pytest.mark.parametrize("distribution", ["exact", "exact-ties"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        dict(causal=True, scale=0.3),
        dict(causal=True, causal_alignment="top-left", scale=-0.05),
        dict(window=(20, 3), softcap=256.0),
        dict(seqlen_q=130, seqlen_k=100, causal=True, softcap=1e6),
    ],
)
def test_exact_inputs_leave_a_right_kernel_nothing_to_round(distribution, dtype, options):
    sizes = dict(batch=2, heads=4, kv_heads=2, head_dim=16) | ({} if "seqlen_q" in options else {"seqlen": 100})
    case = Case(**sizes, dtype=dtype, distribution=distribution, **options)
    q, k, v = (np.repeat(x, 4 // x.shape[1], axis=1) for x in inputs64(case))
    terms = q[:, :, :, None, :] * k[:, :, None, :, :]
    assert np.array_equal(terms, terms.astype(np.float32))
    scores = terms.sum(-1) * case.scale
    if case.softcap is not None:
        scores = case.softcap * np.tanh(scores / case.softcap)
    mask = case.mask()
    seen = mask.any(axis=1)
    scores = np.where(mask, scores, -np.inf)[:, :, seen]
    assert np.all(scores.max(axis=-1) == 0) and np.all((scores == 0) | (scores < -200))
    # where the score is 0 no product is anything else, so that a scale of q or k before it rounds nothing either
    assert not np.any(terms[:, :, seen][scores == 0])
    ties = (scores == 0).sum(axis=-1)
    assert set(np.unique(ties)) == ({1} if distribution == "exact" else {1, 2, 4, 8})
    out = (scores == 0) @ v / ties[..., None]
    assert np.array_equal(out, round_to(out, "bfloat16")) and len(np.unique(out)) >= 9


def test_exact_inputs_tell_heads_and_batches_apart():
    """The same key of another head or batch never has the score 0 throughout."""
    q, k, _ = inputs64(Case(batch=3, heads=3, seqlen=64, head_dim=16, distribution="exact"))
    zero = (np.einsum("bhqd,cgkd->bhcgqk", q, k) == 0).any(axis=-1).all(axis=-1)
    places = zero.reshape(9, 9)
    assert np.all(places.diagonal())
    same = (np.einsum("bhqd,cgkd->bhcgqk", q, k) == 0).argmax(axis=-1).reshape(9, 9, 64)
    assert all(not np.array_equal(same[i, i], same[i, j]) for i in range(9) for j in range(9) if i != j)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", [{}, dict(causal=True), dict(causal=True, causal_alignment="top-left")])
def test_index_coded_output_reads_the_key(dtype, mask):
    case = Case(
        heads=2, kv_heads=1, seqlen_q=20, seqlen_k=37, head_dim=24, dtype=dtype, distribution="index-coded", **mask
    )
    weights, out = attend(case)
    for i in range(20):
        visible = int(case.mask()[i].sum())
        key = (5 * i + 3) % visible
        assert np.all(weights[:, :, i, key] == 1.0)
        # the other keys weigh less than exp(-400): nothing is left of them in float32
        assert np.array_equal(out[0, 0, i].astype(np.float32), [16 * (key % 16) + d % 16 for d in range(24)])
    assert len({row.tobytes() for row in out[0, 0]}) > 5  # not all queries look at one key


def test_inputs_that_overflow_their_dtype_are_refused():
    with pytest.raises(Refusal) as refused:
        Case(dtype="float16", input_std=1e30).inputs()
    assert str(refused.value) == "inputs must be finite in float16; normal with input_std=1e+30 overflows in q"


def test_inputs_that_do_not_fit_in_memory_are_refused_before_they_are_drawn():
    with pytest.raises(Refusal) as refused:
        Case(seqlen=10**10).inputs()
    assert re.fullmatch(
        r"q \[1, 1, 10000000000, 64\], k and v \[1, 1, 10000000000, 64\] are drawn in float64 and need "
        r"1.54e\+04 GB; this machine has [\d.]+(e\+\d+)? GB: choose smaller lengths",
        str(refused.value),
    )
