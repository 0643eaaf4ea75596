"""What an error is: class first (finite, infinite, NaN), then units in the last place of a dtype, all in float64.

A dtype is a name ("float32", "float16", "bfloat16", "float8_e4m3fn", ...) or a NumPy dtype; its precision p, smallest
normal exponent e_min and largest value come from its finfo.
"""

from enum import IntEnum

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, DTypeLike


class Class(IntEnum):
    """What kind of number a value is; values of different classes have no distance."""

    FINITE = 0
    PLUS_INF = 1
    MINUS_INF = 2
    NAN = 3


def classify(x: ArrayLike) -> np.ndarray:
    """The Class of every element, uint8."""
    x = np.asarray(x, np.float64)
    return np.select(
        [np.isnan(x), np.isposinf(x), np.isneginf(x)],
        [np.uint8(Class.NAN), np.uint8(Class.PLUS_INF), np.uint8(Class.MINUS_INF)],
        default=np.uint8(Class.FINITE),
    )


def unit_roundoff(dtype: DTypeLike) -> float:
    """Largest relative error of one rounding to nearest in the normal range, 2^-p: half the spacing at 1."""
    return 2.0 ** -_precision(dtype)


def smallest_subnormal(dtype: DTypeLike) -> float:
    """Spacing of the numbers around 0, 2^(e_min - p + 1)."""
    return float(np.ldexp(1.0, _smallest_exponent(dtype) - _precision(dtype) + 1))


def largest(dtype: DTypeLike) -> float:
    """Largest finite value."""
    return float(_finfo(dtype).max)


@np.errstate(all="ignore")
def ulp(reference: ArrayLike, dtype: DTypeLike) -> np.ndarray:
    """Spacing of `dtype` at float64 `reference`, 2^(max(floor(log2|reference|), e_min) - p + 1), float64.

    At 0 and below the smallest normal number it is the smallest subnormal; NaN at infinities and NaN. Above the largest
    finite value the spacings go on doubling, as if there were more exponents.

    >>> ulp([1.0, 0.9999999, 0.0, 1e-30], "float16")
    array([9.76562500e-04, 4.88281250e-04, 5.96046448e-08, 5.96046448e-08])
    """
    reference = np.asarray(reference, np.float64)
    _, exponent = np.frexp(reference)  # |reference| = m * 2^exponent, 0.5 <= m < 1; exponent is 0 at 0
    exponent = np.where(reference == 0, _smallest_exponent(dtype), exponent - 1)
    spacing = np.ldexp(1.0, np.maximum(exponent, _smallest_exponent(dtype)) - _precision(dtype) + 1)
    return np.where(np.isfinite(reference), spacing, np.nan)


@np.errstate(all="ignore")
def ulp_error(actual: ArrayLike, reference: ArrayLike, dtype: DTypeLike) -> np.ndarray:
    """Signed error (actual - reference) / ulp(reference) in fractions of an ulp of `dtype`, float64.

    0 for equal infinities; NaN where either is NaN or the classes differ. A reference beyond the largest finite value
    is of class FINITE: `round_to` it first where an overflow is the right answer.
    """
    actual, reference = np.asarray(actual, np.float64), np.asarray(reference, np.float64)
    kinds, expected = classify(actual), classify(reference)
    error = np.where(kinds == Class.FINITE, (actual - reference) / ulp(reference, dtype), 0.0)
    return np.where((kinds == expected) & (kinds != Class.NAN), error, np.nan)


@np.errstate(all="ignore")
def round_to(x: ArrayLike, dtype: DTypeLike) -> np.ndarray:
    """Float64 `x` rounded once to the nearest value of `dtype`, ties to even; returned in float64, which holds it.

    Beyond the largest finite value: infinity, or NaN in a dtype that has none (float8_e4m3fn; a kernel that saturates
    there clips first). NaN stays NaN and -0 stays -0.

    `astype` is no substitute: from float64 it goes through float32 on its way to some narrow dtypes, and rounds twice.

    >>> x = 1 + 2**-8 + 2**-40  # just above the midpoint of the neighbours 1 and 1 + 2^-7
    >>> float(round_to(x, "bfloat16")), float(np.array([x]).astype(ml_dtypes.bfloat16)[0])
    (1.0078125, 1.0)
    """
    x = np.asarray(x, np.float64)
    spacing = ulp(x, dtype)
    # spacing is a power of two, so that the quotient and the product are exact: only rint rounds, ties to even
    rounded = np.where(np.isfinite(x), np.rint(x / spacing) * spacing, x)
    overflow = float(np.float64(np.inf).astype(dtype))
    return np.where(np.abs(rounded) > largest(dtype), np.copysign(overflow, x), rounded)


def _finfo(dtype: DTypeLike) -> ml_dtypes.finfo:
    """The finfo of `dtype`; NumPy's own does not know bfloat16 and float8."""
    return ml_dtypes.finfo(np.dtype(dtype))


def _precision(dtype: DTypeLike) -> int:
    """Significant bits p, the implicit one included."""
    return int(_finfo(dtype).nmant) + 1


def _smallest_exponent(dtype: DTypeLike) -> int:
    """Exponent e_min of the smallest normal number 2^e_min."""
    return int(_finfo(dtype).minexp)
