"""What a quantiser of the three formats should give, in float64, from the definitions: scales, codes and decode tables.

`workbench.cuda.quantize` is what is held against it; `case.formats` has the formats.
"""

import numpy as np

from workbench.case.formats import FORMATS
from workbench.floats import unit_roundoff

U = unit_roundoff("float32")
#: what an operation may lose to underflow in float32: half its smallest subnormal
HALF_SUBNORMAL = 2.0**-150


def scale(x: np.ndarray, kind: str, *, scaling: str = "dynamic") -> np.ndarray:
    """Scale of every head over all batches, max|x| / the largest value of the format, [head], of x [batch, head, row,
    dim]; not yet rounded.

    Half of that where `scaling` is static. 1 for a head without a number of at least 2^-126 in size. NaN stays NaN.
    """
    largest = np.abs(np.asarray(x, np.float64)).max(axis=(0, 2, 3))
    share = {"dynamic": 1.0, "static": 0.5}[scaling]
    return np.where(largest < 2.0**-126, 1.0, share * largest / FORMATS[kind].largest)


def table(scale: np.ndarray, kind: str) -> np.ndarray:
    """What each code stands for, [..., 256], given scale [...]."""
    return np.asarray(scale, np.float64)[..., None] * FORMATS[kind].values


def decoded(codes: np.ndarray, table: np.ndarray) -> np.ndarray:
    """The entries that codes [batch, head, row, dim] (whole numbers in any dtype) select of table [head, 256]; a NaN
    among the codes selects NaN.
    """
    known = ~np.isnan(codes)
    index = np.where(known, codes, 0).astype(np.int64)
    heads = np.arange(index.shape[1])[:, None, None]
    return np.where(known, table[heads, index], np.nan)


@np.errstate(all="ignore")
def codes(x: np.ndarray, scale: np.ndarray, kind: str) -> np.ndarray:
    """The code of the value nearest to x / scale, as float64, of x [batch, head, row, dim] and scale [head].

    Between two values at the same distance the one with the even code (in e4m3 and e5m2: with the even last bit of the
    fraction; in simulated codes with the even code, since 128 is even). What lies beyond the largest value becomes that
    value. A zero has the sign of x. NaN stays NaN.
    """
    return _nearest(np.asarray(x, np.float64) / np.asarray(scale, np.float64)[:, None, None], kind)


@np.errstate(all="ignore")
def codes_interval(x: np.ndarray, scale: np.ndarray, kind: str, *, reach: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Smallest and largest code that a quantiser in float32 may give, as float64; arguments as of `codes`.

    They differ, by 1, only where its roundings on the way to x / scale can reach a tie between two values;
    `reach`: the relative error of x / scale beside these.
    """
    wanted = np.asarray(x, np.float64) / np.asarray(scale, np.float64)[:, None, None]
    reach = (FORMATS[kind].encode_roundings * U + reach) * (1 + 2**-20)  # of products of such errors
    away = _nearest(wanted * (1 + reach) + np.copysign(HALF_SUBNORMAL, wanted), kind)
    towards = _nearest(wanted * (1 - reach), kind)  # not through zero, which has the sign of x
    return np.minimum(away, towards), np.maximum(away, towards)


def _nearest(wanted: np.ndarray, kind: str) -> np.ndarray:
    """Code of the nearest finite value, float64; of float8 by search among all of them, without arithmetic."""
    if kind == "simulated":
        return np.clip(np.rint(wanted * 127 / 448), -127, 127) + 128
    positive = FORMATS[kind].values[:128]
    positive = positive[np.isfinite(positive)]  # ascending, from code 0 on
    size = np.minimum(np.abs(wanted), positive[-1])
    above = np.clip(np.searchsorted(positive, size), 1, len(positive) - 1)
    below = above - 1
    to_below, to_above = size - positive[below], positive[above] - size
    upwards = (to_above < to_below) | ((to_above == to_below) & (above % 2 == 0))
    return np.where(np.isnan(wanted), np.nan, np.where(upwards, above, below) + 128 * np.signbit(wanted))
