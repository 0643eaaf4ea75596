"""Quantisation to 8-bit codes and back: scales, codes, decode tables, decoded rows.

The stages up to the codes are the quantiser's, the others the kernel's. With a kernel's codes and scales given and
nothing else, what comes out is what the kernel should have made of them; what q, k and v lost when they were quantised
is in none of its errors. Half an ulp of the dtype that stores a stage is always allowed by whoever compares, and is the
one rounding of an exact stage: the division of a scale, the cast of an entry of a dumped table.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from workbench.case.formats import FORMATS
from workbench.floats import round_to, unit_roundoff
from workbench.reference import quantize
from workbench.reference.bound import Bound
from workbench.reference.stage import Bounded, Near, Ref


class Interval(NamedTuple):
    """What a correct kernel may have, float64 arrays of the stage's shape."""

    value: np.ndarray  #: as float64 makes it, before any cast
    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True)
class QuantiserScale:
    """Scale of every head over all batches, [head]: max|x| / the largest value of a code, or half of that where static;
    not yet rounded.
    """

    of: Ref

    def value(self, at: Any) -> np.ndarray:
        return quantize.scale(at(self.of), at.p.codes.format, scaling=at.p.codes.scaling)

    def bound(self, at: Any) -> Bounded:
        """A division, of which the rounding is that of what stores it."""
        return Bounded(Bound(at.own * at.p.codes.slack, 0.0, 0.0))

    words = "max|{of}| of a head in all batches / largest value of a code, half of that where static; 1 for a zero head"


@dataclass(frozen=True)
class Encode:
    """The code nearest to of / scale, saturated, [batch, head, row, dim], as a float64 number."""

    of: Ref
    scale: Ref

    def value(self, at: Any) -> np.ndarray:
        return quantize.codes(at(self.of), at(self.scale), at.p.codes.format)

    def interval(self, at: Any) -> Interval:
        """Of two codes that a tie may give either is right."""
        reach = at.p.codes.slack + relative_error(at, self.scale)
        low, high = quantize.codes_interval(at(self.of), at(self.scale), at.p.codes.format, reach=reach)
        return Interval(at.own, low, high)

    def bound(self, at: Any) -> Bounded:
        """None: a code is right or wrong."""
        return Bounded(Bound(np.zeros_like(at.own), 0.0, 0.0))

    words = "the code nearest to {of} / {scale}, saturated"


@dataclass(frozen=True)
class DecodeTable:
    """What each code stands for, [head, code]; NaN and infinite where codes are."""

    scale: Ref

    def value(self, at: Any) -> np.ndarray:
        return quantize.table(at(self.scale), at.p.codes.format)

    def bound(self, at: Any) -> Bounded:
        """Products and quotients in float32."""
        return Bounded(Bound(decoding_error(at.own, at.p.codes.format, relative_error(at, self.scale)), 0.0, 0.0))

    words = "value of the code * {scale}, float32"


@dataclass(frozen=True)
class Decode:
    """The rows that codes stand for, [batch, head, row, dim], by their table or, without one, by their scale."""

    codes: Ref
    by: Ref  #: the table, or the scale where the kernel has none
    scale: Near
    of: str  #: the input that was quantised

    def value(self, at: Any) -> np.ndarray:
        """In float64, not rounded to what products read."""
        return quantize.decoded(at(self.codes), self._entries(at))

    def _entries(self, at: Any) -> np.ndarray:
        return at(self.by) if self._has_table else quantize.table(at(self.by), at.p.codes.format)

    @property
    def _has_table(self) -> bool:
        return self.by != self.scale

    @np.errstate(all="ignore")
    def interval(self, at: Any) -> Interval:
        """What the kernel may decode, before and after the cast to what products read: from its codes and its table
        where they were dumped, else from what its quantiser may have made of the input.
        """
        entries = self._entries(at)
        value = low = high = at.own
        if not at.given(self.codes):
            _, *ends = at.interval(self.codes)
            one, other = (quantize.decoded(codes, entries) for codes in ends)
            low, high = np.minimum(one, other), np.maximum(one, other)
        if not (self._has_table and at.given(self.by)):
            error = relative_error(at, self.scale)
            low, high = (
                end + sign * decoding_error(end, at.p.codes.format, error) for end, sign in ((low, -1), (high, 1))
            )
        return Interval(value, *as_operands(low, high, at.p.codes.operands[self.of]))

    def bound(self, at: Any) -> Bounded:
        """The farther end; NaN and infinities are exact."""
        value, low, high = self.interval(at)
        return Bounded(Bound(np.where(np.isfinite(value), np.maximum(high - value, value - low), 0.0), 0.0, 0.0))

    @property
    def words(self) -> str:
        entry = "{by} of the code" if self._has_table else "value of the code * {by}"
        return f"{entry}, rounded to what products read"


@dataclass(frozen=True)
class Coarsest:
    """An input as a kernel of unknown 8-bit format may decode it.

    Of a value at most half an ulp of float8_e5m2, the format of fewest bits, is lost; of the largest value half a step
    of int8, 127 of which reach a largest value that a static scale takes for twice as large as it is; each twice, since
    a quantiser may truncate.
    """

    of: Ref

    def value(self, at: Any) -> np.ndarray:
        """The input."""
        return at(self.of)

    def interval(self, at: Any) -> Interval:
        """So much more or less."""
        x = at(self.of)
        off = 2 * (unit_roundoff("float8_e5m2") * abs(x) + np.abs(x).max(initial=0.0) / 127)
        return Interval(x, x - off, x + off)

    def bound(self, at: Any) -> Bounded:
        """The farther end."""
        value, low, high = self.interval(at)
        return Bounded(Bound(np.maximum(high - value, value - low), 0.0, 0.0))

    words = "{of}, decoded of codes of unknown format"


def relative_error(at: Any, scale: str) -> float:
    """Relative error of a scale: 0 where it was dumped, else that of a division."""
    return 0.0 if at.given(scale) else quantize.U + at.p.codes.slack


@np.errstate(all="ignore")
def decoding_error(value: np.ndarray, codes: str, of_scale: float = 0.0) -> np.ndarray:
    """Bound of |entry - value| of a code of the format `codes` decoded in float32, float64 of the shape of `value`.

    n rounded products and quotients, of which the last may underflow: g(n) |value| + 2^-150, g(n) = n u / (1 - n u)
    (Higham 2002, lemma 3.1), and the relative error `of_scale`. 0 for NaN and infinities, which are exact.
    """
    n = FORMATS[codes].decode_roundings
    gamma = n * quantize.U / (1 - n * quantize.U)
    relative = gamma + of_scale * (1 + gamma)
    return np.where(np.isfinite(value), relative * np.abs(value) + quantize.HALF_SUBNORMAL, 0.0)


@np.errstate(all="ignore")
def as_operands(low: np.ndarray, high: np.ndarray, dtype: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Smallest and largest value, float64, to which a correct kernel rounds what lies from `low` to `high`: rounding is
    monotone, so that the ends decide.

    `dtype`: to which it rounds; float32 rounds no more; None: nobody told which of them and of the 16-bit ones.
    """
    possible = (dtype,) if dtype is not None else ("float32", "float16", "bfloat16")
    lows, highs = [low], [high]
    for one in possible:
        if one != "float32":
            below, above = round_to(low, one), round_to(high, one)
            # a dtype that cannot hold the value is not what the kernel chose
            lows.append(np.where(np.isinf(below) & np.isfinite(low) & (dtype is None), low, below))
            highs.append(np.where(np.isinf(above) & np.isfinite(high) & (dtype is None), high, above))
    if dtype is not None:
        return lows[-1], highs[-1]
    return np.min(lows, axis=0), np.max(highs, axis=0)
