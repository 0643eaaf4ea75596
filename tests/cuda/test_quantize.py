"""The quantiser against gfloat, ml_dtypes and the float64 reference: every code, every midpoint, every granularity."""

import ml_dtypes
import numpy as np
import pytest

from workbench.case import formats as ours
from workbench.case.case import Case
from workbench.case.distributions import DISTRIBUTIONS
from workbench.cuda.faults.catalogue import chosen
from workbench.cuda.quantised import quantiser
from workbench.cuda.quantize import KINDS, Quantized, encode, quantize, scale_of
from workbench.reference import quantize as reference
from workbench.refusal import Refusal

pytestmark = pytest.mark.filterwarnings("error")

REASON = "the judge of rounding, gfloat, is not installed"
gfloat = pytest.importorskip("gfloat", reason=REASON)
formats = pytest.importorskip("gfloat.formats", reason=REASON)

FORMATS = {
    "e4m3": (formats.format_info_ocp_e4m3, ml_dtypes.float8_e4m3fn),
    "e5m2": (formats.format_info_ocp_e5m2, ml_dtypes.float8_e5m2),
}
#: formats with a scale a head whose codes are all of a byte's
OF_HEADS = ("simulated", "e4m3", "e5m2")
ONE = np.float32(1)
CODES = np.arange(256, dtype=np.uint8)
#: by whether it saturates: what the quantiser does, and what it does with a fault
ENCODE = {True: encode, False: quantiser(chosen(["no-saturation"], "fp8")).encode}


def midpoints(kind):
    """Every value of a format, every midpoint of two, and the float32 numbers beside each."""
    values = np.unique(ours.FORMATS[kind].values[np.isfinite(ours.FORMATS[kind].values)])
    exact = np.concatenate([values, (values[1:] + values[:-1]) / 2, [2 * values[-1] - values[-2]]]).astype(np.float32)
    exact = np.concatenate([exact, -exact])
    return np.unique(
        np.concatenate([np.nextafter(exact, np.float32(np.inf)), exact, np.nextafter(exact, np.float32(-np.inf))])
    )


def libraries():
    yield "numpy", np.asarray
    try:
        import torch
    except ImportError:
        return
    yield "torch", torch.from_numpy


@pytest.fixture(params=[pytest.param(make, id=name) for name, make in libraries()])
def array(request):
    """array(x): x as an array of every library in turn."""
    return request.param


# ---- every code


@pytest.mark.parametrize("kind", FORMATS)
def test_every_code_of_float8_has_the_value_that_gfloat_and_ml_dtypes_give_it(kind):
    info, dtype = FORMATS[kind]
    values = ours.FORMATS[kind].values
    assert values.shape == (256,)
    np.testing.assert_array_equal(values, [gfloat.decode_float(info, int(code)).fval for code in CODES])
    np.testing.assert_array_equal(values, CODES.view(dtype).astype(np.float64))
    assert np.array_equal(np.signbit(values[~np.isnan(values)]), (CODES >= 128)[~np.isnan(values)])


def test_every_simulated_code():
    values = ours.FORMATS["simulated"].values
    assert (values[1], values[128], values[255]) == (-448.0, 0.0, 448.0)
    np.testing.assert_allclose(np.diff(values), 448 / 127, rtol=1e-13)
    assert np.array_equal(values[1:], -values[:0:-1])


@pytest.mark.parametrize("kind", OF_HEADS)
def test_every_value_is_encoded_to_its_code(array, kind):
    values = ours.FORMATS[kind].values
    number = np.isfinite(values) & (CODES > 0 if kind == "simulated" else True)
    found = np.asarray(encode(array(values[number].astype(np.float32)), ONE.item(), kind))
    np.testing.assert_array_equal(found, CODES[number], strict=True)
    assert number.sum() == {"simulated": 255, "e4m3": 254, "e5m2": 248}[kind]


@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("kind", FORMATS)
def test_rounding_is_to_nearest_even_at_every_midpoint_and_beside_it(array, kind, saturate):
    info, dtype = FORMATS[kind]
    x = midpoints(kind)
    found = np.asarray(ENCODE[saturate](array(x), 1.0, kind))
    limit = KINDS[kind].largest
    np.testing.assert_array_equal(
        found.view(dtype).astype(np.float64), [gfloat.round_float(info, float(v), sat=saturate) for v in x]
    )
    by_ml_dtypes = (np.clip(x, -limit, limit) if saturate else x).astype(dtype).view(np.uint8)
    np.testing.assert_array_equal(found, by_ml_dtypes, strict=True)
    assert np.isfinite(found.view(dtype).astype(np.float64)).all() == saturate


@pytest.mark.parametrize(
    ("kind", "saturate", "codes"),
    [
        ("e4m3", True, [0x7E, 0xFE, 0x7F]),
        ("e4m3", False, [0x7F, 0xFF, 0x7F]),
        ("e5m2", True, [0x7B, 0xFB, 0x7F]),
        ("e5m2", False, [0x7C, 0xFC, 0x7F]),
    ],
)
def test_infinity_and_nan(array, kind, saturate, codes):
    x = np.array([np.inf, -np.inf, np.nan], np.float32)
    assert np.asarray(ENCODE[saturate](array(x), 1.0, kind)).tolist() == codes


def test_zeros_and_subnormals_keep_their_sign(array):
    x = np.array([0.0, -0.0, 2.0**-149, -(2.0**-149), 2.0**-10, 2.0**-9, 3 * 2.0**-10, -(2.0**-9)], np.float32)
    assert np.asarray(encode(array(x), 1.0, "e4m3")).tolist() == [0, 128, 0, 128, 0, 1, 2, 129]


def test_without_saturation_simulated_codes_wrap_around(array):
    x = np.array([448.0, 452.0, 600.0, -460.0], np.float32)
    assert np.asarray(encode(array(x), 1.0, "simulated")).tolist() == [255, 255, 255, 1]
    assert np.asarray(ENCODE[False](array(x), 1.0, "simulated")).tolist() == [255, 0, 42, 254]


# ---- scales


X = np.array([[[[1, -4], [2, 3]], [[0, 0], [0, 0]]], [[[0.5, 2], [-8, 1]], [[0, 1e-40], [-1e-39, 0]]]], np.float32)


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        ("simulated", {}, [8 / 448, 1]),
        ("e4m3", {}, [8 / 448, 1]),
        ("e5m2", {}, [8 / 57344, 1]),
        ("e4m3", {"scaling": "static"}, [4 / 448, 1]),
        ("e4m3", {"rows": 1}, [[[4 / 448, 3 / 448], [1, 1]], [[2 / 448, 8 / 448], [1, 1]]]),
        ("e4m3", {"rows": 4}, [[[4 / 448], [1]], [[8 / 448], [1]]]),
    ],
)
def test_scales_by_hand(array, kind, options, expected):
    found = np.asarray(scale_of(array(X), kind, **options))
    np.testing.assert_array_equal(found, np.array(expected, np.float32), strict=True)


@pytest.mark.parametrize("kind", OF_HEADS)
def test_codes_are_those_of_each_scale(array, kind):
    x = Case(batch=2, heads=3, seqlen=8, head_dim=4).inputs()[0]
    codes, scale = (np.asarray(part) for part in quantize(array(x), kind))
    assert codes.dtype == np.uint8 and codes.shape == x.shape
    np.testing.assert_array_equal(codes, encode(x, scale[:, None, None], kind), strict=True)
    # what decided the scale has a code of the largest size
    assert np.abs(ours.FORMATS[kind].values[codes]).max() == ours.FORMATS[kind].largest


@pytest.mark.parametrize("kind", OF_HEADS)
def test_a_zero_head_has_scale_1_and_the_code_of_zero(array, kind):
    found = quantize(array(X), kind)
    assert isinstance(found, Quantized)
    assert np.asarray(found.scale)[1] == 1
    assert set(np.asarray(found.codes)[:, 1].ravel().tolist()) == ({128} if kind == "simulated" else {0, 128})
    assert set(np.asarray(found.codes)[0, 1].ravel().tolist()) == ({128} if kind == "simulated" else {0})


def test_libraries_give_the_same_bits():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    for distribution in DISTRIBUTIONS:
        x = Case(heads=2, seqlen=40, head_dim=32, distribution=distribution).inputs()[1]
        for kind in OF_HEADS:
            for scaling in ("dynamic", "static"):
                mine = quantize(x, kind, scaling=scaling)
                theirs = quantize(torch.from_numpy(x), kind, scaling=scaling)
                assert isinstance(theirs.codes, torch.Tensor) and theirs.codes.dtype == torch.uint8
                np.testing.assert_array_equal(mine.codes, theirs.codes.numpy(), strict=True)
                np.testing.assert_array_equal(mine.scale, theirs.scale.numpy(), strict=True)


# ---- against the reference


def outside(case, kind, scaling, quantized):
    """How many scales and codes the reference does not allow."""
    x, scale = case.inputs()[0], quantized.scale
    expected = reference.scale(x, kind, scaling=scaling)
    low, high = reference.codes_interval(x, scale, kind)
    codes = quantized.codes.astype(np.float64)
    assert codes.size and np.all(high - low <= 1)
    return int(np.sum(scale != expected.astype(np.float32))), int(np.sum(~((low <= codes) & (codes <= high))))


@pytest.mark.parametrize("scaling", ["dynamic", "static"])
@pytest.mark.parametrize("kind", OF_HEADS)
def test_within_what_the_reference_allows(kind, scaling):
    for distribution in DISTRIBUTIONS:
        case = Case(batch=2, heads=4, seqlen=33, head_dim=16, distribution=distribution)
        quantized = quantize(case.inputs()[0], kind, scaling=scaling)
        assert outside(case, kind, scaling, quantized) == (0, 0), distribution


@pytest.mark.parametrize("kind", OF_HEADS)
def test_one_code_off_is_outside_almost_everywhere(kind):
    case = Case(seqlen=64)
    codes, scale = quantize(case.inputs()[0], kind)
    _, wrong = outside(case, kind, "dynamic", Quantized(codes ^ 1, scale))
    assert codes.size - wrong <= codes.size // 1000
    assert outside(case, kind, "dynamic", Quantized(codes, scale * np.float32(1 + 2**-23)))[0] == 1


@pytest.mark.parametrize("kind", OF_HEADS)
def test_the_interval_of_codes_is_open_at_ties_alone(kind):
    """At every midpoint of two values, both are allowed; a thousandth beside it, one."""
    values = np.unique(ours.FORMATS[kind].values[np.isfinite(ours.FORMATS[kind].values)])
    middle = ((values[1:] + values[:-1]) / 2)[None, None, None]
    middle = middle[middle != 0][None, None, None]
    if kind == "simulated":
        middle = middle[..., 1:]  # below code 1 lies no other
    low, high = reference.codes_interval(middle, np.ones(1), kind)
    assert np.all(high - low == 1) and middle.size > 200
    for beside in (middle * 0.999, middle * 1.001):
        low, high = reference.codes_interval(beside, np.ones(1), kind)
        assert np.array_equal(low, high) and np.array_equal(low, reference.codes(beside, np.ones(1), kind))


# ---- refusals


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: quantize(X, "e3m4"), f"kind must be one of {', '.join(KINDS)}; got 'e3m4'"),
        (
            lambda: quantize(X, "e4m3", scaling="fixed"),
            "scaling must be one of dynamic, static; got 'fixed'",
        ),
        (
            lambda: quantize(np.full((1, 1, 2, 2), np.nan, np.float32), "e4m3"),
            "inputs of a quantiser must be finite; got NaN or infinity",
        ),
        (
            lambda: encode(np.array([np.nan], np.float32), 1.0, "simulated"),
            "simulated codes cannot represent NaN or infinity; got one of them",
        ),
    ],
)
def test_refusals(call, message):
    with pytest.raises(Refusal) as refused:
        call()
    assert str(refused.value) == message
