import warnings
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from workbench.floats import (
    Class,
    classify,
    largest,
    round_to,
    scientific,
    smallest_subnormal,
    ulp,
    ulp_error,
    unit_roundoff,
)

pytestmark = pytest.mark.filterwarnings("error")

REASON = "the judge of rounding, gfloat, is not installed"
gfloat = pytest.importorskip("gfloat", reason=REASON)
formats = pytest.importorskip("gfloat.formats", reason=REASON)
FORMATS = {
    "float32": formats.format_info_binary32,
    "float16": formats.format_info_binary16,
    "bfloat16": formats.format_info_bfloat16,
    "float8_e4m3fn": formats.format_info_ocp_e4m3,
    "float8_e5m2": formats.format_info_ocp_e5m2,
}
NARROW = [name for name in FORMATS if name != "float32"]
INF, NAN = np.inf, np.nan


def finite_values(dtype: str) -> np.ndarray:
    """Every finite value of a narrow dtype, or a sample of float32's, ascending in float64, -0 and 0 as one."""
    if dtype == "float32":
        bits = np.random.default_rng(0).integers(0, 2**32, 50_000, dtype=np.uint32)
        around = np.array(
            [0, 1, 2, 0x7FFFFF, 0x800000, 0x800001, 0x3F7FFFFF, 0x3F800000, 0x7F7FFFFE, 0x7F7FFFFF], np.uint32
        )
        values = np.concatenate([bits, around, bits + np.uint32(1), around | np.uint32(1 << 31)]).view(np.float32)
    else:
        width = np.dtype(dtype).itemsize
        values = np.arange(2 ** (8 * width), dtype=f"u{width}").view(dtype)
    with warnings.catch_warnings():  # NumPy warns of the signalling NaNs among all bit patterns
        warnings.simplefilter("ignore")
        values = values.astype(np.float64)
    return np.unique(values[np.isfinite(values)])


def hard_cases(dtype: str) -> np.ndarray:
    """Values of `dtype`, midpoints of neighbours, the float64 numbers next to those, and the threshold of overflow."""
    values = finite_values(dtype)
    beyond = 2 * values[-1] - values[-2]  # the next value, if there were one
    values = np.concatenate([[-beyond], values, [beyond]])
    middles = (values[:-1] + values[1:]) / 2  # exact: at most one bit more than a value of dtype, which float64 has
    return np.concatenate([values, middles, np.nextafter(middles, INF), np.nextafter(middles, -INF)])


def same(actual: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Where two float64 arrays hold the same number, or both NaN; -0 is not 0."""
    both_nan = np.isnan(actual) & np.isnan(expected)
    return both_nan | ((actual == expected) & (np.signbit(actual) == np.signbit(expected)))


@pytest.mark.parametrize("dtype", FORMATS)
def test_round_to_agrees_with_gfloat_around_every_midpoint(dtype):
    x = hard_cases(dtype)
    assert x.size > 900
    agree = same(round_to(x, dtype), gfloat.round_ndarray(FORMATS[dtype], x))
    assert np.all(agree), x[~agree][:5]


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("toward_zero", [False, True])
@pytest.mark.parametrize("saturates", [False, True])
def test_other_roundings_agree_with_gfloat_around_every_midpoint(dtype, toward_zero, saturates):
    x = np.concatenate([hard_cases(dtype), [1e300, -1e300, INF, -INF]])
    mode = gfloat.RoundMode.TowardZero if toward_zero else gfloat.RoundMode.TiesToEven
    expected = gfloat.round_ndarray(FORMATS[dtype], x, mode, saturates)
    agree = same(round_to(x, dtype, toward_zero=toward_zero, saturates=saturates), expected)
    assert np.all(agree), (x[~agree][:5], expected[~agree][:5])


@pytest.mark.parametrize("dtype", FORMATS)
def test_round_to_special_values(dtype):
    x = np.array([0.0, -0.0, 5e-324, -5e-324, 1e308, -1e308, INF, -INF, NAN])
    inf = NAN if dtype == "float8_e4m3fn" else INF  # the one format here without infinities
    expected = np.array([0.0, -0.0, 0.0, -0.0, inf, -inf, inf, -inf, NAN])
    assert np.all(same(round_to(x, dtype), expected))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_numpy_s_cast_is_the_arithmetic_that_torch_s_tensors_take(dtype):
    torch = pytest.importorskip("torch", reason="tensors are rounded by arithmetic, in any dtype")
    x = np.concatenate([hard_cases(dtype), [1e300, -1e300, INF, -INF, NAN, 5e-324, -0.0]])
    assert np.all(same(round_to(x, dtype), round_to(torch.from_numpy(x), dtype).numpy()))


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_a_bare_cast_of_ml_dtypes_fails_on_the_same_inputs(dtype):
    x = hard_cases(dtype)
    with np.errstate(all="ignore"):
        cast = x.astype(dtype).astype(np.float64)
    # a midpoint's neighbour goes to the midpoint in float32 and from there, half the time, to the wrong side: 1/4 of x
    assert np.mean(~same(cast, round_to(x, dtype))) > 0.2


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_bare_cast_of_torch_fails_on_the_same_inputs(dtype):
    torch = pytest.importorskip("torch", reason="torch is the implementation that this test shows to round twice")
    x = hard_cases(dtype)
    cast = torch.from_numpy(x).to(getattr(torch, dtype)).to(torch.float64).numpy()
    assert np.mean(~same(cast, round_to(x, dtype))) > 0.2


@pytest.mark.parametrize("dtype", FORMATS)
def test_rounding_a_value_of_the_dtype_changes_nothing(dtype):
    values = finite_values(dtype)
    assert values.size > 200 and np.all(round_to(values, dtype) == values)


@pytest.mark.parametrize("dtype", NARROW)
def test_ulp_is_the_gap_to_the_next_value(dtype):
    values = finite_values(dtype)
    positive = values[values >= 0]
    gaps = np.diff(positive)
    assert gaps.size > 100 and np.all(ulp(positive[:-1], dtype) == gaps)
    between = positive[:-1] + 0.75 * gaps  # the spacing belongs to the binade of the reference, not to its rounding
    assert np.all(ulp(between, dtype) == gaps) and np.all(ulp(-between, dtype) == gaps)


def test_ulp_of_float32_is_numpys_spacing():
    values = finite_values("float32")[1:-1]  # np.spacing of the largest value is infinite
    assert np.all(ulp(values, "float32") == np.spacing(np.abs(values).astype(np.float32)).astype(np.float64))


@pytest.mark.parametrize(
    ("dtype", "reference", "expected"),
    [
        ("float32", 1.0, 2**-23),
        ("float32", 1 - 2**-53, 2**-24),
        ("float32", 0.0, 2**-149),
        ("float32", 2**-126, 2**-149),
        ("float32", 1e-300, 2**-149),
        ("float16", 65504.0, 32),
        ("float16", 1e6, 512),  # as if the exponents went on: 2^(19 - 10)
        ("bfloat16", -3.0, 2**-6),
        ("bfloat16", INF, NAN),
        ("bfloat16", NAN, NAN),
    ],
)
def test_ulp_table(dtype, reference, expected):
    assert np.all(same(ulp(reference, dtype), np.float64(expected)))


@pytest.mark.parametrize(
    ("actual", "reference", "expected"),
    [
        (1 + 2**-10, 1.0, 1.0),
        (1.0, 1 + 2**-10, -1.0),
        (1.0, 1 + 2**-12, -0.25),
        (-1.0, 1.0, -2048.0),
        (0.0, -0.0, 0.0),
        (2**-24, 0.0, 1.0),
        (0.0, 2**-26, -0.25),
        (INF, INF, 0.0),
        (-INF, -INF, 0.0),
        (INF, -INF, NAN),
        (65504.0, INF, NAN),  # not one ulp: the classes differ
        (INF, 65504.0, NAN),
        (NAN, NAN, NAN),
        (NAN, 1.0, NAN),
        (1.0, NAN, NAN),
    ],
)
def test_ulp_error_in_float16(actual, reference, expected):
    assert np.all(same(ulp_error(actual, reference, "float16"), np.float64(expected)))
    assert np.all(same(ulp_error(np.float16(actual), reference, np.float16), np.float64(expected)))


@pytest.mark.parametrize("dtype", FORMATS)
def test_rounding_errs_by_at_most_half_an_ulp_and_reaches_it(dtype):
    x = hard_cases(dtype)
    inside = x[np.abs(x) <= largest(dtype)]
    error = np.abs(ulp_error(round_to(inside, dtype), inside, dtype))
    assert error.size > 200 and np.all(error <= 0.5) and np.max(error) == 0.5


def test_classify():
    x = np.array([0.0, -0.0, 1e-320, 1e308, INF, -INF, NAN, -NAN])
    expected = [Class.FINITE] * 4 + [Class.PLUS_INF, Class.MINUS_INF, Class.NAN, Class.NAN]
    assert classify(x).tolist() == expected
    assert classify(x[4:].astype(ml_dtypes.bfloat16)).tolist() == expected[4:]
    assert [c.value for c in Class] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("dtype", "roundoff", "subnormal", "most"),
    [
        ("float32", Fraction(1, 2**24), Fraction(1, 2**149), 2**128 - 2**104),
        ("float16", Fraction(1, 2**11), Fraction(1, 2**24), 65504),
        ("bfloat16", Fraction(1, 2**8), Fraction(1, 2**133), 2**128 - 2**120),
        ("float8_e4m3fn", Fraction(1, 2**4), Fraction(1, 2**9), 448),
        ("float8_e5m2", Fraction(1, 2**3), Fraction(1, 2**16), 57344),
    ],
)
def test_constants_of_the_formats(dtype, roundoff, subnormal, most):
    assert Fraction(unit_roundoff(dtype)) == roundoff
    assert Fraction(smallest_subnormal(dtype)) == subnormal
    assert Fraction(largest(dtype)) == most


def test_codes_are_one_apart() -> None:
    codes = np.arange(256.0)
    np.testing.assert_array_equal(ulp(codes, "uint8"), 1.0)
    np.testing.assert_array_equal(round_to(codes, "uint8"), codes)
    np.testing.assert_array_equal(round_to([0.4, 0.5, 1.5, 254.6], "uint8"), [0, 0, 2, 255])
    np.testing.assert_array_equal(ulp_error(codes[1:], codes[:-1], "uint8"), 1.0)
    assert largest(np.dtype(np.uint8)) == largest("uint8") == 255


def test_a_number_of_two_digits():
    assert [scientific(x) for x in (0.0080312, 5.3e-5, 1.0, 0.0, 250.0, np.inf, np.nan)] == [
        *("8.0e-3", "5.3e-5", "1.0e0", "0.0e0", "2.5e2", "inf", "nan"),
    ]
