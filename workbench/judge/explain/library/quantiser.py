"""The quantiser: scales, and how values are encoded."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from workbench.case.formats import FORMATS
from workbench.case.stages import INPUTS
from workbench.floats import round_to
from workbench.judge.explain.hypothesis import Hypothesis, Unfit, altered
from workbench.judge.explain.library import indices
from workbench.judge.explain.library.indices import taken
from workbench.reference import quantize

#: largest values that formats of 8 bits have, or are taken to have
LARGEST = (127.0, 128.0, 224.0, 240.0, 255.0, 256.0, 448.0, 480.0, 57344.0)


def hypotheses() -> Iterator[Hypothesis]:
    """Those of the quantiser, of the family codes."""
    yield from _scales()
    yield from _encoded()


def _scales() -> Iterator[Hypothesis]:
    def of(name: str, text: str, change: Callable[[Any, np.ndarray, np.ndarray], np.ndarray]) -> Iterator[Hypothesis]:
        for operands in ("q", "k", "v", "qk", "qkv"):
            edits = tuple(
                altered(
                    f"scale_{x}", lambda at, s, x=x: change(at, of_heads(at, x, s), np.asarray(at.whole(x), np.float64))
                )
                for x in operands
            )
            yield Hypothesis(f"codes.quantiser-{name}-{operands}", f"{text} ({', '.join(operands)})", edits)

    over = (0, 2, 3)
    top = lambda at: FORMATS[at.p.codes.format].largest * (2 if at.p.codes.scaling == "static" else 1)  # noqa: E731
    yield from of(
        "no-abs",
        "scales are of the largest value, not of the largest size",
        lambda at, s, x: np.maximum(x.max(over), 0.0) / top(at),
    )
    yield from of(
        "no-abs-plain", "scales are of the largest value, which may be negative", lambda at, s, x: x.max(over) / top(at)
    )
    yield from of("min", "scales are of the smallest value", lambda at, s, x: -x.min(over) / top(at))
    yield from of("mean", "scales are of the mean size", lambda at, s, x: abs(x).mean(over) / top(at))
    yield from of("no-floor", "a head of zeros has the scale 0", lambda at, s, x: abs(x).max(over) / top(at))
    for floor in (1e-12, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 2.0**-126, 2.0**-149):
        words = f"scales are at least {floor:g}, also of a head of zeros"
        yield from of(f"floor-{floor:g}", words, lambda at, s, x, e=floor: np.maximum(abs(x).max(over) / top(at), e))
        words = f"sizes are at least {floor:g} before scales are made of them, also in a head of zeros"
        yield from of(
            f"size-floor-{floor:g}", words, lambda at, s, x, e=floor: np.maximum(abs(x).max(over), e) / top(at)
        )
    yield from of("first-batch", "scales are of batch 0", lambda at, s, x: abs(x[0]).max((1, 2)) / top(at))
    yield from of("last-batch", "scales are of the last batch", lambda at, s, x: abs(x[-1]).max((1, 2)) / top(at))
    yield from of("first-row", "scales are of the first row", lambda at, s, x: abs(x[:, :, :1]).max(over) / top(at))
    yield from of(
        "without-last-row",
        "scales leave out the last row",
        lambda at, s, x: abs(x[:, :, : max(x.shape[2] - 1, 1)]).max(over) / top(at),
    )
    yield from of("tensor", "scales are of all heads together", lambda at, s, x: 0 * s + abs(x).max() / top(at))
    yield from of("half", "scales are half as large, so that large values saturate", lambda at, s, x: s / 2)
    yield from of("double", "scales are twice as large", lambda at, s, x: s * 2)
    yield from of("inverse", "scales are inverted", lambda at, s, x: 1 / s)
    yield from of(
        "amax",
        "scales are not divided by the largest value of a code",
        lambda at, s, x: s * FORMATS[at.p.codes.format].largest,
    )
    for one in indices.others():
        yield from of(
            f"head-{one.id}", f"scales are of another head: {one.text}", lambda at, s, x, one=one: taken(s, one, 0)
        )
    for dtype in ("float16", "bfloat16", "float8_e4m3fn"):
        yield from of(dtype, f"scales are rounded to {dtype}", lambda at, s, x, d=dtype: round_to(s, d))
    for up, verb in ((True, "up"), (False, "down")):
        yield from of(
            f"power-{verb}", f"scales are rounded {verb} to powers of two", lambda at, s, x, up=up: power_of_two(s, up)
        )
    for b in (16, 32, 64, 128):
        words = f"scales are of whole blocks of {b} rows"
        yield from of(
            f"rows-{b}", words, lambda at, s, x, b=b: abs(x[:, :, : max(x.shape[2] // b * b, 1)]).max(over) / top(at)
        )
        words = f"scales are of the first {b} dims"
        yield from of(f"dims-{b}", words, lambda at, s, x, b=b: abs(x[..., :b]).max(over) / top(at))
    for largest in LARGEST:
        words = f"scales are made for a largest value of {largest:g}"
        yield from of(
            f"largest-{largest:g}", words, lambda at, s, x, n=largest: s * FORMATS[at.p.codes.format].largest / n
        )


def _encoded() -> Iterator[Hypothesis]:
    def of(name: str, text: str, change: Callable[[Any, np.ndarray, str], np.ndarray]) -> Iterator[Hypothesis]:
        """`change` of x / scale and the format."""
        for operands in ("q", "k", "v", "kv", "qkv"):

            def encode(at: Any, codes: np.ndarray, x: str) -> np.ndarray:
                return change(at, np.asarray(at.whole(x), np.float64) / of_heads(at, x)[:, None, None], x)

            edits = tuple(altered(f"codes_{x}", lambda at, c, x=x: encode(at, c, x)) for x in operands)
            yield Hypothesis(f"codes.{name}-{operands}", f"{text} ({', '.join(operands)})", edits)

    nearest = lambda at, wanted: quantize.codes(wanted, np.ones(wanted.shape[1]), at.p.codes.format)  # noqa: E731

    def nearest_value(at: Any, wanted: np.ndarray) -> np.ndarray:
        found: np.ndarray = FORMATS[at.p.codes.format].values[nearest(at, wanted).astype(np.int64)]
        return found

    for how in ("toward-zero", "up", "down", "away", "half-up"):
        yield from of(
            f"rounded-{how}", f"codes are rounded {how}", lambda at, w, x, how=how: encoded(w, at.p.codes.format, how)
        )
    small = lambda at, w: abs(w) < FORMATS[at.p.codes.format].smallest_normal  # noqa: E731
    flushed = lambda at, w, x: nearest(at, np.where(small(at, w), 0.0 * w, w))  # noqa: E731
    yield from of("flushed-codes", "values below the smallest normal one are encoded as 0", flushed)
    late = lambda at, w, x: nearest(at, np.where(small(at, nearest_value(at, w)), 0.0 * w, w))  # noqa: E731
    yield from of("subnormal-codes-lost", "codes of subnormal numbers become 0", late)
    yield from of(
        "unsaturated",
        "codes beyond the largest value do not saturate",
        lambda at, w, x: _unsaturated(at, w, nearest(at, w)),
    )
    yield from of(
        "wrapped", "codes beyond the largest value wrap around", lambda at, w, x: _wrapped(at, w, nearest(at, w))
    )
    for dtype in ("float16", "bfloat16"):
        words = f"values are rounded to {dtype} before they are encoded"
        yield from of(f"twice-rounded-{dtype}", words, lambda at, w, x, d=dtype: nearest(at, round_to(w, d)))
    yield from of(
        "unscaled-codes",
        "values are encoded without their scale",
        lambda at, w, x: nearest(at, w * at.whole(f"scale_{x}")[:, None, None]),
    )
    yield from of(
        "multiplied-codes",
        "values are multiplied by their scale, not divided",
        lambda at, w, x: nearest(at, w * at.whole(f"scale_{x}")[:, None, None] ** 2),
    )
    yield from of("absolute-codes", "the sign is lost where values are encoded", lambda at, w, x: nearest(at, abs(w)))
    yield from of("clipped-low", "negative values are encoded as 0", lambda at, w, x: nearest(at, np.maximum(w, 0.0)))
    for one in indices.others():

        def other(at: Any, w: np.ndarray, x: str, one: Any = one) -> np.ndarray:
            s = at.whole(f"scale_{x}")
            return nearest(at, w * (s / taken(s, one, 0))[:, None, None])

        yield from of(f"encoded-head-{one.id}", f"values are encoded with the scale of another head: {one.text}", other)
    for y in INPUTS:

        def of_input(at: Any, w: np.ndarray, x: str, y: str = y) -> np.ndarray:
            s = at.whole(f"scale_{x}")
            return nearest(at, w * (s / fitting(of_heads(at, y), len(s)))[:, None, None])

        yield from of(f"encoded-by-{y}", f"values are encoded with the scale of {y}", of_input)


def of_heads(at: Any, x: str, scale: np.ndarray | None = None) -> np.ndarray:
    """The scale of an input, [head]; Unfit where tokens or blocks have their own, and of an input without codes."""
    if scale is None and x not in at.p.codes.coded:
        raise Unfit
    found: np.ndarray = at.whole(f"scale_{x}") if scale is None else scale
    if found.ndim != 1:
        raise Unfit
    return found


def fitting(scales: np.ndarray, n: int) -> np.ndarray:
    """As many scales of another input: those of the same index, of fewer heads those of the group."""
    return scales[:n] if len(scales) >= n else np.repeat(scales, -(-n // len(scales)))[:n]


def power_of_two(x: np.ndarray, up: bool) -> np.ndarray:
    """x rounded up or down to powers of two."""
    return np.exp2(np.ceil(np.log2(x)) if up else np.floor(np.log2(x)))


def encoded(wanted: np.ndarray, kind: str, how: str) -> np.ndarray:
    """The code of a value next to `wanted` in a direction, saturated."""
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


def _unsaturated(at: Any, wanted: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """What lies beyond the largest value as NaN, or infinite in a format that has it."""
    kind = at.p.codes.format
    beyond = abs(wanted) > FORMATS[kind].largest * (1 + 2.0**-5)
    if kind == "simulated":
        return _wrapped(at, wanted, codes)
    special = {"e4m3": 127.0, "e5m2": 124.0}[kind]
    return np.where(beyond, special + 128.0 * np.signbit(wanted), codes)


def _wrapped(at: Any, wanted: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """The low byte of what would be the code."""
    if at.p.codes.format != "simulated":
        return codes
    return np.mod(np.rint(wanted * 127 / 448) + 128, 256)
