"""Quantised codes: scales, encoding, decode tables, decoded rows."""

from collections.abc import Callable, Iterator
from itertools import permutations
from typing import Any

import numpy as np

from workbench.case.formats import FORMATS
from workbench.case.stages import INPUTS
from workbench.floats import round_to
from workbench.judge.explain.hypothesis import Edit, Hypothesis, Unfit, across, altered, read_as
from workbench.judge.explain.library import block_quantiser, blocks, indices, quantiser
from workbench.judge.explain.library.indices import taken
from workbench.judge.explain.library.quantiser import LARGEST, fitting, of_heads, power_of_two
from workbench.reference import quantize
from workbench.reference.steps.altered import Altered
from workbench.reference.steps.parameters import by_query_head

_FORMATS = ("simulated", "e4m3", "e5m2")

#: numbers with the sign of each code of a float8
_SIGN = 127.5 - np.arange(256)

#: entries of a table [head, 256], of `at.At`, the name of the input, its scales [head] and the format
Entries = Callable[[Any, str, np.ndarray, str], np.ndarray]


def hypotheses() -> Iterator[Hypothesis]:
    """All of the family, the plainest first. Scales are of all batches, so that a part of them shows nothing."""
    return across(_hypotheses())


def _hypotheses() -> Iterator[Hypothesis]:
    for name, text, entries in _tables():
        yield from _decoded(name, text, entries)
    yield from blocks.hypotheses()
    yield from block_quantiser.hypotheses()
    yield from quantiser.hypotheses()
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
                    s = of_heads(at, x)
                    s = np.repeat(s, at.heads // len(s))
                    return value * (s**power).reshape(-1, *[1] * (value.ndim - 2))

                text = f"{stage} is {verb} by the scale of {x}"
                yield Hypothesis(f"codes.{stage}-{verb}-by-scale-of-{x}", text, (altered(stage, times),))


def _decoded(name: str, text: str, entries: Entries) -> Iterator[Hypothesis]:
    """Wrong entries, in the table, in decoded rows without one, and in rows that nobody saw."""
    for operands in ("q", "k", "v", "kv", "qkv"):
        words = f"{text} ({', '.join(operands)})"

        def in_table(at: Any, x: np.ndarray, of: str) -> np.ndarray:
            return entries(at, of, of_heads(at, of), at.p.codes.format)

        def in_dequant(at: Any, x: np.ndarray, of: str) -> np.ndarray:
            return quantize.decoded(at.whole(f"codes_{of}"), in_table(at, x, of))

        def in_rows(at: Any, x: np.ndarray, of: str) -> np.ndarray:
            if at.p.codes is None:
                raise Unfit
            table = in_table(at, x, of)  # Unfit of an input without codes
            made = quantize.decoded(at.whole(f"codes_{of}"), table)
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
        yield f"scale-of-{other}", words, scaled(lambda at, of, s, o=other: fitting(of_heads(at, o), len(s)))
    yield "largest-scale", "all heads are decoded with the largest scale", scaled(lambda at, of, s: 0 * s + s.max())
    for dtype in ("float16", "bfloat16", "float8_e4m3fn"):
        words = f"scales are rounded to {dtype} where codes are decoded"
        yield f"scale-{dtype}", words, scaled(lambda at, of, s, d=dtype: round_to(s, d))
    for up, verb in ((True, "up"), (False, "down")):
        words = f"scales are rounded {verb} to powers of two where codes are decoded"
        yield f"scale-power-{verb}", words, scaled(lambda at, of, s, up=up: power_of_two(s, up))
    for factor, words in ((2.0, "twice"), (0.5, "half"), (4.0, "four times"), (0.25, "a quarter of")):
        yield (
            f"bias-{factor:g}",
            f"codes are decoded to {words} their value (bias of the exponent)",
            scaled(lambda at, of, s, x=factor: s * x),
        )
    for top, right in permutations(LARGEST, 2):
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
    yield "unsigned", "codes are read as unsigned bytes", valued(lambda v, f: np.arange(256.0))
    less = lambda v, f: v - np.where(np.arange(256) < 128, 0.0, 256 * (v[129] - v[128]))  # noqa: E731
    yield "less-256", "codes from 128 on are taken for 256 less", valued(less)
    yield "absolute", "the sign of codes is lost", valued(lambda v, f: abs(v))
    yield "negated", "the sign of codes is the wrong way round", valued(lambda v, f: -v)
    for shift in (1, -1):
        words = f"the zero point is off by {-shift}: codes are decoded as the {'next' if shift < 0 else 'previous'} one"
        yield f"shifted{shift:+}", words, valued(lambda v, f, n=shift: v[np.clip(np.arange(256) - n, 0, 255)])
        linear = lambda v, f, n=shift: v - n * (v[129] - v[128])  # noqa: E731
        yield f"zero-point{shift:+}", f"the zero point is off by {-shift}", valued(linear)
    yield "flushed", "subnormal codes are 0", valued(lambda v, f: np.where(abs(v) < FORMATS[f].smallest_normal, 0.0, v))
    yield "implicit-one", "subnormal codes are read with an implicit leading 1", valued(_implicit)
    least = lambda f: FORMATS[f].smallest_normal  # noqa: E731
    leading = lambda v, f: np.where(abs(v) < least(f), v + np.copysign(least(f), _SIGN), v)  # noqa: E731
    yield "leading-one", "subnormal codes and zeros get the leading 1 of normal ones", valued(leading)
    yield "low-bits", "the lowest bit of codes is lost", valued(lambda v, f: v[np.arange(256) // 2 * 2])
    yield "seven-bits", "the highest bit of codes is lost", valued(lambda v, f: v[np.arange(256) % 128])
    yield "first-half", "the upper half of the table is 0", valued(lambda v, f: np.where(np.arange(256) < 128, v, 0.0))
    yield "nan-zero", "codes of NaN are 0", valued(lambda v, f: np.nan_to_num(v, nan=0.0, posinf=0.0, neginf=0.0))
    top = lambda v, f: np.where(np.isfinite(v), v, np.copysign(480.0, _SIGN))  # noqa: E731
    yield "nan-480", "codes of NaN are +-480", valued(top)
    swapped = lambda v, f: v[(np.arange(256) % 16) * 16 + np.arange(256) // 16]  # noqa: E731
    yield "nibbles", "the halves of codes are swapped", valued(swapped)


def _implicit(values: np.ndarray, kind: str) -> np.ndarray:
    least = FORMATS[kind].smallest_normal
    small = abs(values) < least
    return np.where(small, np.copysign(least / 2 + abs(values) / 2, _SIGN), values)


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
        swapped = altered(f"dequant_{x}", lambda at, rows, y=y: _shaped(_decoded_rows(at, y), rows))
        yield Hypothesis(f"codes.dequant-{y}-for-{x}", f"{y} is decoded in place of {x}", (swapped,))


def _decoded_rows(at: Any, x: str) -> np.ndarray:
    if x not in at.p.codes.coded:
        raise Unfit
    found: np.ndarray = at.whole(f"dequant_{x}")
    return found


def _shaped(x: np.ndarray, like: np.ndarray) -> np.ndarray:
    return x if x.shape == like.shape else like
