"""What a quantiser of each format should give, in float64, from the definitions: scales, codes and decode tables.

`workbench.cuda.quantize` is what is held against it; `case.formats` has the formats. Scales and zero points are [head],
or [batch, head, row, block] where a token, a block of its dims or a tile of tokens has its own; `over`, [head], is the
scale of a tensor that scales are multiplied with.
"""

import numpy as np

from workbench.case.formats import FORMATS, TILE_ROWS
from workbench.floats import round_to, unit_roundoff

U = unit_roundoff("float32")
#: what an operation may lose to underflow in float32: half its smallest subnormal
HALF_SUBNORMAL = 2.0**-150
#: exponents of E8M0, and the largest scale of e4m3
E8M0 = (-127, 127)
LARGEST_E4M3 = FORMATS["e4m3"].largest
#: roundings of float32 on the way to a scale that is rounded to e4m3: both scales' quotients, or their reciprocals
SCALE_ROUNDINGS = 4


def spread(scale: np.ndarray, dims: int, kind: str) -> np.ndarray:
    """A scale or zero point of each of `dims` dims, as broadcasts against x [batch, head, row, dim]."""
    if scale.ndim == 1:
        return scale[:, None, None]
    size = dims if scale.shape[-1] == 1 else FORMATS[kind].block
    return np.repeat(scale, size, axis=-1)[..., :dims]


def extremes(x: np.ndarray, kind: str, scale_of: str = "head") -> tuple[np.ndarray, np.ndarray]:
    """The smallest and the largest number of what shares a scale, with the axes of scales."""
    x = np.asarray(x, np.float64)
    if scale_of == "head":
        return x.min(axis=(0, 2, 3)), x.max(axis=(0, 2, 3))
    starts = np.arange(0, x.shape[-1], FORMATS[kind].block if scale_of == "block" else x.shape[-1])
    low, high = np.minimum.reduceat(x, starts, axis=-1), np.maximum.reduceat(x, starts, axis=-1)
    if scale_of != "tile":
        return low, high
    tiles, of_row = np.arange(0, x.shape[2], TILE_ROWS), np.arange(x.shape[2]) // TILE_ROWS
    return np.minimum.reduceat(low, tiles, axis=2)[:, :, of_row], np.maximum.reduceat(high, tiles, axis=2)[:, :, of_row]


def scale(
    x: np.ndarray, kind: str, *, scaling: str = "dynamic", scale_of: str = "head", over: np.ndarray | None = None
) -> np.ndarray:
    """Scale of every head over all batches, token, block or tile, of x [batch, head, row, dim]: max|x| / the largest
    value of the format, not yet rounded; half of that where `scaling` is static, and 1 where no number is at least
    2^-126 in size. NaN stays NaN.

    With a zero point (max(x, 0) - min(x, 0)) / the largest code. In E8M0 2^(floor(log2 max|x|) - e), where 2^e is the
    largest power of two of the format (OCP's MX 1.0, section 6.3), at least 2^-127. In e4m3 max|x| / largest / `over`,
    rounded; 0 where that is far below 1.
    """
    form, (low, high), share = FORMATS[kind], extremes(x, kind, scale_of), share_of(scaling)
    largest = np.maximum(-low, high)
    if form.scale_dtype == "float8_e8m0fnu":
        return power(np.floor(_log2(share * largest)) - np.floor(np.log2(form.largest)))
    if form.tensor_scale:
        assert over is not None
        return _as_e4m3(largest / form.largest / over[:, None, None])
    top = np.maximum(high, 0.0) - np.minimum(low, 0.0) if form.zero else largest
    return np.where(top < 2.0**-126, 1.0, share * top / form.largest)


def scale_interval(
    value: np.ndarray, x: np.ndarray, kind: str, *, scaling: str, scale_of: str, over: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """The two scales that a right quantiser may give in place of `value`, which are one where it is not rounded to a
    format: of E8M0 OCP's and the least power of two of which nothing saturates, as NVIDIA's recipe has it (arXiv
    2506.08027, section 3); of e4m3 those that a tie may give.
    """
    form = FORMATS[kind]
    if form.scale_dtype == "float8_e8m0fnu":
        low, high = extremes(x, kind, scale_of)
        least = np.ceil(_log2(share_of(scaling) * np.maximum(-low, high) / form.largest))
        return value, np.maximum(value, power(least))
    if form.tensor_scale:
        assert over is not None
        low, high = extremes(x, kind, scale_of)
        wanted = np.maximum(-low, high) / form.largest / over[:, None, None]
        reach = SCALE_ROUNDINGS * U
        return _as_e4m3(wanted * (1 - reach)), _as_e4m3(wanted * (1 + reach) + HALF_SUBNORMAL)
    return value, value


def tensor_scale(x: np.ndarray, kind: str, *, scaling: str = "dynamic") -> np.ndarray:
    """The scale of a tensor, alike for all heads, [head]: max|x| / (largest value * largest e4m3), so that the block of
    the largest number has the largest scale; half of that where static; 1 where no number is at least 2^-126 in size.
    """
    largest = np.abs(np.asarray(x, np.float64)).max()
    found = share_of(scaling) * largest / (FORMATS[kind].largest * LARGEST_E4M3) if not largest < 2.0**-126 else 1.0
    return np.full(x.shape[1], found)


def zero(x: np.ndarray, scale: np.ndarray, kind: str, *, scale_of: str, off: float = 0.0) -> np.ndarray:
    """The zero point, a whole number: -min(x, 0) / scale to the nearest, at most the largest code; `off`: the relative
    error of the quotient.
    """
    low, _ = extremes(x, kind, scale_of)
    return np.clip(np.rint(-np.minimum(low, 0.0) / scale * (1 + off)), 0.0, FORMATS[kind].largest)


def share_of(scaling: str) -> float:
    """Of what scales are made for, what they are where `scaling` is dynamic, or static."""
    return {"dynamic": 1.0, "static": 0.5}[scaling]


@np.errstate(divide="ignore")
def _log2(x: np.ndarray) -> np.ndarray:
    return np.log2(x)


def power(exponent: np.ndarray) -> np.ndarray:
    """The scale in E8M0 that is nearest to 2^exponent, of whole exponents."""
    return np.exp2(np.clip(exponent, *E8M0))


def _as_e4m3(x: np.ndarray) -> np.ndarray:
    return np.asarray(round_to(np.minimum(x, LARGEST_E4M3), "float8_e4m3fn"), np.float64)


def table(scale: np.ndarray, kind: str) -> np.ndarray:
    """What each code stands for, [..., 256], given scale [...]."""
    return np.asarray(scale, np.float64)[..., None] * FORMATS[kind].values


def decoded(codes: np.ndarray, table: np.ndarray) -> np.ndarray:
    """The entries that codes [batch, head, row, dim] (whole numbers in any dtype) select of table [head, code]; NaN
    where they are NaN or no codes.
    """
    known = (codes >= 0) & (codes < table.shape[-1])
    index = np.where(known, codes, 0).astype(np.int64)
    heads = np.arange(index.shape[1])[:, None, None]
    return np.where(known, table[heads, index], np.nan)


def values_of(codes: np.ndarray, kind: str) -> np.ndarray:
    """What codes (whole numbers in any dtype) stand for before their scale; NaN where they are NaN or no codes."""
    values = FORMATS[kind].values
    known = (codes >= 0) & (codes < len(values))
    return np.where(known, values[np.where(known, codes, 0).astype(np.int64)], np.nan)


def decode(
    codes: np.ndarray, kind: str, scale: np.ndarray, zero: np.ndarray | None = None, over: np.ndarray | None = None
) -> np.ndarray:
    """What codes [batch, head, row, dim] stand for: (value - zero) * scale * over."""
    dims, found = codes.shape[-1], values_of(codes, kind)
    found = found if zero is None else found - spread(zero, dims, kind)
    found = found * spread(scale, dims, kind)
    return found if over is None else found * spread(over, dims, kind)


@np.errstate(all="ignore")
def codes(
    x: np.ndarray, scale: np.ndarray, kind: str, zero: np.ndarray | None = None, over: np.ndarray | None = None
) -> np.ndarray:
    """The code of the value nearest to x / scale / over + zero, as float64, of x [batch, head, row, dim].

    Between two values at the same distance the one with the even code (in e4m3, e5m2 and nvfp4: with the even last bit
    of the fraction; in simulated codes with the even code, since 128 is even). What lies beyond the largest value
    becomes that value. A zero has the sign of x, and so has all that has a scale of 0. NaN stays NaN.
    """
    return nearest(*wanted(x, scale, kind, zero, over), kind)


@np.errstate(all="ignore")
def codes_interval(
    x: np.ndarray,
    scale: np.ndarray,
    kind: str,
    zero: np.ndarray | None = None,
    over: np.ndarray | None = None,
    *,
    reach: float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Smallest and largest code that a quantiser in float32 may give, as float64; arguments as of `codes`.

    They are two codes of neighbouring values, or one, which they are but where its roundings on the way to x / scale
    can reach a tie between two values; `reach`: the relative error of x / scale beside these.
    """
    quotient, point = wanted(x, scale, kind, zero, over)
    reach = (FORMATS[kind].encode_roundings * U + reach) * (1 + 2**-20)  # of products of such errors
    added = 0.0 if zero is None else np.copysign(U * (np.abs(quotient) + point), quotient)
    away = nearest(quotient * (1 + reach) + np.copysign(HALF_SUBNORMAL, quotient) + added, point, kind)
    towards = nearest(quotient * (1 - reach) - added, point, kind)  # not through zero, which has the sign of x
    return np.minimum(away, towards), np.maximum(away, towards)


@np.errstate(all="ignore")
def wanted(
    x: np.ndarray, scale: np.ndarray, kind: str, zero: np.ndarray | None, over: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | float]:
    """x / scale, of which a scale of 0 leaves the sign of x, and the zero point."""
    x, dims = np.asarray(x, np.float64), x.shape[-1]
    by = spread(np.asarray(scale, np.float64), dims, kind)
    by = by if over is None else by * spread(np.asarray(over, np.float64), dims, kind)
    quotient = np.where(by == 0, 0.0 * x, x / by) if FORMATS[kind].tensor_scale else x / by
    return quotient, 0.0 if zero is None else spread(np.asarray(zero, np.float64), dims, kind)


def nearest(wanted: np.ndarray, zero: np.ndarray | float, kind: str) -> np.ndarray:
    """Code of the nearest finite value, float64; of floats by search among all of them, without arithmetic."""
    form = FORMATS[kind]
    if kind == "simulated":
        return np.clip(np.rint(wanted * 127 / 448), -127, 127) + 128
    if kind == "int8":
        return np.clip(np.rint(wanted), -127, 127) % 256
    if form.zero:
        return np.clip(np.rint(wanted + zero), 0, form.largest)
    sign = len(form.values) // 2
    positive = form.values[:sign]
    positive = positive[np.isfinite(positive)]  # ascending, from code 0 on
    size = np.minimum(np.abs(wanted), positive[-1])
    above = np.clip(np.searchsorted(positive, size), 1, len(positive) - 1)
    below = above - 1
    to_below, to_above = size - positive[below], positive[above] - size
    upwards = (to_above < to_below) | ((to_above == to_below) & (above % 2 == 0))
    return np.where(np.isnan(wanted), np.nan, np.where(upwards, above, below) + sign * np.signbit(wanted))
