"""A case as a record, and what its mask leaves to see."""

import json
from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from workbench.case.case import Case
from workbench.case.formats import FORMATS
from workbench.refusal import Refusal

pytestmark = pytest.mark.filterwarnings("error")


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
            dict(seqlen=4, seqlen_q=4, seqlen_k=4),
            "give at most two of seqlen, seqlen_q and seqlen_k; got all three",
        ),
        (dict(heads=4, kv_heads=3), "heads must be a multiple of kv_heads; got heads=4, kv_heads=3"),
        (dict(dtype="float64"), "dtype must be one of float32, float16, bfloat16; got 'float64'"),
        (dict(causal_alignment="center"), "causal_alignment must be one of bottom-right, top-left; got 'center'"),
        (
            dict(distribution="gauss"),
            f"distribution must be one of {ONE_TO_ALL}exact, exact-ties, index-coded, comb, needle, given; got 'gauss'",
        ),
        (dict(probs_dtype="int8"), "probs_dtype must be one of float32, float16, bfloat16; got 'int8'"),
        (dict(codes="e3m4"), f"codes must be one of {', '.join(FORMATS)}; got 'e3m4'"),
        (dict(scores="wmma"), "scores must be one of mma, scalar; got 'wmma'"),
        (dict(decode="lut"), "decode must be one of table, direct; got 'lut'"),
        (dict(quantiser_scale="half"), "quantiser_scale must be one of dynamic, static; got 'half'"),
        (dict(scale=np.inf), "scale must be a finite number; got inf"),
        (dict(scale=np.nan), "scale must be a finite number; got nan"),
        (dict(input_std=0.0), "input_std must be above 0; got 0.0"),
        (dict(input_std=-1.0), "input_std must be above 0; got -1.0"),
        (dict(input_std=np.nan), "input_std must be a finite number; got nan"),
        (dict(scale="x"), "scale must be a finite number; got 'x'"),
        (dict(scale=1e300), "scale must fit in float32, as kernels take it; got 1e+300"),
        (dict(scale=1e-300), "scale must fit in float32, as kernels take it; got 1e-300"),
        (dict(softcap=0), "softcap must be a normal float32 above 0; got 0.0"),
        (dict(softcap=-30.0), "softcap must be a normal float32 above 0; got -30.0"),
        (dict(softcap=1e-40), "softcap must be a normal float32 above 0; got 1e-40"),
        (dict(softcap=1e300), "softcap must be a normal float32 above 0; got 1e+300"),
        (dict(softcap=np.nan), "softcap must be a finite number; got nan"),
        (dict(softcap="30"), "softcap must be a finite number; got '30'"),
        (dict(window=16), "window must be two whole numbers, left and right, of at least -1; got 16"),
        (dict(window=(16,)), "window must be two whole numbers, left and right, of at least -1; got (16,)"),
        (dict(window=(16, -2)), "window must be two whole numbers, left and right, of at least -1; got (16, -2)"),
        (dict(window=(16, 0.5)), "window must be two whole numbers, left and right, of at least -1; got (16, 0.5)"),
        (dict(window=(True, 0)), "window must be two whole numbers, left and right, of at least -1; got (True, 0)"),
        (dict(window="16,0"), "window must be two whole numbers, left and right, of at least -1; got '16,0'"),
        (dict(seqlen=0), "seqlen must be a whole number of at least 1; got 0"),
        (dict(causal="no"), "causal must be True or False; got 'no'"),
        (dict(dtype=["float32"]), "dtype must be one of float32, float16, bfloat16; got ['float32']"),
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


def test_numpy_numbers_become_plain_ones():
    case = Case(seqlen=np.int64(3), seed=np.int64(4), input_std=np.float32(2))
    assert json.loads(json.dumps(case.as_dict())) == case.as_dict()


def test_seqlen_is_the_length_that_is_not_given_beside_it():
    assert Case(seqlen=100, seqlen_q=40) == Case(seqlen_q=40, seqlen_k=100)
    assert Case(seqlen=100, seqlen_k=40) == Case(seqlen_q=100, seqlen_k=40)


@pytest.mark.parametrize(("short", "dtype"), [("fp32", "float32"), ("fp16", "float16"), ("bf16", "bfloat16")])
def test_dtypes_have_short_names(short, dtype):
    assert Case(dtype=short) == Case(dtype=dtype)


def test_but_takes_seqlen_too():
    assert Case().but(seqlen=3) == Case(seqlen=3)


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
