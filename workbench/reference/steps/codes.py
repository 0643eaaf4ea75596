"""Quantisation to codes of few bits and back: scales, codes, decode tables, decoded rows.

The stages up to the codes are the quantiser's, the others the kernel's. With a kernel's codes and scales given and
nothing else, what comes out is what the kernel should have made of them; what q, k and v lost when they were quantised
is in none of its errors. Half an ulp of the dtype that stores a stage is always allowed by whoever compares, and is the
one rounding of an exact stage: the division of a scale, the cast of an entry of a dumped table.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
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

    @np.errstate(all="ignore")
    def after(self, change: Callable[[np.ndarray], np.ndarray]) -> "Interval":
        """What becomes of it where `change` is made of each number."""
        ends = [change(x) for x in self]
        return Interval(ends[0], np.fmin.reduce(ends), np.fmax.reduce(ends))


@dataclass(frozen=True)
class TensorScale:
    """What the scales of a tensor are multiplied with, alike for all heads, [head]; not yet rounded."""

    of: Ref

    def value(self, at: Any) -> np.ndarray:
        return quantize.tensor_scale(at(self.of), at.p.codes.format, scaling=at.p.codes.scaling)

    def bound(self, at: Any) -> Bounded:
        """Two divisions."""
        return Bounded(Bound(at.own * (at.p.codes.slack + 2 * quantize.U), 0.0, 0.0))

    words = "max|{of}| / (largest value of a code * largest e4m3), half of that where static; 1 for a zero tensor"


@dataclass(frozen=True)
class QuantiserScale:
    """Scale of every head over all batches, [head], or of every token, block or tile, [batch, head, row, block]:
    max|x| / the largest value of a code, or half of that where static, as `quantize.scale` says; not yet rounded.
    """

    of: Ref
    over: Ref = ""  #: the scale of the tensor, in formats that have one
    shared_by: str = "head"  #: or token, block of dims, tile of tokens

    def value(self, at: Any) -> np.ndarray:
        p = at.p.codes
        over = _read(at, self.over)
        return quantize.scale(at(self.of), p.format, scaling=p.scaling, scale_of=self.shared_by, over=over)

    def interval(self, at: Any) -> Interval:
        """Of two scales of a format for scales that right quantisers may give either is right."""
        p, over = at.p.codes, _read(at, self.over)
        options = {"scaling": p.scaling, "scale_of": self.shared_by, "over": over}
        value = self.value(at)
        return Interval(value, *quantize.scale_interval(value, at(self.of), p.format, **options))

    def bound(self, at: Any) -> Bounded:
        """A division, of which the rounding is that of what stores it; with a zero point, of a rounded difference."""
        rounded = 2 * quantize.U if FORMATS[at.p.codes.format].zero else 0.0
        return Bounded(Bound(at.own * (at.p.codes.slack + rounded), 0.0, 0.0))

    @property
    def words(self) -> str:
        if self.shared_by == "head":
            return (
                "max|{of}| of each head over all batches / largest value of a code, half of that where static; 1 for a "
                "zero head"
            )
        by = "largest value of a code" + (" / {over}" if self.over else "")
        return f"max|{{of}}| of each {self.shared_by} / {by}, rounded to the scale's format; half of that where static"


@dataclass(frozen=True)
class ZeroPoint:
    """The code that stands for 0, of every token or block, [batch, head, row, block]."""

    of: Ref
    scale: Ref
    shared_by: str

    def _value(self, at: Any, off: float) -> np.ndarray:
        return quantize.zero(at(self.of), at(self.scale), at.p.codes.format, scale_of=self.shared_by, off=off)

    def value(self, at: Any) -> np.ndarray:
        return self._value(at, 0.0)

    def interval(self, at: Any) -> Interval:
        """Of two numbers that a tie may give either is right."""
        off = 2 * quantize.U + at.p.codes.slack + relative_error(at, self.scale)
        return Interval(at.own, self._value(at, -off), self._value(at, off))

    def bound(self, at: Any) -> Bounded:
        """None: it is right or wrong."""
        return Bounded(Bound(np.zeros_like(at.own), 0.0, 0.0))

    words = "-min({of}, 0) of the elements that share it / {scale}, rounded to an integer, at most the largest code"


@dataclass(frozen=True)
class Encode:
    """The code nearest to of / scale, saturated, [batch, head, row, dim], as a float64 number."""

    of: Ref
    scale: Ref
    zero: Ref = ""
    over: Ref = ""

    def value(self, at: Any) -> np.ndarray:
        beside = _read(at, self.zero), _read(at, self.over)
        return quantize.codes(at(self.of), at(self.scale), at.p.codes.format, *beside)

    def interval(self, at: Any) -> Interval:
        """Of two codes that a tie, or two right scales, may give either is right."""
        reach = at.p.codes.slack + relative_error(at, self.scale, self.over)
        ends = [
            end
            for scale, zero in product(_ends(at, self.scale), _ends(at, self.zero))
            for end in quantize.codes_interval(
                at(self.of), scale, at.p.codes.format, zero, _read(at, self.over), reach=reach
            )
        ]
        return Interval(at.own, np.minimum.reduce(ends), np.maximum.reduce(ends))

    def bound(self, at: Any) -> Bounded:
        """None: a code is right or wrong."""
        return Bounded(Bound(np.zeros_like(at.own), 0.0, 0.0))

    @property
    def words(self) -> str:
        by = "{scale}" + (" / {over}" if self.over else "") + (" + {zero}" if self.zero else "")
        return f"the code nearest to {{of}} / {by}, saturated"


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
    zero: Ref = ""
    over: Ref = ""

    def value(self, at: Any) -> np.ndarray:
        """In float64, not rounded to the operand dtype."""
        return self._decoded(at, at(self.codes), at(self.by), _read(at, self.zero))

    def _decoded(self, at: Any, codes: np.ndarray, by: np.ndarray, zero: np.ndarray | None) -> np.ndarray:
        if self._has_table:
            return quantize.decoded(codes, by)
        return quantize.decode(codes, at.p.codes.format, by, zero, _read(at, self.over))

    @property
    def _has_table(self) -> bool:
        return self.by != self.scale

    @np.errstate(all="ignore")
    def interval(self, at: Any) -> Interval:
        """What the kernel may decode, before and after the cast to what products read: from its codes and its table
        where they were dumped, else from what its quantiser may have made of the input.
        """
        if not at.given(self.codes):
            return Interval(at.own, *self._between(at, at.interval(self.codes)[1:]))
        codes = at(self.codes)
        if self.zero or self.over or at(self.scale).ndim != 1:
            return Interval(at.own, *self._between(at, [codes]))
        # a head has as many values as there are codes: they are decoded, and looked up (of 17 million codes 0.7 s
        # instead of 3)
        count = len(FORMATS[at.p.codes.format].values)
        each = np.broadcast_to(np.arange(count), (1, codes.shape[1], 1, count))
        return Interval(at.own, *(quantize.decoded(codes, end[0, :, 0]) for end in self._between(at, [each])))

    def _between(self, at: Any, codes: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """The ends of the interval of codes between these."""
        by = [at(self.by)] if self._has_table else _ends(at, self.by)
        made = [self._decoded(at, *read) for read in product(codes, by, _ends(at, self.zero))]
        low, high = (made[0], made[0]) if len(made) == 1 else (np.minimum.reduce(made), np.maximum.reduce(made))
        if not (self._has_table and at.given(self.by)):
            error, size = relative_error(at, self.scale, self.over), self._of_zero(at)
            low, high = (
                end + sign * decoding_error(end, at.p.codes.format, error, size) for end, sign in ((low, -1), (high, 1))
            )
        return as_operands(low, high, at.p.codes.operands[self.of])

    def _of_zero(self, at: Any) -> np.ndarray | float:
        """What zero * scale, twice, adds to the size of terms of a kernel that subtracts it from code * scale."""
        if not self.zero:
            return 0.0
        dims, kind = at(self.codes).shape[-1], at.p.codes.format
        return 2 * np.abs(quantize.spread(at(self.zero), dims, kind)) * quantize.spread(at(self.scale), dims, kind)

    def bound(self, at: Any) -> Bounded:
        """The farther end; NaN and infinities are exact."""
        value, low, high = self.interval(at)
        return Bounded(Bound(np.where(np.isfinite(value), np.maximum(high - value, value - low), 0.0), 0.0, 0.0))

    @property
    def words(self) -> str:
        value = "(value of the code - {zero})" if self.zero else "value of the code"
        entry = "{by} of the code" if self._has_table else f"{value} * {{by}}" + (" * {over}" if self.over else "")
        return f"{entry}, rounded to the operand dtype"


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

    words = "{of}, decoded from codes of unknown format"


def _read(at: Any, ref: str) -> np.ndarray | None:
    """What a format has, or has not."""
    return at(ref) if ref else None


def _ends(at: Any, ref: str) -> list[Any]:
    """What a scale or zero point may be: the dumped one, else what right quantisers may give."""
    if not ref or at.given(ref):
        return [_read(at, ref)]
    _, low, high = at.interval(ref)
    return [at(ref)] if np.array_equal(low, high) else [low, high]


def relative_error(at: Any, *scales: str) -> float:
    """Relative error of the product of scales: of each 0 where it was dumped, else that of a division."""
    return sum(0.0 if not scale or at.given(scale) else quantize.U + at.p.codes.slack for scale in scales)


@np.errstate(all="ignore")
def decoding_error(value: np.ndarray, codes: str, of_scale: float = 0.0, more: np.ndarray | float = 0.0) -> np.ndarray:
    """Bound of |entry - value| of a code of the format `codes` decoded in float32, float64 of the shape of `value`.

    n rounded operations, of which the last may underflow: g(n) |value| + 2^-150, g(n) = n u / (1 - n u)
    (Higham 2002, lemma 3.1), and the relative error `of_scale`; `more`: what terms that cancel add to |value|. A
    product of two scales may underflow, too, before a code multiplies it. 0 for NaN and infinities, which are exact.
    """
    form = FORMATS[codes]
    n = form.decode_roundings
    gamma = n * quantize.U / (1 - n * quantize.U)
    relative = gamma + of_scale * (1 + gamma)
    underflow = quantize.HALF_SUBNORMAL * (1 + form.largest if form.tensor_scale or form.zero else 1)
    return np.where(np.isfinite(value), relative * (np.abs(value) + more) + underflow, 0.0)


@np.errstate(all="ignore")
def as_operands(low: np.ndarray, high: np.ndarray, dtype: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Smallest and largest value, float64, to which a correct kernel rounds what lies from `low` to `high`: rounding is
    monotone, so that the ends decide.

    `dtype`: to which it rounds; float32 rounds no more; None: it is not declared which of them and of the 16-bit ones.
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
