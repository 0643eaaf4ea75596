"""The quantiser of codes with a scale for each token or block of its dims."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from workbench.case.formats import FORMATS
from workbench.judge.explain.hypothesis import Hypothesis, Unfit, altered
from workbench.judge.explain.library.blocks import OPERANDS
from workbench.judge.explain.library.quantiser import encoded
from workbench.reference import quantize

#: of `at.At`, the value of a stage and the name of its input
Change = Callable[[Any, np.ndarray, str], np.ndarray]


def hypotheses() -> Iterator[Hypothesis]:
    """Those of the family codes."""
    yield from _scales()
    yield from _zeros()
    yield from _codes()


def _of(stage: str, name: str, text: str, change: Change) -> Iterator[Hypothesis]:
    for operands in OPERANDS:

        def changed(at: Any, value: np.ndarray, x: str) -> np.ndarray:
            if (value if stage == "scale" else at.whole(f"scale_{x}")).ndim == 1:
                raise Unfit
            return change(at, value, x)

        edits = tuple(altered(f"{stage}_{x}", lambda at, value, x=x: changed(at, value, x)) for x in operands)
        yield Hypothesis(f"codes.block-{name}-{operands}", f"{text} ({', '.join(operands)})", edits)


def _extremes(at: Any, x: str) -> tuple[np.ndarray, np.ndarray]:
    """The smallest and the largest number of what shares a scale."""
    shared_by = at.p.codes.scale_of or "block"
    return at.once(("extremes", x), lambda: quantize.extremes(at.whole(x), at.p.codes.format, shared_by))


def _size(at: Any, x: str) -> np.ndarray:
    """The largest size of what shares a scale."""
    low, high = _extremes(at, x)
    return np.maximum(-low, high)


def _scales() -> Iterator[Hypothesis]:
    def exponent(round_: Callable[[np.ndarray], np.ndarray]) -> Change:
        def changed(at: Any, s: np.ndarray, x: str) -> np.ndarray:
            form = FORMATS[at.p.codes.format]
            if form.scale_dtype != "float8_e8m0fnu":
                raise Unfit
            size = quantize.share_of(at.p.codes.scaling) * _size(at, x)
            return quantize.power(round_(np.log2(size)) - np.floor(np.log2(form.largest)))

        return changed

    for factor, words in ((2.0, "twice"), (0.5, "half")):
        text = f"scales of blocks are {words} as large"
        yield from _of("scale", f"scale-{factor:g}", text, lambda at, s, x, f=factor: s * f)
    yield from _of("scale", "exponent-nearest", "the exponent of scales is rounded to the nearest", exponent(np.rint))
    yield from _of("scale", "exponent-up", "the exponent of scales is rounded up", exponent(np.ceil))
    of_high = lambda at, s, x: s * np.maximum(_extremes(at, x)[1], 0.0) / _size(at, x)  # noqa: E731
    yield from _of("scale", "no-abs", "scales of blocks are of the largest value, not of the largest size", of_high)

    def of_size(at: Any, s: np.ndarray, x: str) -> np.ndarray:
        low, high = _extremes(at, x)
        return s * _size(at, x) / (np.maximum(high, 0) - np.minimum(low, 0))

    yield from _of("scale", "of-size", "scales are of the largest size, not of the range", of_size)
    steps = lambda at, s, x: s * (n := FORMATS[at.p.codes.format].largest) / (n + 1)  # noqa: E731
    yield from _of("scale", "one-step-more", "scales are made for one step more than there are", steps)
    whole = lambda at, s, x: 0 * s + s.max(-1, keepdims=True)  # noqa: E731
    yield from _of("scale", "of-row", "scales are of whole rows", whole)
    for largest in (6.0, 8.0, 128.0, 240.0, 256.0, 512.0):
        text = f"scales are made for a largest value of {largest:g}"
        yield from _of(
            "scale", f"largest-{largest:g}", text,
            lambda at, s, x, n=largest: s * FORMATS[at.p.codes.format].largest / n,
        )  # fmt: skip


def _zeros() -> Iterator[Hypothesis]:
    def point(round_: Callable[[np.ndarray], np.ndarray]) -> Change:
        def changed(at: Any, z: np.ndarray, x: str) -> np.ndarray:
            found = round_(-np.minimum(_extremes(at, x)[0], 0.0) / at.whole(f"scale_{x}"))
            return np.clip(found, 0, FORMATS[at.p.codes.format].largest)

        return changed

    for name, verb, round_ in (("trunc", "truncated", np.trunc), ("ceil", "rounded up", np.ceil)):
        yield from _of("zero", f"zero-{name}", f"zero points are {verb}, not rounded to the nearest", point(round_))
    yield from _of("zero", "zero-unrounded", "zero points are not rounded", point(lambda x: x))
    yield from _of("zero", "zero-8", "zero points are 8", lambda at, z, x: 0 * z + 8)
    for shift in (1, -1):
        text = f"zero points are off by {shift}"
        yield from _of("zero", f"zero{shift:+}", text, lambda at, z, x, n=shift: z + n)


def _codes() -> Iterator[Hypothesis]:
    def of(
        name: str, text: str, change: Callable[[str, np.ndarray, np.ndarray | float], np.ndarray]
    ) -> Iterator[Hypothesis]:
        """`change` of the format, x / scale, and the zero point."""

        def changed(at: Any, c: np.ndarray, x: str) -> np.ndarray:
            kind = at.p.codes.format
            zero = at.whole(f"zero_{x}") if FORMATS[kind].zero else None
            over = at.whole(f"global_{x}") if FORMATS[kind].tensor_scale else None
            return change(kind, *quantize.wanted(at.whole(x), at.whole(f"scale_{x}"), kind, zero, over))

        yield from _of("codes", name, text, changed)

    for how in ("toward-zero", "up", "down", "away", "half-up"):
        yield from of(
            f"rounded-{how}", f"codes are rounded {how}", lambda kind, w, z, how=how: encoded(w + z, kind, how)
        )
    nearest = quantize.nearest
    small = lambda kind, w: abs(w) < FORMATS[kind].smallest_normal  # noqa: E731
    flushed = lambda kind, w, z: nearest(np.where(small(kind, w), 0.0 * w, w), z, kind)  # noqa: E731
    yield from of("flushed-codes", "values below the smallest normal one are encoded as 0", flushed)
    yield from of("absolute-codes", "the sign is lost where values are encoded", lambda k, w, z: nearest(abs(w), z, k))
    yield from of("no-zero", "values are encoded without their zero point", lambda k, w, z: nearest(w, 0.0 * z, k))
