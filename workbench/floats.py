"""What an error is: class first (finite, infinite, NaN), then units in the last place of a dtype, all in float64.

A dtype is a name ("float32", "float16", "bfloat16", "float8_e4m3fn", ...) or a NumPy dtype; its precision p, smallest
normal exponent e_min and largest value come from its finfo. uint8, of codes, has the spacing 1 throughout: p = 8 and
e_min = 7.
"""

from collections.abc import Mapping
from enum import IntEnum
from functools import cache
from typing import Any

import array_api_compat
import array_api_compat.numpy
import ml_dtypes
import numpy as np
from array_api_compat import is_array_api_obj
from numpy.typing import ArrayLike, DTypeLike

#: dtypes of q, k and v by name
DTYPES: Mapping[str, np.dtype] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
#: dtypes of stages and of q, k and v
FLOATS = (*DTYPES.values(), np.dtype(np.float64))
#: dtypes to which NumPy casts a float64 with one rounding, in a fifth of the time of arithmetic
_CAST_ONCE = (DTYPES["float32"], DTYPES["float16"])
#: the exponent bits of a float64
_EXPONENT = 0x7FF0000000000000


class Class(IntEnum):
    """What kind of number a value is; values of different classes have no distance."""

    FINITE = 0
    PLUS_INF = 1
    MINUS_INF = 2
    NAN = 3


def array_namespace(*arrays: Any) -> Any:
    """That of array_api_compat: its NumPy, which is known at once and asked for a thousand times a run, or torch's."""
    numpy = all(type(x) is np.ndarray for x in arrays)
    return array_api_compat.numpy if numpy else array_api_compat.array_namespace(*arrays)


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
    return 2.0 ** -_precision(np.dtype(dtype))


def smallest_subnormal(dtype: DTypeLike) -> float:
    """Spacing of the numbers around 0, 2^(e_min - p + 1)."""
    return float(np.ldexp(1.0, _smallest_exponent(np.dtype(dtype)) - _precision(np.dtype(dtype)) + 1))


def smallest_normal(dtype: DTypeLike) -> float:
    """The least number above 0 of `dtype` that has all its digits: 2^-126 for float32."""
    return float(np.ldexp(1.0, _smallest_exponent(np.dtype(dtype))))


def largest(dtype: DTypeLike) -> float:
    """Largest finite value."""
    return float(np.iinfo(np.uint8).max if np.dtype(dtype) == np.uint8 else _finfo(np.dtype(dtype)).max)


@np.errstate(all="ignore")
def ulp(reference: ArrayLike, dtype: DTypeLike) -> np.ndarray:
    """Spacing of `dtype` at float64 `reference`, 2^(max(floor(log2|reference|), e_min) - p + 1), float64.

    At 0 and below the smallest normal number it is the smallest subnormal; NaN at infinities and NaN. Above the largest
    finite value the spacings go on doubling, as if there were more exponents. `reference` may live on another device
    (a torch tensor of float64), where the result then is too.

    >>> ulp([1.0, 0.9999999, 0.0, 1e-30], "float16")
    array([9.76562500e-04, 4.88281250e-04, 5.96046448e-08, 5.96046448e-08])
    """
    reference = to_float64(reference)
    xp = array_namespace(reference)
    # the exponent bits alone are the power of two at or below |reference|: 0 for 0 and float64's subnormals
    power = (reference.view(xp.int64) & _EXPONENT).view(xp.float64)
    smallest, precision = _smallest_exponent(np.dtype(dtype)), _precision(np.dtype(dtype))
    spacing = xp.maximum(power, 2.0**smallest) * 2.0 ** (1 - precision)
    return xp.where(xp.isfinite(power), spacing, xp.nan)


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
def round_to(x: ArrayLike, dtype: DTypeLike, *, toward_zero: bool = False, saturates: bool = False) -> np.ndarray:
    """Float64 `x` rounded once to the nearest value of `dtype`, ties to even; returned in float64, which holds it.

    Beyond the largest finite value: infinity, or NaN in a dtype that has none (float8_e4m3fn); the largest finite value
    where the cast `saturates`, infinities included. With `toward_zero`, the nearest value that is no larger in
    magnitude, which is finite for a finite x. NaN stays NaN and -0 stays -0. Torch tensors as in `ulp`.

    `astype` is no substitute: from float64 it goes through float32 on its way to bfloat16 and float8, and rounds twice.

    >>> x = 1 + 2**-8 + 2**-40  # just above the midpoint of the neighbours 1 and 1 + 2^-7
    >>> float(round_to(x, "bfloat16")), float(np.array([x]).astype(ml_dtypes.bfloat16)[0])
    (1.0078125, 1.0)
    """
    x = to_float64(x)
    if type(x) is np.ndarray and np.dtype(dtype) in _CAST_ONCE and not (toward_zero or saturates):
        with np.errstate(all="ignore"):
            return x.astype(dtype).astype(np.float64)
    xp = array_namespace(x)
    spacing = ulp(x, dtype)
    # spacing is a power of two, so that the quotient and the product are exact: only round or trunc rounds
    whole = xp.trunc if toward_zero else xp.round
    rounded = xp.where(xp.isfinite(x), whole(x / spacing) * spacing, x)
    top = largest(dtype)
    if saturates:
        return xp.clip(rounded, -top, top)
    overflow = float(np.float64(np.inf).astype(dtype))
    if toward_zero:
        rounded = xp.where(xp.isfinite(x), xp.clip(rounded, -top, top), x)
    return xp.where(xp.abs(rounded) > top, xp.copysign(xp.full_like(x, overflow), x), rounded)


def to_float64(x: ArrayLike) -> np.ndarray:
    """`x` as a float64 array; what is no array of another library becomes NumPy's."""
    if not is_array_api_obj(x):
        x = np.asarray(x)
    xp = array_namespace(x)
    with np.errstate(invalid="ignore"):  # a signalling NaN raises the flag when it is widened
        return xp.astype(x, xp.float64, copy=False)


def scientific(x: float) -> str:
    """Two digits of a number and its power of ten: 8.0e-3; nan and inf by their names."""
    digits, e, power = f"{x:.1e}".partition("e")
    return f"{digits}e{int(power)}" if e else digits


@cache
def _finfo(dtype: np.dtype) -> ml_dtypes.finfo:
    """The finfo of `dtype`; NumPy's own does not know bfloat16 and float8."""
    return ml_dtypes.finfo(dtype)


@cache
def _precision(dtype: np.dtype) -> int:
    """Significant bits p, the implicit one included."""
    return 8 if dtype == np.uint8 else int(_finfo(dtype).nmant) + 1


@cache
def _smallest_exponent(dtype: np.dtype) -> int:
    """Exponent e_min of the smallest normal number 2^e_min."""
    return 7 if dtype == np.uint8 else int(_finfo(dtype).minexp)
