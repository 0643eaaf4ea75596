"""Faults of the quantiser: how scales and zero points are computed, and how values are rounded to codes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from workbench.case.formats import FORMATS, Format
from workbench.case.stages import INPUTS
from workbench.floats import round_to
from workbench.judge.explain.hypothesis import Hypothesis, Unfit, altered, of_family
from workbench.judge.explain.library import indices
from workbench.judge.explain.library.decoding import fitting, power_of_two
from workbench.judge.explain.library.indices import taken
from workbench.reference import quantize

#: inputs that go together, and those of scales of heads
OPERANDS = ("q", "k", "v", "kv", "qkv")
_OF_SCALES = ("q", "k", "v", "qk", "qkv")
#: largest values that formats of 8 bits have, or are taken to have
LARGEST = (127.0, 128.0, 224.0, 240.0, 255.0, 256.0, 448.0, 480.0, 57344.0)

#: of what a quantiser has of an input, and the value of a stage
Change = Callable[["Quantised", Any], Any]
Changes = Iterator[tuple[str, str, Change]]
_of = of_family("codes")


@dataclass(frozen=True)
class Quantised:
    """One input as its quantiser sees it."""

    at: Any
    of: str  #: the input

    @property
    def form(self) -> Format:
        """Its format."""
        return FORMATS[self.at.p.codes.format]

    @property
    def x(self) -> np.ndarray:
        """Its numbers."""
        return np.asarray(self.at.whole(self.of), np.float64)

    @property
    def scale(self) -> np.ndarray:
        """[head], or [batch, head, row, block] where tokens or blocks have their own."""
        found: np.ndarray = self.at.whole(f"scale_{self.of}")
        return found

    def scale_of(self, other: str) -> np.ndarray:
        """The scales [head] of another input; Unfit where it has no codes."""
        if other not in self.at.p.codes.coded:
            raise Unfit
        return fitting(self.at.whole(f"scale_{other}"), len(self.scale))

    @property
    def top(self) -> float:
        """The code value that a head's largest number maps to; twice the format's where scaling is static."""
        return self.form.largest * (2 if self.at.p.codes.scaling == "static" else 1)

    @property
    def extremes(self) -> tuple[np.ndarray, np.ndarray]:
        """Smallest and largest number of each token, block or tile that shares a scale."""
        x, codes = self.at.whole(self.of), self.at.p.codes
        made = partial(quantize.extremes, x, codes.format, codes.scale_of or "block")
        found: tuple[np.ndarray, np.ndarray] = self.at.once(("extremes", self.of), made)
        return found

    @property
    def size(self) -> np.ndarray:
        """Largest absolute value of each of these."""
        low, high = self.extremes
        return np.maximum(-low, high)

    @property
    def wanted(self) -> tuple[np.ndarray, np.ndarray | float]:
        """x / scale, and the zero point."""
        beside = {"zero": self.form.zero, "global": self.form.tensor_scale}
        zero, over = (self.at.whole(f"{name}_{self.of}") if there else None for name, there in beside.items())
        return quantize.wanted(self.at.whole(self.of), self.scale, self.at.p.codes.format, zero, over)

    def times(self, scales: np.ndarray) -> np.ndarray:
        """x / scale * scales [head]."""
        return self.wanted[0] * scales[:, None, None]

    def nearest(self, wanted: np.ndarray, zero: np.ndarray | float = 0.0) -> np.ndarray:
        """The codes nearest to x / scale + zero point."""
        return quantize.nearest(wanted, zero, self.at.p.codes.format)

    def small(self, wanted: np.ndarray) -> np.ndarray:
        """Where x / scale is below the format's smallest normal number, bool."""
        return abs(wanted) < self.form.smallest_normal


def hypotheses() -> Iterator[Hypothesis]:
    """Those of the family codes that are faults of the quantiser."""
    yield from _made("scale", "block-", _scales_of_tokens(), OPERANDS, tokens=True)
    yield from _made("zero", "block-", _zeros(), OPERANDS, tokens=True)
    yield from _made("codes", "block-", chain(_encoded(), _encoded_of_tokens()), OPERANDS, tokens=True)
    yield from _made("scale", "quantiser-", _scales(), _OF_SCALES, tokens=False)
    yield from _made("codes", "", chain(_encoded(), _encoded_of_heads()), OPERANDS, tokens=False)


def _made(stage: str, prefix: str, changes: Changes, operands: Sequence[str], *, tokens: bool) -> Iterator[Hypothesis]:
    """`changes` of a stage (scale, zero or codes) for each group of operands; Unfit where scales are per head and
    `tokens` (scales per token or block) are meant, or the reverse.
    """
    for name, text, change in changes:

        def changed(at: Any, value: np.ndarray, x: str, change: Change = change) -> Any:
            if ((value if stage == "scale" else at.whole(f"scale_{x}")).ndim > 1) != tokens:
                raise Unfit
            return change(Quantised(at, x), value)

        for some in operands:
            edits = [altered(f"{stage}_{x}", lambda at, value, x=x, made=changed: made(at, value, x)) for x in some]
            yield _of(f"{prefix}{name}-{some}", f"{text} ({', '.join(some)})", *edits)


def _scales() -> Changes:
    over = (0, 2, 3)
    size = lambda x: abs(x).max(over)  # noqa: E731
    words = "scales use the largest value instead of the largest magnitude"
    yield "no-abs", words, lambda c, s: np.maximum(c.x.max(over), 0.0) / c.top
    words = "scales use the largest value, which may be negative"
    yield "no-abs-plain", words, lambda c, s: c.x.max(over) / c.top
    yield "min", "scales use the smallest value", lambda c, s: -c.x.min(over) / c.top
    yield "mean", "scales use the mean magnitude", lambda c, s: abs(c.x).mean(over) / c.top
    yield "no-floor", "an all-zero head gets the scale 0", lambda c, s: size(c.x) / c.top
    for floor in (1e-12, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 2.0**-126, 2.0**-149):
        words = f"scales are clamped to at least {floor:g}, even for an all-zero head"
        yield f"floor-{floor:g}", words, lambda c, s, e=floor: np.maximum(size(c.x) / c.top, e)
        words = f"magnitudes are clamped to at least {floor:g} before scales are computed, even for an all-zero head"
        yield f"size-floor-{floor:g}", words, lambda c, s, e=floor: np.maximum(size(c.x), e) / c.top
    yield "first-batch", "scales are computed from batch 0 only", lambda c, s: size(c.x[:1]) / c.top
    yield "last-batch", "scales are computed from the last batch only", lambda c, s: size(c.x[-1:]) / c.top
    yield "first-row", "scales are computed from the first row only", lambda c, s: size(c.x[:, :, :1]) / c.top
    whole = lambda c, s: size(c.x[:, :, : max(c.x.shape[2] - 1, 1)]) / c.top  # noqa: E731
    yield "without-last-row", "scales ignore the last row", whole
    yield "tensor", "one scale is computed over all heads", lambda c, s: 0 * s + abs(c.x).max() / c.top
    yield "half", "scales are halved: large values saturate", lambda c, s: s / 2
    yield "double", "scales are doubled", lambda c, s: s * 2
    yield "inverse", "scales are inverted", lambda c, s: 1 / s
    yield "amax", "scales are not divided by the largest code value", lambda c, s: s * c.form.largest
    for one in indices.others():
        yield (
            f"head-{one.id}",
            f"scales of the wrong head are stored: {one.text}",
            lambda c, s, one=one: taken(s, one, 0),
        )
    for dtype in ("float16", "bfloat16", "float8_e4m3fn"):
        yield dtype, f"scales are rounded to {dtype}", lambda c, s, d=dtype: round_to(s, d)
    for up, verb in ((True, "up"), (False, "down")):
        words = f"scales are rounded {verb} to powers of two"
        yield f"power-{verb}", words, lambda c, s, up=up: power_of_two(s, up)
    for b in (16, 32, 64, 128):
        rows = lambda c, s, b=b: size(c.x[:, :, : max(c.x.shape[2] // b * b, 1)]) / c.top  # noqa: E731
        yield f"rows-{b}", f"scales cover only full blocks of {b} rows", rows
        yield f"dims-{b}", f"scales cover only the first {b} dims", lambda c, s, b=b: size(c.x[..., :b]) / c.top
    yield from _largest(LARGEST)


def _largest(largest: Sequence[float]) -> Changes:
    for n in largest:
        words = f"scales assume a largest code value of {n:g}"
        yield f"largest-{n:g}", words, lambda c, s, n=n: s * c.form.largest / n


def _scales_of_tokens() -> Changes:
    def exponent(round_: Callable[[np.ndarray], np.ndarray]) -> Change:
        def changed(c: Quantised, s: np.ndarray) -> np.ndarray:
            if c.form.scale_dtype != "float8_e8m0fnu":
                raise Unfit
            size = quantize.share_of(c.at.p.codes.scaling) * c.size
            return quantize.power(round_(np.log2(size)) - np.floor(np.log2(c.form.largest)))

        return changed

    for factor, times in ((2.0, "doubled"), (0.5, "halved")):
        yield f"scale-{factor:g}", f"block scales are {times}", lambda c, s, f=factor: s * f
    yield "exponent-nearest", "the exponent of scales is rounded to nearest", exponent(np.rint)
    yield "exponent-up", "the exponent of scales is rounded up", exponent(np.ceil)
    words = "block scales use the largest value instead of the largest magnitude"
    yield "no-abs", words, lambda c, s: s * np.maximum(c.extremes[1], 0.0) / c.size
    spread = lambda low, high: np.maximum(high, 0) - np.minimum(low, 0)  # noqa: E731
    words = "scales use the largest magnitude instead of the range"
    yield "of-size", words, lambda c, s: s * c.size / spread(*c.extremes)
    words = "scales assume one quantisation step too many"
    yield "one-step-more", words, lambda c, s: s * c.form.largest / (c.form.largest + 1)
    yield "of-row", "one scale is used for each whole row", lambda c, s: 0 * s + s.max(-1, keepdims=True)
    yield from _largest((6.0, 8.0, 128.0, 240.0, 256.0, 512.0))


def _zeros() -> Changes:
    def point(round_: Callable[[np.ndarray], np.ndarray]) -> Change:
        whole = lambda c: round_(-np.minimum(c.extremes[0], 0.0) / c.scale)  # noqa: E731
        return lambda c, z: np.clip(whole(c), 0, c.form.largest)

    for name, verb, round_ in (("trunc", "truncated", np.trunc), ("ceil", "rounded up", np.ceil)):
        yield f"zero-{name}", f"zero points are {verb}, not rounded to nearest", point(round_)
    yield "zero-unrounded", "zero points are not rounded", point(lambda x: x)
    yield "zero-8", "zero points are 8", lambda c, z: 0 * z + 8
    for shift in (1, -1):
        yield f"zero{shift:+}", f"zero points are off by {shift}", lambda c, z, n=shift: z + n


def _encoded() -> Changes:
    def rounded(c: Quantised, how: str) -> np.ndarray:
        wanted, zero = c.wanted
        return encoded(wanted + zero if c.form.zero else wanted, c.at.p.codes.format, how)

    def flushed(c: Quantised, codes: np.ndarray) -> np.ndarray:
        wanted, zero = c.wanted
        return c.nearest(np.where(c.small(wanted), 0.0 * wanted, wanted), zero)

    for how in ("toward-zero", "up", "down", "away", "half-up"):
        yield f"rounded-{how}", f"codes are rounded {how}", lambda c, codes, how=how: rounded(c, how)
    yield "flushed-codes", "values below the smallest normal number are encoded as 0", flushed
    words = "values lose their sign when encoded"
    yield "absolute-codes", words, lambda c, codes: c.nearest(abs(c.wanted[0]), c.wanted[1])


def _encoded_of_tokens() -> Changes:
    words = "values are encoded without their zero point"
    yield "no-zero", words, lambda c, codes: c.nearest(c.wanted[0], 0.0 * c.wanted[1])


def _encoded_of_heads() -> Changes:
    def lost(c: Quantised, codes: np.ndarray) -> np.ndarray:
        wanted = c.wanted[0]
        small = c.small(c.form.values[c.nearest(wanted).astype(np.int64)])
        return c.nearest(np.where(small, 0.0 * wanted, wanted))

    yield "subnormal-codes-lost", "subnormal codes are stored as 0", lost
    yield "unsaturated", "values past the largest code do not saturate", lambda c, codes: _unsaturated(c)
    yield "wrapped", "values past the largest code wrap around", lambda c, codes: _wrapped(c)
    for dtype in ("float16", "bfloat16"):
        words = f"values are rounded to {dtype} before they are encoded"
        yield f"twice-rounded-{dtype}", words, lambda c, codes, d=dtype: c.nearest(round_to(c.wanted[0], d))
    words = "values are encoded without their scale"
    yield "unscaled-codes", words, lambda c, codes: c.nearest(c.times(c.scale))
    words = "values are multiplied by their scale, not divided"
    yield "multiplied-codes", words, lambda c, codes: c.nearest(c.times(c.scale**2))
    words = "negative values are encoded as 0"
    yield "clipped-low", words, lambda c, codes: c.nearest(np.maximum(c.wanted[0], 0.0))
    for one in indices.others():
        other = lambda c, codes, one=one: c.nearest(c.times(c.scale / taken(c.scale, one, 0)))  # noqa: E731
        yield f"encoded-head-{one.id}", f"values are encoded with the scale of the wrong head: {one.text}", other
    for y in INPUTS:
        words = f"values are encoded with the scale of {y}"
        yield f"encoded-by-{y}", words, lambda c, codes, y=y: c.nearest(c.times(c.scale / c.scale_of(y)))


def encoded(wanted: np.ndarray, kind: str, how: str) -> np.ndarray:
    """The code on one side of `wanted` (up, down, toward-zero, away) or nearest with ties up (half-up), saturated."""
    values = FORMATS[kind].values
    finite = np.flatnonzero(np.isfinite(values))
    order = finite[np.argsort(values[finite], kind="stable")]
    ascending = values[order]
    inside = np.clip(wanted, ascending[0], ascending[-1])
    above = np.clip(np.searchsorted(ascending, inside, "left"), 1, len(order) - 1)
    below = np.where(ascending[above] == inside, above, above - 1)
    low, high = ascending[below], ascending[above]
    if how == "half-up":
        upwards = inside - low >= high - inside
    else:
        up = {"up": np.full(inside.shape, True), "down": np.full(inside.shape, False)}
        upwards = up[how] if how in up else (inside > 0) == (how == "away")
    chosen = order[np.where(upwards, above, below)]
    if kind in ("simulated", "int8", "int4"):
        return chosen.astype(np.float64)
    # a zero has the sign of x
    zero, sign = values[chosen] == 0, len(values) / 2
    return np.where(zero, np.where(np.signbit(wanted), sign, 0.0), chosen).astype(np.float64)


def _unsaturated(c: Quantised) -> np.ndarray:
    """Codes in which what is beyond the largest value becomes NaN, or infinity in e5m2; Unfit for formats without."""
    kind, wanted = c.at.p.codes.format, c.wanted[0]
    if kind == "simulated":
        return _wrapped(c)
    special = {"e4m3": 127.0, "e5m2": 124.0}
    if kind not in special:
        raise Unfit
    beyond = abs(wanted) > c.form.largest * (1 + 2.0**-5)
    return np.where(beyond, special[kind] + 128.0 * np.signbit(wanted), c.nearest(wanted))


def _wrapped(c: Quantised) -> np.ndarray:
    """Codes of which only the low byte is kept: simulated integers wrap around."""
    wanted = c.wanted[0]
    if c.at.p.codes.format != "simulated":
        return c.nearest(wanted)
    return np.mod(np.rint(wanted * 127 / 448) + 128, 256)
