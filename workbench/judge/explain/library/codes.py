"""Quantised codes: scales, zero points, values of codes, decode tables and decoded rows that are read wrong."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import permutations, product
from typing import Any

import numpy as np

from workbench.case.formats import FORMATS
from workbench.case.stages import INPUTS
from workbench.floats import round_to
from workbench.judge.explain.hypothesis import Edit, Hypothesis, Unfit, across, altered, of_family, read_as
from workbench.judge.explain.library import indices, quantiser
from workbench.judge.explain.library.decoding import Decoding, power_of_two
from workbench.judge.explain.library.indices import taken
from workbench.judge.explain.library.quantiser import LARGEST, OPERANDS
from workbench.reference.steps.altered import Altered
from workbench.reference.steps.parameters import by_query_head

#: formats with a scale a head that others may be taken for
_FORMATS = ("simulated", "e4m3", "e5m2")
#: numbers with the sign of each code of a float8
_SIGN = 127.5 - np.arange(256)
#: dims of blocks of other formats
_BLOCKS = (8, 16, 32, 64, 128)
#: rows of tiles of kernels, which may share a scale
_TILES = (32, 64, 128)
#: what of a format has a scale: heads, or tokens and blocks of their dims
_EITHER, _HEADS, _TOKENS = (True, True), (True, False), (False, True)

Change = Callable[[Decoding], Decoding]
#: of which scales, name, words, and what is decoded then
Changes = Iterator[tuple[tuple[bool, bool], str, str, Change]]
_of = of_family("codes")


def hypotheses() -> Iterator[Hypothesis]:
    """All of the family, the plainest first. Scales of heads span all batches, so a single batch cannot show them."""
    return across(_hypotheses())


def _hypotheses() -> Iterator[Hypothesis]:
    for changes in (_scales(), _values(), _scales_of_tokens(), _zeros(), _values_of_tokens(), _places()):
        for (heads, tokens), name, text, change in changes:
            for operands in OPERANDS:
                words = f"{text} ({', '.join(operands)})"
                yield from _of_heads(f"{name}-{operands}", words, operands, change) if heads else ()
                yield from _of_tokens(f"{name}-{operands}", words, operands, change) if tokens else ()
    yield from _scales_by_query_head()
    yield from quantiser.hypotheses()
    yield from _rows()
    for stage, x, (power, verb) in product(
        ("qk", "scores", "acc", "out"), INPUTS, ((1, "multiplied"), (-1, "divided"))
    ):
        times = altered(stage, lambda at, value, x=x, n=power: _times_scale(at, value, x, n))
        yield _of(f"{stage}-{verb}-by-scale-of-{x}", f"{stage} is {verb} by the scale of {x}", times)


def _times_scale(at: Any, value: np.ndarray, x: str, power: int) -> np.ndarray:
    """A stage after decoding, multiplied by the scales [head] of an input to the given power."""
    s = Decoding.of_input(at, x, blocks=False).scale
    s = np.repeat(s, at.heads // len(s))
    return value * (s**power).reshape(-1, *[1] * (value.ndim - 2))


def _of_heads(name: str, text: str, operands: str, change: Change) -> Iterator[Hypothesis]:
    """`change` for formats with one scale a head: in decode table, dequantised rows and rows never dumped."""
    tables = [altered(f"lut_{of}", _table(of, change)) for of in operands if of != "q"]
    decoded = [altered(f"dequant_{of}", _decoded(of, change, blocks=False)) for of in operands]
    if "q" not in operands:
        yield _of(f"{name}-table", text, *tables)
    yield _of(f"{name}-decoded", text, *decoded)
    if operands == "qkv":  # q has no table
        yield _of(f"{name}-table", text, *tables, decoded[0])
    yield _of(f"{name}-rows", text, *(_cast(f"{of}_rows", _rows_of(of, change, blocks=False)) for of in operands))


def _scales_by_query_head() -> Iterator[Hypothesis]:
    """Scales of k and v that query heads of one kv head take of different ones."""
    for one, operands in product(indices.heads(), ("kv", "k", "v")):

        def rows(at: Any, x: np.ndarray, of: str, one: indices.Indexing = one) -> np.ndarray:
            c = Decoding.of_input(at, of, blocks=False)
            n = len(c.scale)
            values = by_query_head(replace(c, scale=np.ones(n)).decoded(), at.heads)
            scale = c.scale[one.map(np.arange(at.heads), n)][:, None, None]
            found: np.ndarray = round_to(values * scale, at.p.codes.operands[of] or "float16")
            return found

        edits = (_cast(f"{of}_rows", partial(rows, of=of)) for of in operands)
        text = f"codes are decoded with the scale of the wrong kv head: {one.text} ({', '.join(operands)})"
        yield _of(f"scale-of-query-{one.id}-{operands}", text, *edits)


def _of_tokens(name: str, text: str, operands: str, change: Change) -> Iterator[Hypothesis]:
    """The same for scales per token or block, for which kernels have no decode table."""
    yield _of(f"{name}-blocks", text, *(_cast(f"dequant_{of}", _decoded(of, change, blocks=True)) for of in operands))
    yield _of(f"{name}-block-rows", text, *(_cast(f"{of}_rows", _rows_of(of, change, blocks=True)) for of in operands))


def _cast(stage: str, change: Callable[[Any, Any], Any]) -> Edit:
    """An edit of a stage stored in 16 bits, whose rounding a product in float32 before the cast may flip (2^-11)."""
    return Edit(stage, lambda step: Altered(step, change, slack=2.0**-11))


def _table(of: str, change: Change) -> Callable[[Any, Any], Any]:
    return lambda at, x: change(Decoding.of_input(at, of, blocks=False)).table


def _decoded(of: str, change: Change, *, blocks: bool) -> Callable[[Any, Any], Any]:
    return lambda at, x: change(Decoding.of_input(at, of, blocks=blocks)).decoded()


def _rows_of(of: str, change: Change, *, blocks: bool) -> Callable[[Any, Any], Any]:
    def rows(at: Any, x: np.ndarray) -> np.ndarray:
        made = change(Decoding.of_input(at, of, blocks=blocks)).decoded()
        return by_query_head(round_to(made, at.p.codes.operands[of] or "float16"), at.heads)

    return rows


def _scaled(change: Callable[[np.ndarray], np.ndarray]) -> Change:
    return lambda c: replace(c, scale=change(c.scale))


def _valued(change: Callable[[np.ndarray, str], np.ndarray]) -> Change:
    return lambda c: replace(c, values=change(c.values, c.kind))


def _scales() -> Changes:
    yield _EITHER, "unscaled", "codes are decoded without their scale", _scaled(np.ones_like)
    yield _EITHER, "scaled-twice", "codes are decoded with the scale applied twice", _scaled(np.square)
    yield _EITHER, "scale-inverted", "codes are divided by their scale", _scaled(lambda s: 1 / s)
    first = _scaled(lambda s: 0 * s + s[:1])
    yield _HEADS, "scale-of-head-0", "all heads are decoded with the scale of head 0", first
    for one in indices.others():
        words = f"codes are decoded with the scale of the wrong head: {one.text}"
        yield _HEADS, f"scale-of-{one.id}", words, _scaled(lambda s, one=one: taken(s, one, 0))
    words = "codes of q are decoded with the scale at the kv head's index"
    yield _HEADS, "scale-of-kv-head", words, lambda c: replace(c, scale=_of_kv_heads(c))
    for x in INPUTS:
        words = f"codes are decoded with the scale of {x}"
        yield _EITHER, f"scale-of-{x}", words, lambda c, x=x: replace(c, scale=c.other(f"scale_{x}"))
    largest = _scaled(lambda s: 0 * s + s.max())
    yield _HEADS, "largest-scale", "all heads are decoded with the largest scale", largest
    for dtype in ("float16", "bfloat16", "float8_e4m3fn"):
        words = f"scales are rounded to {dtype} before codes are decoded"
        yield _EITHER, f"scale-{dtype}", words, _scaled(lambda s, d=dtype: np.asarray(round_to(s, d), np.float64))
    for up, verb in ((True, "up"), (False, "down")):
        words = f"scales are rounded {verb} to powers of two before codes are decoded"
        yield _EITHER, f"scale-power-{verb}", words, _scaled(lambda s, up=up: power_of_two(s, up))
    for factor, times in ((2.0, "twice"), (0.5, "half"), (4.0, "four times"), (0.25, "a quarter of")):
        words = f"codes decode to {times} their value (wrong exponent bias)"
        yield _EITHER, f"bias-{factor:g}", words, _scaled(lambda s, x=factor: s * x)
    for top, right in permutations(LARGEST, 2):
        words = f"codes are decoded for a largest value of {top:g} instead of {right:g}"
        yield _HEADS, f"largest-{top:g}-{right:g}", words, _scaled(lambda s, x=top / right: s * x)


def _of_kv_heads(c: Decoding) -> np.ndarray:
    group = max(len(c.scale) // len(c.at.whole("scale_k")), 1)
    return c.scale[np.arange(len(c.scale)) // group]


def _values() -> Changes:
    """Codes decoded to other numbers, before the scale."""
    for kind, form in FORMATS.items():
        same = lambda v, f, n=form.values: n if len(n) == len(v) else _unfit()  # noqa: E731
        yield _EITHER if kind in _FORMATS else _TOKENS, f"as-{kind}", f"codes are read as {kind}", _valued(same)
    yield _HEADS, "signed", "codes are read as signed bytes", _valued(lambda v, f: np.roll(v, 128))
    yield _EITHER, "unsigned", "codes are read as unsigned bytes", _valued(lambda v, f: np.arange(float(len(v))))
    less = lambda v, f: v - np.where(np.arange(256) < 128, 0.0, 256 * (v[129] - v[128]))  # noqa: E731
    yield _HEADS, "less-256", "codes of 128 and above decode to 256 less", _valued(less)
    yield _EITHER, "absolute", "the sign of codes is lost", _valued(lambda v, f: abs(v))
    yield _EITHER, "negated", "the sign of codes is inverted", _valued(lambda v, f: -v)
    for shift in (1, -1):
        words = f"the zero point is off by {-shift}: each code decodes as the {'next' if shift < 0 else 'previous'} one"
        at_end = lambda v, f, n=shift: v[np.clip(np.arange(256) - n, 0, 255)]  # noqa: E731
        yield _HEADS, f"shifted{shift:+}", words, _valued(at_end)
        linear = lambda v, f, n=shift: v - n * (v[129] - v[128])  # noqa: E731
        yield _HEADS, f"zero-point{shift:+}", f"the zero point is off by {-shift}", _valued(linear)
    small = lambda v, f: abs(v) < FORMATS[f].smallest_normal  # noqa: E731
    yield _EITHER, "flushed", "subnormal codes decode to 0", _valued(lambda v, f: np.where(small(v, f), 0.0, v))
    least = lambda f: FORMATS[f].smallest_normal  # noqa: E731
    implicit = lambda v, f: np.where(small(v, f), np.copysign(least(f) / 2 + abs(v) / 2, _SIGN), v)  # noqa: E731
    yield _HEADS, "implicit-one", "subnormal codes are read with an implicit leading 1", _valued(implicit)
    leading = lambda v, f: np.where(small(v, f), v + np.copysign(least(f), _SIGN), v)  # noqa: E731
    yield _HEADS, "leading-one", "subnormal codes and zeros get the leading 1 of normal codes", _valued(leading)
    yield _HEADS, "low-bits", "the lowest bit of codes is lost", _valued(lambda v, f: v[np.arange(256) // 2 * 2])
    yield _HEADS, "seven-bits", "the highest bit of codes is lost", _valued(lambda v, f: v[np.arange(256) % 128])
    upper = _valued(lambda v, f: np.where(np.arange(256) < 128, v, 0.0))
    yield _HEADS, "first-half", "the upper half of the decode table is 0", upper
    zero = _valued(lambda v, f: np.nan_to_num(v, nan=0.0, posinf=0.0, neginf=0.0))
    yield _HEADS, "nan-zero", "NaN codes decode to 0", zero
    top = lambda v, f: np.where(np.isfinite(v), v, np.copysign(480.0, _SIGN))  # noqa: E731
    yield _HEADS, "nan-480", "NaN codes decode to +-480", _valued(top)
    swapped = lambda v, f: v[(np.arange(256) % 16) * 16 + np.arange(256) // 16]  # noqa: E731
    yield _HEADS, "nibbles", "the nibbles of codes are swapped", _valued(swapped)


def _unfit() -> np.ndarray:
    raise Unfit


def _scales_of_tokens() -> Changes:
    for name, verb, power in (("lost", "not multiplied", 0), ("twice", "multiplied twice", 2)):
        yield _TOKENS, f"tensor-scale-{name}", f"block scales are {verb} by the tensor scale", _of_tensor(power)
    yield _TOKENS, "tensor-scale-inverted", "block scales are divided by the tensor scale", _of_tensor(-1)
    words = "scales in a 128x4 swizzle are read row by row, or the reverse"
    yield _TOKENS, "scale-swizzled", words, _swizzled
    for x in INPUTS:
        yield _TOKENS, f"tensor-scale-of-{x}", f"codes are decoded with the tensor scale of {x}", _of_tensor(1, x)
    for block in _BLOCKS:
        words = f"each scale is applied to {block} dims"
        yield _TOKENS, f"scale-of-{block}-dims", words, lambda c, b=block: _of_dims(c, b)


def _of_tensor(power: int, other: str = "") -> Change:
    def changed(c: Decoding) -> Decoding:
        if not FORMATS[c.kind].tensor_scale or (other and other not in c.at.p.codes.coded):
            raise Unfit
        over = c.at.whole(f"global_{other}")[0] if other else c.over
        return replace(c, over=np.asarray(over, np.float64) ** power)

    return changed


def _swizzled(c: Decoding) -> Decoding:
    """Scales read row by row from the swizzled layout of block-scaled matrix products: tiles of 128 rows by
    4 blocks, those of rows r, r + 32, r + 64 and r + 96 beside each other (cuBLAS, "1D block scaling
    factors layout").
    """
    scales = c.at.whole(f"scale_{c.of}")
    rows, blocks = scales.shape[-2:]
    r, b = np.arange(rows)[:, None], np.arange(blocks)
    tile = r // 128 * -(-blocks // 4) + b // 4
    place = tile * 512 + r % 32 * 16 + r % 128 // 32 * 4 + b % 4
    flat = scales.reshape(*scales.shape[:2], rows * blocks)
    return replace(c, scale=c.spread(flat[..., place % (rows * blocks)]))


def _of_dims(c: Decoding, block: int) -> Decoding:
    """Each dim takes the scale and zero point of block dim // `block`, clamped to the last block of the row."""
    if block == c.block:
        raise Unfit
    first = np.minimum(np.arange(c.codes.shape[-1]) // block, c.blocks - 1) * c.block
    zero = c.zero[..., first] if isinstance(c.zero, np.ndarray) else c.zero
    return replace(c, scale=c.scale[..., first], zero=zero)


def _zeros() -> Changes:
    def moved(change: Callable[[Decoding], Any]) -> Change:
        return lambda c: replace(c, zero=change(c) if FORMATS[c.kind].zero else _unfit())

    yield _TOKENS, "zero-forgotten", "the zero point is not subtracted", moved(lambda c: 0.0)
    for shift in (1, -1):
        yield _TOKENS, f"zero-off{shift:+}", f"the zero point is off by {shift}", moved(lambda c, n=shift: c.zero + n)
    yield _TOKENS, "zero-added", "the zero point is added, not subtracted", moved(lambda c: -c.zero)
    yield _TOKENS, "zero-8", "8 is subtracted instead of the zero point", moved(lambda c: 8.0)
    yield _TOKENS, "zero-unscaled", "the zero point is subtracted after the scale", moved(lambda c: c.zero / c.scale)
    for axis, along in ((-1, "blocks"), (-2, "rows"), (1, "heads")):
        for one in indices.others():
            words = f"zero points of the wrong {along} are read: {one.text}"
            yield _TOKENS, f"zero-{along}-{one.id}", words, moved(lambda c, i=one, n=axis: _taken(c, "zero", i, n))
    for x in INPUTS:
        words = f"codes are decoded with the zero points of {x}"
        yield _TOKENS, f"zeros-of-{x}", words, moved(lambda c, x=x: c.other(f"zero_{x}"))


def _values_of_tokens() -> Changes:
    for by, which in ((-1, "next"), (1, "previous")):
        rolled = _valued(lambda v, f, n=by: np.roll(v, n))
        yield _TOKENS, f"{which}-values", f"each code decodes as the {which} one", rolled
    signed = lambda v, f: np.where(np.arange(len(v)) < len(v) // 2, 0.0, -len(v)) + np.arange(len(v))  # noqa: E731
    yield _TOKENS, "signed-values", "codes are read as signed integers", _valued(signed)
    yield _TOKENS, "halves-of-bytes", "the nibbles of each byte are swapped", _dims(lambda i, n: i ^ 1)
    yield _TOKENS, "low-halves", "both dims of a byte use its low nibble", _dims(lambda i, n: i // 2 * 2)
    yield _TOKENS, "high-halves", "both dims of a byte use its high nibble", _dims(lambda i, n: i // 2 * 2 + 1)
    apart = _dims(lambda i, n: i % (n // 2) * 2 + i // (n // 2))
    yield _TOKENS, "halves-apart", "low nibbles are unpacked to the first half of the row", apart


def _dims(places: Callable[[np.ndarray, int], np.ndarray]) -> Change:
    """Two 4-bit codes share a byte: dim i takes the code of dim places(i, dims). Unfit for other formats."""

    def changed(c: Decoding) -> Decoding:
        n = c.codes.shape[-1]
        if not FORMATS[c.kind].four_bits or n % 2:
            raise Unfit
        return replace(c, codes=c.codes[..., places(np.arange(n), n)])

    return changed


def _places() -> Changes:
    for axis, along in ((-1, "blocks"), (-2, "rows"), (1, "heads"), (0, "batches")):
        for one in indices.permutations() if axis < 0 else indices.others():
            words = f"scales of the wrong {along} are read: {one.text}"
            yield _TOKENS, f"scale-{along}-{one.id}", words, _elsewhere(one, axis)
            words = f"scales and zero points of the wrong {along} are read: {one.text}"
            yield _TOKENS, f"both-{along}-{one.id}", words, _elsewhere(one, axis, zeros=True)
    # scales of tiles lie at their first rows; the last tile, or the first one, has its own
    for rows, (by, which, words) in product(_TILES, ((1, "next", "next tile of {} rows"),
                                                      (-1, "previous", "previous tile of {} rows"))):  # fmt: skip
        move = lambda i, n, r=rows, by=by: np.clip(i // r + by, 0, (n - 1) // r) * r  # noqa: E731
        tile = indices.Indexing(f"tile-{which}-{rows}", f"the {words.format(rows)}", move)
        yield _TOKENS, f"scale-{tile.id}", f"scales of tiles are read from {tile.text}", _elsewhere(tile, -2)


def _elsewhere(one: indices.Indexing, axis: int, *, zeros: bool = False) -> Change:
    def changed(c: Decoding) -> Decoding:
        if zeros and not FORMATS[c.kind].zero:
            raise Unfit
        return replace(c, scale=_taken(c, "scale", one, axis), zero=_taken(c, "zero", one, axis) if zeros else c.zero)

    return changed


def _taken(c: Decoding, what: str, one: indices.Indexing, axis: int) -> np.ndarray:
    return c.spread(taken(c.at.whole(f"{what}_{c.of}"), one, axis))


def _rows() -> Iterator[Hypothesis]:
    some, verbs = OPERANDS[:4], {"dequant": "decoded", "codes": "stored"}

    def moved(stage: str, one: indices.Indexing, axis: int, operands: str) -> list[Edit]:
        return [altered(f"{stage}_{x}", lambda at, v: taken(v, one, axis)) for x in operands]

    for one, (axis, named), stage, of in product(indices.permutations(), ((-2, "rows"), (-1, "dims")), verbs, some):
        text = f"{named} of codes of {', '.join(of)} are {verbs[stage]} {one.text}"
        yield _of(f"{stage}-{named}-{one.id}-{of}", text, *moved(stage, one, axis, of))
    for one, stage, of, (axis, named) in product(indices.others(), verbs, some, ((1, "heads"), (0, "batches"))):
        text = f"{named} of codes of {', '.join(of)} are mixed up: {one.text}"
        yield _of(f"{stage}-{named}-{one.id}-{of}", text, *moved(stage, one, axis, of))
    for one, of, (axis, named) in product(indices.others(), some, ((1, "head"), (0, "batch"))):
        read = lambda at, c, one=one, axis=axis: taken(c, one, axis)  # noqa: E731
        text = f"codes of {', '.join(of)} are read from the wrong {named} but decoded with the right scale: {one.text}"
        yield _of(f"read-{named}-{one.id}-{of}", text, *(read_as(f"dequant_{x}", f"codes_{x}", read) for x in of))
    for x, y in ("kv", "vk", "qk", "kq"):
        swapped = altered(f"dequant_{x}", lambda at, rows, y=y: _of_other_rows(at, y, rows))
        yield _of(f"dequant-{y}-for-{x}", f"{y} is decoded instead of {x}", swapped)


def _of_other_rows(at: Any, x: str, rows: np.ndarray) -> np.ndarray:
    if x not in at.p.codes.coded:
        raise Unfit
    found: np.ndarray = at.whole(f"dequant_{x}")
    return found if found.shape == rows.shape else rows
