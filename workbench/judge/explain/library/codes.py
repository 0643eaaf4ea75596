"""8-bit codes: scales, encoding, decode tables, decoded rows."""

from collections.abc import Callable, Iterator
from itertools import permutations
from typing import Any

import numpy as np

from workbench.case.formats import FORMATS
from workbench.case.stages import INPUTS
from workbench.floats import round_to
from workbench.judge.explain.hypothesis import Edit, Hypothesis, Unfit, across, altered, read_as
from workbench.judge.explain.library import indices
from workbench.judge.explain.library.indices import taken
from workbench.reference import quantize
from workbench.reference.steps.altered import Altered
from workbench.reference.steps.parameters import by_query_head

#: largest values that formats of 8 bits have, or are taken to have
_LARGEST = (127.0, 128.0, 224.0, 240.0, 255.0, 256.0, 448.0, 480.0, 57344.0)
_FORMATS = tuple(FORMATS)

#: numbers with the sign of each code of a float8
_SIGN = 127.5 - np.arange(256)

#: entries of a table [head, 256], of `walk.At`, the name of the input, its scales [head] and the format
Entries = Callable[[Any, str, np.ndarray, str], np.ndarray]


def hypotheses() -> Iterator[Hypothesis]:
    """All of the family, the plainest first. Scales are of all batches, so that a part of them shows nothing."""
    return across(_hypotheses())


def _hypotheses() -> Iterator[Hypothesis]:
    for name, text, entries in _tables():
        yield from _decoded(name, text, entries)
    yield from _scales()
    yield from _encoded()
    yield from _rows()
    yield from _in_attention()


def _in_attention() -> Iterator[Hypothesis]:
    """Scales once too often, or lacking, behind the decoded rows."""
    for stage in ("qk", "scores", "acc", "out"):
        for x in INPUTS:
            for power, verb in ((1, "multiplied"), (-1, "divided")):

                def times(at: Any, value: np.ndarray, x: str = x, power: int = power) -> np.ndarray:
                    if at.p.codes is None:
                        raise Unfit
                    s = np.repeat(at.whole(f"scale_{x}"), at.heads // len(at.whole(f"scale_{x}")))
                    return value * (s**power).reshape(-1, *[1] * (value.ndim - 2))

                text = f"{stage} is {verb} by the scale of {x}"
                yield Hypothesis(f"codes.{stage}-{verb}-by-scale-of-{x}", text, (altered(stage, times),))


def _decoded(name: str, text: str, entries: Entries) -> Iterator[Hypothesis]:
    """Wrong entries, in the table, in decoded rows without one, and in rows that nobody saw."""
    for operands in ("q", "k", "v", "kv", "qkv"):
        words = f"{text} ({', '.join(operands)})"

        def in_table(at: Any, x: np.ndarray, of: str) -> np.ndarray:
            return entries(at, of, at.whole(f"scale_{of}"), at.p.codes.format)

        def in_dequant(at: Any, x: np.ndarray, of: str) -> np.ndarray:
            return quantize.decoded(at.whole(f"codes_{of}"), in_table(at, x, of))

        def in_rows(at: Any, x: np.ndarray, of: str) -> np.ndarray:
            if at.p.codes is None:
                raise Unfit
            made = quantize.decoded(at.whole(f"codes_{of}"), in_table(at, x, of))
            return by_query_head(round_to(made, at.p.codes.operands[of] or "float16"), at.heads)

        for place, stage, change in (("table", "lut", in_table), ("decoded", "dequant", in_dequant)):
            if place == "table" and "q" in operands:
                continue
            edits = tuple(altered(f"{stage}_{of}", lambda at, x, of=of, c=change: c(at, x, of)) for of in operands)
            yield Hypothesis(f"codes.{name}-{operands}-{place}", words, edits)
        if operands == "qkv":  # q has no table
            tables = tuple(altered(f"lut_{of}", lambda at, x, of=of: in_table(at, x, of)) for of in "kv")
            q = altered("dequant_q", lambda at, x: in_dequant(at, x, "q"))
            yield Hypothesis(f"codes.{name}-{operands}-table", words, (*tables, q))
        # a cast to 16 bits that an error of the entries may turn the other way
        hidden = tuple(
            Edit(f"{of}_rows", lambda step, of=of: Altered(step, lambda at, x: in_rows(at, x, of), slack=2.0**-11))
            for of in operands
        )
        yield Hypothesis(f"codes.{name}-{operands}-rows", words, hidden)


def _tables() -> Iterator[tuple[str, str, Entries]]:
    def scaled(change: Callable[[Any, str, np.ndarray], np.ndarray]) -> Entries:
        return lambda at, of, s, f: quantize.table(change(at, of, s), f)

    yield "unscaled", "codes are decoded without their scale", scaled(lambda at, of, s: np.ones_like(s))
    yield "scaled-twice", "codes are decoded with their scale twice", scaled(lambda at, of, s: s * s)
    yield "scale-inverted", "codes are divided by their scale", scaled(lambda at, of, s: 1 / s)
    yield "scale-of-head-0", "all heads are decoded with the scale of head 0", scaled(lambda at, of, s: 0 * s + s[:1])
    for one in indices.others():
        words = f"codes are decoded with the scale of another head: {one.text}"
        yield f"scale-of-{one.id}", words, scaled(lambda at, of, s, one=one: taken(s, one, 0))
    yield "scale-of-kv-head", "codes of q are decoded with the scale of their kv head's index", scaled(_of_kv_head)
    for other in INPUTS:
        words = f"codes are decoded with the scale of {other}"
        yield f"scale-of-{other}", words, scaled(lambda at, of, s, o=other: _fitting(at.whole(f"scale_{o}"), len(s)))
    yield "largest-scale", "all heads are decoded with the largest scale", scaled(lambda at, of, s: 0 * s + s.max())
    for dtype in ("float16", "bfloat16", "float8_e4m3fn"):
        words = f"scales are rounded to {dtype} where codes are decoded"
        yield f"scale-{dtype}", words, scaled(lambda at, of, s, d=dtype: round_to(s, d))
    for up, verb in ((True, "up"), (False, "down")):
        words = f"scales are rounded {verb} to powers of two where codes are decoded"
        yield f"scale-power-{verb}", words, scaled(lambda at, of, s, up=up: _power(s, up))
    for factor, words in ((2.0, "twice"), (0.5, "half"), (4.0, "four times"), (0.25, "a quarter of")):
        yield (
            f"bias-{factor:g}",
            f"codes are decoded to {words} their value (bias of the exponent)",
            scaled(lambda at, of, s, x=factor: s * x),
        )
    for top, right in permutations(_LARGEST, 2):
        words = f"codes are decoded as of a largest value of {top:g} in place of {right:g}"
        yield f"largest-{top:g}-{right:g}", words, scaled(lambda at, of, s, x=top / right: s * x)
    yield from _values()


def _of_kv_head(at: Any, of: str, scales: np.ndarray) -> np.ndarray:
    group = max(len(scales) // len(at.whole("scale_k")), 1)
    found: np.ndarray = scales[np.arange(len(scales)) // group]
    return found


def _values() -> Iterator[tuple[str, str, Entries]]:
    """Other values of codes, before their scale."""

    def valued(change: Callable[[np.ndarray, str], np.ndarray]) -> Entries:
        return lambda at, of, s, f: s[:, None] * change(FORMATS[f].values, f)

    for kind in _FORMATS:
        yield f"as-{kind}", f"codes are read as {kind}", valued(lambda v, f, k=kind: FORMATS[k].values)
    yield "signed", "codes are read as signed bytes", valued(lambda v, f: np.roll(v, 128))
    less = lambda v, f: v - np.where(np.arange(256) < 128, 0.0, 256 * (v[129] - v[128]))  # noqa: E731
    yield "less-256", "codes from 128 on are taken for 256 less", valued(less)
    yield "absolute", "the sign of codes is lost", valued(lambda v, f: abs(v))
    yield "negated", "the sign of codes is the wrong way round", valued(lambda v, f: -v)
    for shift in (1, -1):
        words = f"the zero point is off by {-shift}: codes are decoded as the {'next' if shift < 0 else 'previous'} one"
        yield f"shifted{shift:+}", words, valued(lambda v, f, n=shift: v[np.clip(np.arange(256) - n, 0, 255)])
        linear = lambda v, f, n=shift: v - n * (v[129] - v[128])  # noqa: E731
        yield f"zero-point{shift:+}", f"the zero point is off by {-shift}", valued(linear)
    yield "flushed", "subnormal codes are 0", valued(lambda v, f: np.where(abs(v) < _normal(v, f), 0.0, v))
    yield "implicit-one", "subnormal codes are read with an implicit leading 1", valued(_implicit)
    leading = lambda v, f: np.where(abs(v) < _normal(v, f), v + np.copysign(_normal(v, f), _SIGN), v)  # noqa: E731
    yield "leading-one", "subnormal codes and zeros get the leading 1 of normal ones", valued(leading)
    yield "low-bits", "the lowest bit of codes is lost", valued(lambda v, f: v[np.arange(256) // 2 * 2])
    yield "seven-bits", "the highest bit of codes is lost", valued(lambda v, f: v[np.arange(256) % 128])
    yield "first-half", "the upper half of the table is 0", valued(lambda v, f: np.where(np.arange(256) < 128, v, 0.0))
    yield "nan-zero", "codes of NaN are 0", valued(lambda v, f: np.nan_to_num(v, nan=0.0, posinf=0.0, neginf=0.0))
    top = lambda v, f: np.where(np.isfinite(v), v, np.copysign(480.0, _SIGN))  # noqa: E731
    yield "nan-480", "codes of NaN are +-480", valued(top)
    swapped = lambda v, f: v[(np.arange(256) % 16) * 16 + np.arange(256) // 16]  # noqa: E731
    yield "nibbles", "the halves of codes are swapped", valued(swapped)


def _normal(values: np.ndarray, kind: str) -> float:
    """The smallest normal value of a format; 0 of whole numbers."""
    return {"e4m3": 2.0**-6, "e5m2": 2.0**-14}.get(kind, 0.0)


def _implicit(values: np.ndarray, kind: str) -> np.ndarray:
    least = _normal(values, kind)
    small = abs(values) < least
    return np.where(small, np.copysign(least / 2 + abs(values) / 2, _SIGN), values)


def _scales() -> Iterator[Hypothesis]:
    def of(name: str, text: str, change: Callable[[Any, np.ndarray, np.ndarray], np.ndarray]) -> Iterator[Hypothesis]:
        for operands in ("q", "k", "v", "qk", "qkv"):
            edits = tuple(
                altered(f"scale_{x}", lambda at, s, x=x: change(at, s, np.asarray(at.whole(x), np.float64)))
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
            f"power-{verb}", f"scales are rounded {verb} to powers of two", lambda at, s, x, up=up: _power(s, up)
        )
    for b in (16, 32, 64, 128):
        words = f"scales are of whole blocks of {b} rows"
        yield from of(
            f"rows-{b}", words, lambda at, s, x, b=b: abs(x[:, :, : max(x.shape[2] // b * b, 1)]).max(over) / top(at)
        )
        words = f"scales are of the first {b} dims"
        yield from of(f"dims-{b}", words, lambda at, s, x, b=b: abs(x[..., :b]).max(over) / top(at))
    for largest in _LARGEST:
        words = f"scales are made for a largest value of {largest:g}"
        yield from of(
            f"largest-{largest:g}", words, lambda at, s, x, n=largest: s * FORMATS[at.p.codes.format].largest / n
        )


def _encoded() -> Iterator[Hypothesis]:
    def of(name: str, text: str, change: Callable[[Any, np.ndarray, str], np.ndarray]) -> Iterator[Hypothesis]:
        """`change` of x / scale and the format."""
        for operands in ("q", "k", "v", "kv", "qkv"):

            def encode(at: Any, codes: np.ndarray, x: str) -> np.ndarray:
                wanted = np.asarray(at.whole(x), np.float64) / at.whole(f"scale_{x}")[:, None, None]
                return change(at, wanted, x)

            edits = tuple(altered(f"codes_{x}", lambda at, c, x=x: encode(at, c, x)) for x in operands)
            yield Hypothesis(f"codes.{name}-{operands}", f"{text} ({', '.join(operands)})", edits)

    nearest = lambda at, wanted: quantize.codes(wanted, np.ones(wanted.shape[1]), at.p.codes.format)  # noqa: E731

    def nearest_value(at: Any, wanted: np.ndarray) -> np.ndarray:
        found: np.ndarray = FORMATS[at.p.codes.format].values[nearest(at, wanted).astype(np.int64)]
        return found

    for how in ("toward-zero", "up", "down", "away", "half-up"):
        yield from of(
            f"rounded-{how}", f"codes are rounded {how}", lambda at, w, x, how=how: _encode(w, at.p.codes.format, how)
        )
    small = lambda at, w: abs(w) < _normal(w, at.p.codes.format)  # noqa: E731
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
            return nearest(at, w * (s / _fitting(at.whole(f"scale_{y}"), len(s)))[:, None, None])

        yield from of(f"encoded-by-{y}", f"values are encoded with the scale of {y}", of_input)


def _rows() -> Iterator[Hypothesis]:
    for one in indices.permutations():
        for axis, named in ((-2, "rows"), (-1, "dims")):
            for stage in ("dequant", "codes"):
                for operands in ("q", "k", "v", "kv"):
                    edits = tuple(
                        altered(f"{stage}_{x}", lambda at, v, one=one, axis=axis: taken(v, one, axis)) for x in operands
                    )
                    words = "decoded" if stage == "dequant" else "stored"
                    text = f"{named} of codes of {', '.join(operands)} are {words} {one.text}"
                    yield Hypothesis(f"codes.{stage}-{named}-{one.id}-{operands}", text, edits)
    for one in indices.others():
        for stage in ("dequant", "codes"):
            for operands in ("q", "k", "v", "kv"):
                for axis, named in ((1, "heads"), (0, "batches")):
                    edits = tuple(
                        altered(f"{stage}_{x}", lambda at, v, one=one, axis=axis: taken(v, one, axis)) for x in operands
                    )
                    text = f"{named} of codes of {', '.join(operands)} are taken wrong: {one.text}"
                    yield Hypothesis(f"codes.{stage}-{named}-{one.id}-{operands}", text, edits)
    for one in indices.others():
        for operands in ("q", "k", "v", "kv"):
            for axis, named in ((1, "head"), (0, "batch")):
                read = lambda at, c, one=one, axis=axis: taken(c, one, axis)  # noqa: E731
                edits = tuple(read_as(f"dequant_{x}", f"codes_{x}", read) for x in operands)
                text = (
                    f"codes of {', '.join(operands)} are read of another {named}, and decoded by their own: {one.text}"
                )
                yield Hypothesis(f"codes.read-{named}-{one.id}-{operands}", text, edits)
    for x, y in ("kv", "vk", "qk", "kq"):
        swapped = altered(f"dequant_{x}", lambda at, rows, y=y: _shaped(at.whole(f"dequant_{y}"), rows))
        yield Hypothesis(f"codes.dequant-{y}-for-{x}", f"{y} is decoded in place of {x}", (swapped,))


def _shaped(x: np.ndarray, like: np.ndarray) -> np.ndarray:
    return x if x.shape == like.shape else like


def _fitting(scales: np.ndarray, n: int) -> np.ndarray:
    """As many scales of another input: those of the same index, of fewer heads those of the group."""
    return scales[:n] if len(scales) >= n else np.repeat(scales, -(-n // len(scales)))[:n]


def _power(x: np.ndarray, up: bool) -> np.ndarray:
    return np.exp2(np.ceil(np.log2(x)) if up else np.floor(np.log2(x)))


def _encode(wanted: np.ndarray, kind: str, how: str) -> np.ndarray:
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
    if kind == "simulated":
        return chosen.astype(np.float64)
    # a zero has the sign of x
    zero = values[chosen] == 0
    return np.where(zero, np.where(np.signbit(wanted), 128.0, 0.0), chosen).astype(np.float64)


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
