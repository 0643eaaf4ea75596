import json
import re
from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from workbench.case.case import Case
from workbench.case.distributions import DISTRIBUTIONS
from workbench.case.formats import FORMATS
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


# ---- the record


def test_defaults():
    assert Case().as_dict() == {
        "batch": 1, "heads": 1, "kv_heads": 1, "seqlen_q": 128, "seqlen_k": 128, "head_dim": 64, "dtype": "float32",
        "seqlens_q": None, "seqlens_k": None, "head_dim_v": 64, "shared_kv": False,
        "alibi_slopes": None, "alibi_form": "distance", "sinks": None, "dropout_p": None, "score_mod": None,
        "mask_mod": None, "page_size": None, "kv_layout": "NHD", "pack_gqa": False, "scale_of": None, "codes_of": None,
        "causal": False, "causal_alignment": "bottom-right", "scale": 0.125, "softcap": None, "window": None,
        "splits": None, "block_q": None, "block_k": None, "probs_dtype": None,
        "codes": None, "scores": None, "decode": None, "quantiser_scale": None,
        "seed": 0, "distribution": "normal", "input_std": 1.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "lengths"),
    [
        (dict(seqlen=7), (7, 7)),
        (dict(seqlen_q=7), (7, 7)),
        (dict(seqlen_k=7), (7, 7)),
        (dict(seqlen_q=7, seqlen_k=9), (7, 9)),
        (dict(), (128, 128)),
    ],
)
def test_lengths(given, lengths):
    case = Case(**given)
    assert (case.seqlen_q, case.seqlen_k) == lengths


def test_scale_is_the_float32_that_kernels_take():
    assert Case(head_dim=3).scale == float(np.float32(3**-0.5)) != 3**-0.5
    assert Case(scale=0.1).scale == float(np.float32(0.1)) != 0.1
    assert Case(scale=-2).scale == -2.0


@pytest.mark.parametrize(
    "case",
    [
        Case(),
        Case(
            batch=2, heads=4, kv_heads=2, seqlen_q=3, seqlen_k=5, head_dim=8, dtype="bfloat16", causal=True, scale=0.3
        ),
        Case(
            causal_alignment="top-left", splits=3, block_q=16, block_k=32, seed=7, distribution="large", input_std=0.1
        ),
        Case(heads=np.int64(2), seqlen=np.int32(5)),
    ],
)
def test_a_case_survives_json(case):
    assert Case(**json.loads(json.dumps(case.as_dict()))) == case


def test_but_changes_what_it_names_only():
    case = Case(heads=4, seqlen_q=3, seqlen_k=5, seed=7)
    assert case.but(seed=8) == Case(heads=4, seqlen_q=3, seqlen_k=5, seed=8)
    assert case.but() == case
    assert case.but(seqlen_k=9).as_dict() == case.as_dict() | {"seqlen_k": 9}


def test_a_case_is_frozen():
    with pytest.raises(FrozenInstanceError):
        Case().seed = 1


def test_sizes():
    sizes = Case(batch=2, heads=6, kv_heads=3, seqlen_q=4, seqlen_k=5, head_dim=7).sizes
    assert sizes == {"b": 2, "h": 6, "kv_h": 3, "q": 4, "k": 5, "d": 7, "c": 256}
    sizes = Case(seqlen_k=33, block_k=16, splits=2).sizes
    assert (sizes["t"], sizes["s"]) == (3, 2)


ONE_TO_ALL = "normal, uniform, large, outlier-channels, near-cancelling, peaked, constant-v, tiny, zero-head, one-hot, "
COUNTS = ("batch", "heads", "kv_heads", "seqlen_q", "seqlen_k", "head_dim", "splits", "block_q", "block_k")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        *[
            ({name: 0}, f"{name} must be a whole number of at least 1; got 0")
            for name in COUNTS
            if "seqlen" not in name
        ],
        (dict(seqlen_q=0, seqlen_k=3), "seqlen_q must be a whole number of at least 1; got 0"),
        (dict(seqlen_q=3, seqlen_k=-1), "seqlen_k must be a whole number of at least 1; got -1"),
        (dict(heads=2.0), "heads must be a whole number of at least 1; got 2.0"),
        (dict(splits=True), "splits must be a whole number of at least 1; got True"),
        (dict(seed=-1), "seed must be a whole number of at least 0; got -1"),
        (dict(seed=0.5), "seed must be a whole number of at least 0; got 0.5"),
        (dict(seed=True), "seed must be a whole number of at least 0; got True"),
        (
            dict(seqlen=4, seqlen_q=4),
            "seqlen sets both lengths and excludes seqlen_q and seqlen_k; give seqlen alone, or the two others",
        ),
        (
            dict(seqlen=4, seqlen_k=4),
            "seqlen sets both lengths and excludes seqlen_q and seqlen_k; give seqlen alone, or the two others",
        ),
        (dict(heads=4, kv_heads=3), "heads must be a multiple of kv_heads; got heads=4, kv_heads=3"),
        (dict(dtype="float64"), "dtype is one of float32, float16, bfloat16; got 'float64'"),
        (dict(causal_alignment="center"), "causal_alignment is one of bottom-right, top-left; got 'center'"),
        (
            dict(distribution="gauss"),
            f"distribution is one of {ONE_TO_ALL}exact, exact-ties, index-coded, given; got 'gauss'",
        ),
        (dict(probs_dtype="int8"), "probs_dtype is one of float32, float16, bfloat16; got 'int8'"),
        (dict(codes="e3m4"), f"codes is one of {', '.join(FORMATS)}; got 'e3m4'"),
        (dict(scores="wmma"), "scores is one of mma, scalar; got 'wmma'"),
        (dict(decode="lut"), "decode is one of table, direct; got 'lut'"),
        (dict(quantiser_scale="half"), "quantiser_scale is one of dynamic, static; got 'half'"),
        (dict(scale=np.inf), "scale must be a finite number; got inf"),
        (dict(scale=np.nan), "scale must be a finite number; got nan"),
        (dict(input_std=0.0), "input_std must be above 0; got 0.0"),
        (dict(input_std=-1.0), "input_std must be above 0; got -1.0"),
        (dict(input_std=np.nan), "input_std must be a finite number; got nan"),
        (dict(scale="x"), "scale must be a finite number; got 'x'"),
        (dict(scale=1e300), "scale must fit in float32, in which kernels take it; got 1e+300"),
        (dict(scale=1e-300), "scale must fit in float32, in which kernels take it; got 1e-300"),
        (dict(softcap=0), "softcap must be above 0 and a normal number of float32; got 0.0"),
        (dict(softcap=-30.0), "softcap must be above 0 and a normal number of float32; got -30.0"),
        (dict(softcap=1e-40), "softcap must be above 0 and a normal number of float32; got 1e-40"),
        (dict(softcap=1e300), "softcap must be above 0 and a normal number of float32; got 1e+300"),
        (dict(softcap=np.nan), "softcap must be a finite number; got nan"),
        (dict(softcap="30"), "softcap must be a finite number; got '30'"),
        (dict(window=16), "window must be two whole numbers of at least -1, left and right; got 16"),
        (dict(window=(16,)), "window must be two whole numbers of at least -1, left and right; got (16,)"),
        (dict(window=(16, -2)), "window must be two whole numbers of at least -1, left and right; got (16, -2)"),
        (dict(window=(16, 0.5)), "window must be two whole numbers of at least -1, left and right; got (16, 0.5)"),
        (dict(window=(True, 0)), "window must be two whole numbers of at least -1, left and right; got (True, 0)"),
        (dict(window="16,0"), "window must be two whole numbers of at least -1, left and right; got '16,0'"),
        (dict(seqlen=0), "seqlen must be a whole number of at least 1; got 0"),
        (dict(causal="no"), "causal must be True or False; got 'no'"),
        (dict(dtype=["float32"]), "dtype is one of float32, float16, bfloat16; got ['float32']"),
        (
            dict(distribution="exact", input_std=2.0),
            "distribution exact has fixed values and takes no input_std; got 2.0",
        ),
        (
            dict(distribution="exact-ties", seqlen=17, head_dim=9),
            "distribution exact-ties writes the key's index in binary over head_dim: seqlen_k=17 needs head_dim >= 10; "
            "got 9",
        ),
        (
            dict(distribution="exact", scale=0.001),
            "distribution exact needs a scale of at least 0.001953125 or at most -0.001953125, so that scores reach "
            "below -200; got 0.0010000000474974513",
        ),
        (
            dict(distribution="exact", softcap=50),
            "distribution exact needs scores below -200, and so a softcap of at least 256; got 50.0",
        ),
        (
            dict(distribution="index-coded", input_std=0.5),
            "distribution index-coded has fixed values and takes no input_std; got 0.5",
        ),
        (
            dict(distribution="index-coded", seqlen=17, head_dim=4),
            "distribution index-coded writes the key's index in binary over head_dim: seqlen_k=17 needs head_dim >= 5; "
            "got 4",
        ),
    ],
)
def test_refusals(given, message):
    with pytest.raises(Refusal) as refused:
        Case(**given)
    assert str(refused.value) == message


# ---- the mask


@pytest.mark.parametrize(
    ("seqlen_q", "seqlen_k", "alignment", "expected"),
    [
        (2, 3, "bottom-right", [[1, 1, 0], [1, 1, 1]]),
        (2, 3, "top-left", [[1, 0, 0], [1, 1, 0]]),
        (3, 2, "bottom-right", [[0, 0], [1, 0], [1, 1]]),
        (3, 2, "top-left", [[1, 0], [1, 1], [1, 1]]),
        (3, 3, "bottom-right", [[1, 0, 0], [1, 1, 0], [1, 1, 1]]),
        (3, 3, "top-left", [[1, 0, 0], [1, 1, 0], [1, 1, 1]]),
    ],
)
def test_causal_masks(seqlen_q, seqlen_k, alignment, expected):
    case = Case(seqlen_q=seqlen_q, seqlen_k=seqlen_k, causal=True, causal_alignment=alignment)
    assert case.mask().dtype == bool and np.array_equal(case.mask(), np.array(expected, bool))
    by_diagonal = [[j <= i + case.diagonal for j in range(seqlen_k)] for i in range(seqlen_q)]
    assert np.array_equal(case.mask(), by_diagonal)


def test_without_causal_every_key_is_visible():
    mask = Case(seqlen_q=3, seqlen_k=2, causal_alignment="top-left").mask()
    assert mask.shape == (3, 2) and np.all(mask)


@pytest.mark.parametrize(
    ("options", "settled"),
    [
        (dict(window=(16, 4)), (16, 4)),
        (dict(window=[16, 4]), (16, 4)),
        (dict(window=(np.int64(16), -1)), (16, -1)),
        (dict(window=(-1, 0)), (-1, 0)),
        (dict(window=(-1, -1)), None),
        (dict(window=(16, 4), causal=True), (16, 0)),
        (dict(window=(16, -1), causal=True), (16, 0)),
        (dict(window=(-1, 4), causal=True), None),
    ],
)
def test_a_window_is_settled(options, settled):
    case = Case(**options)
    assert case.window == settled and Case(**case.as_dict()) == case


def test_softcap_is_rounded_to_float32():
    case = Case(softcap=0.1)
    assert case.softcap == float(np.float32(0.1)) and Case(**case.as_dict()) == case


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("alignment", ["bottom-right", "top-left"])
@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(1, 6), (3, 7), (7, 3), (5, 5)])
@pytest.mark.parametrize("window", [(0, 0), (2, 0), (0, 2), (2, 1), (-1, 1), (1, -1), (100, 100)])
def test_windows(seqlen_q, seqlen_k, alignment, causal, window):
    """As flash-attn's words have it: key j is visible in [i + Sk - Sq - left, i + Sk - Sq + right], ends included."""
    case = Case(seqlen_q=seqlen_q, seqlen_k=seqlen_k, causal=causal, causal_alignment=alignment, window=window)
    shift = seqlen_k - seqlen_q if alignment == "bottom-right" else 0
    left, right = window[0], 0 if causal else window[1]
    expected = [
        [(left < 0 or j >= i + shift - left) and (right < 0 or j <= i + shift + right) for j in range(seqlen_k)]
        for i in range(seqlen_q)
    ]
    assert case.mask().dtype == bool and np.array_equal(case.mask(), np.array(expected))
    assert np.array_equal(case.mask(slice(1, 3)), np.array(expected)[1:3])


def test_the_mask_of_a_decode_step_and_of_a_window_written_out():
    decode = Case(seqlen_q=1, seqlen_k=6, causal=True, window=(2, 0))
    assert np.array_equal(decode.mask(), np.array([[0, 0, 0, 1, 1, 1]], bool))
    case = Case(seqlen_q=3, seqlen_k=4, window=(1, 0))
    assert np.array_equal(case.mask(), np.array([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]], bool))


# ---- the inputs


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
    drawn = distribution not in ("one-hot", "index-coded")
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


def test_numpy_numbers_become_plain_ones():
    case = Case(seqlen=np.int64(3), seed=np.int64(4), input_std=np.float32(2))
    assert json.loads(json.dumps(case.as_dict())) == case.as_dict()


def test_but_takes_seqlen_too():
    assert Case().but(seqlen=3) == Case(seqlen=3)


def test_inputs_that_do_not_fit_in_memory_are_refused_before_they_are_drawn():
    with pytest.raises(Refusal) as refused:
        Case(seqlen=10**10).inputs()
    assert re.fullmatch(
        r"q \[1, 1, 10000000000, 64\], k and v \[1, 1, 10000000000, 64\] are drawn in float64, in which they take "
        r"1.54e\+04 GB; this machine has [\d.]+(e\+\d+)? GB: choose smaller lengths",
        str(refused.value),
    )
