"""Codes with a scale for each token or block of its dims: scales, zero points and codes that are read wrong."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from workbench.case.formats import FORMATS
from workbench.case.stages import INPUTS
from workbench.floats import round_to
from workbench.judge.explain.hypothesis import Edit, Hypothesis, Unfit
from workbench.judge.explain.library import indices
from workbench.judge.explain.library.indices import taken
from workbench.judge.explain.library.quantiser import power_of_two
from workbench.reference import quantize
from workbench.reference.steps.altered import Altered
from workbench.reference.steps.parameters import by_query_head

#: dims of blocks of other formats
BLOCKS = (8, 16, 32, 64, 128)
#: rows of tiles of kernels, which may share a scale
TILES = (32, 64, 128)
OPERANDS = ("q", "k", "v", "kv", "qkv")


@dataclass(frozen=True)
class Coded:
    """What an input is decoded from."""

    at: Any
    of: str  #: the input
    kind: str  #: its format
    codes: np.ndarray  #: [batch, head, row, dim]
    values: np.ndarray  #: of each code before its scale
    scale: np.ndarray  #: [batch, head, row, dim]: of each block as often as it has dims, as the others
    zero: np.ndarray | float
    over: np.ndarray | float

    @staticmethod
    def of_input(at: Any, of: str) -> "Coded":
        """Of what was dumped; Unfit of codes with a scale a head, and of none."""
        if at.p.codes is None or of not in at.p.codes.coded or at.whole(f"scale_{of}").ndim == 1:
            raise Unfit
        kind, codes = at.p.codes.format, at.whole(f"codes_{of}")
        form = FORMATS[kind]
        zero = _spread(at, f"zero_{of}", codes, kind) if form.zero else 0.0
        over = _spread(at, f"global_{of}", codes, kind) if form.tensor_scale else 1.0
        return Coded(at, of, kind, codes, form.values, _spread(at, f"scale_{of}", codes, kind), zero, over)

    @property
    def blocks(self) -> int:
        """How many scales a row has."""
        return int(self.at.whole(f"scale_{self.of}").shape[-1])

    @property
    def block(self) -> int:
        """Dims that share a scale."""
        return FORMATS[self.kind].block if self.blocks > 1 else int(self.codes.shape[-1])

    @property
    def starts(self) -> np.ndarray:
        """The first dim of each block."""
        return np.arange(0, self.codes.shape[-1], self.block)

    def decoded(self) -> np.ndarray:
        """What it stands for."""
        index = np.clip(np.nan_to_num(self.codes), 0, len(self.values) - 1).astype(np.int64)
        found: np.ndarray = (self.values[index] - self.zero) * self.scale * self.over
        return found

    def rescaled(self, scales: np.ndarray) -> "Coded":
        """With other scales [batch, head, row, block]."""
        return replace(self, scale=quantize.spread(scales, self.codes.shape[-1], self.kind))

    def other(self, ref: str) -> np.ndarray:
        """A scale or zero point of another input, of its first rows and heads; Unfit where they do not fit, and of an
        input without codes.
        """
        if ref[-1] not in self.at.p.codes.coded:
            raise Unfit
        found: np.ndarray = self.at.whole(ref)
        wanted = self.at.whole(f"scale_{self.of}").shape
        if any(n < m for n, m in zip(found.shape, wanted, strict=True)):
            raise Unfit
        return found[tuple(slice(0, n) for n in wanted)]


def _spread(at: Any, ref: str, codes: np.ndarray, kind: str) -> np.ndarray:
    return np.broadcast_to(quantize.spread(at.whole(ref), codes.shape[-1], kind), codes.shape)


Change = Callable[[Coded], Coded]


def hypotheses() -> Iterator[Hypothesis]:
    """Those of the family codes."""
    for name, text, change in _changes():
        for operands in OPERANDS:
            words = f"{text} ({', '.join(operands)})"

            def decoded(at: Any, x: np.ndarray, of: str, change: Change = change) -> np.ndarray:
                return change(Coded.of_input(at, of)).decoded()

            def in_rows(at: Any, x: np.ndarray, of: str, change: Change = change) -> np.ndarray:
                made = change(Coded.of_input(at, of)).decoded()
                return by_query_head(round_to(made, at.p.codes.operands[of] or "float16"), at.heads)

            for stage, made, what in (("dequant_{}", decoded, "blocks"), ("{}_rows", in_rows, "block-rows")):
                # a product in float32 may turn the cast to 16 bits behind it the other way
                edits = tuple(
                    Edit(
                        stage.format(of),
                        lambda step, of=of, made=made: Altered(step, lambda at, x: made(at, x, of), slack=2.0**-11),
                    )
                    for of in operands
                )
                yield Hypothesis(f"codes.{name}-{operands}-{what}", words, edits)


def _changes() -> Iterator[tuple[str, str, Change]]:
    yield from _scales()
    yield from _zeros()
    yield from _values()
    yield from _places()


def _scales() -> Iterator[tuple[str, str, Change]]:
    def scaled(change: Callable[[np.ndarray], np.ndarray]) -> Change:
        return lambda c: replace(c, scale=change(c.scale))

    yield "unscaled", "codes are decoded without the scales of blocks", scaled(np.ones_like)
    yield "scaled-twice", "codes are decoded with the scales of blocks twice", scaled(np.square)
    yield "scale-inverted", "codes are divided by the scales of blocks", scaled(lambda s: 1 / s)
    yield "tensor-scale-lost", "scales of blocks are not multiplied with that of the tensor", _of_tensor(0)
    yield "tensor-scale-twice", "scales of blocks are multiplied twice with that of the tensor", _of_tensor(2)
    yield "tensor-scale-inverted", "scales of blocks are divided by that of the tensor", _of_tensor(-1)
    yield "scale-swizzled", "scales lie in a 128x4 swizzle and are read row by row, or the other way round", _swizzled
    for other in INPUTS:
        words = f"codes are decoded with the scales of {other}"
        yield f"scales-of-{other}", words, lambda c, o=other: c.rescaled(c.other(f"scale_{o}"))
        words = f"codes are decoded with the tensor's scale of {other}"
        yield f"tensor-scale-of-{other}", words, lambda c, o=other: _over_of(c, o)
    for block in BLOCKS:
        words = f"a scale is taken for that of {block} dims"
        yield f"scale-of-{block}-dims", words, lambda c, b=block: _of_dims(c, b)
    for factor, words in ((2.0, "twice"), (0.5, "half"), (4.0, "four times"), (0.25, "a quarter of")):
        yield (
            f"block-bias-{factor:g}",
            f"codes are decoded to {words} their value (bias of the exponent of scales)",
            scaled(lambda s, x=factor: s * x),
        )
    for dtype in ("float16", "bfloat16", "float8_e4m3fn"):
        words = f"scales of blocks are rounded to {dtype} where codes are decoded"
        yield f"block-scale-{dtype}", words, scaled(lambda s, d=dtype: np.asarray(round_to(s, d), np.float64))
    for up, verb in ((True, "up"), (False, "down")):
        words = f"scales of blocks are rounded {verb} to powers of two where codes are decoded"
        yield f"block-scale-power-{verb}", words, scaled(lambda s, up=up: power_of_two(s, up))


def _places() -> Iterator[tuple[str, str, Change]]:
    for axis, along in ((-1, "blocks"), (-2, "rows"), (1, "heads"), (0, "batches")):
        for one in indices.permutations() if axis < 0 else indices.others():
            words = f"scales are read of other {along}: {one.text}"
            yield f"scale-{along}-{one.id}", words, _permuted(one, axis)
            words = f"scales and zero points are read of other {along}: {one.text}"
            yield f"both-{along}-{one.id}", words, _both_permuted(one, axis)

    for rows in TILES:
        for one in _of_tiles(rows):
            yield f"scale-{one.id}", f"scales of tiles are read of {one.text}", _permuted(one, -2)


def _of_tiles(rows: int) -> Iterator[indices.Indexing]:
    """Scales of tiles lie at their first rows; the last tile, or the first one, has its own."""

    def moved(by: int) -> indices.Map:
        return lambda i, n: np.clip(i // rows + by, 0, (n - 1) // rows) * rows

    yield indices.Indexing(f"tile-next-{rows}", f"the next tile of {rows} rows", moved(1))
    yield indices.Indexing(f"tile-previous-{rows}", f"the tile of {rows} rows before", moved(-1))


def _zeros() -> Iterator[tuple[str, str, Change]]:
    def moved(change: Callable[[Coded], Any]) -> Change:
        def changed(c: Coded) -> Coded:
            if not FORMATS[c.kind].zero:
                raise Unfit
            return replace(c, zero=change(c))

        return changed

    yield "zero-forgotten", "the zero point is not subtracted", moved(lambda c: 0.0)
    for shift in (1, -1):
        yield f"zero-off{shift:+}", f"the zero point is off by {shift}", moved(lambda c, n=shift: c.zero + n)
    yield "zero-added", "the zero point is added, not subtracted", moved(lambda c: -c.zero)
    yield "zero-8", "8 is subtracted in place of the zero point", moved(lambda c: 8.0)
    yield "zero-unscaled", "the zero point is subtracted after the scale", moved(lambda c: c.zero / c.scale)
    for axis, along in ((-1, "blocks"), (-2, "rows"), (1, "heads")):
        for one in indices.others():
            words = f"zero points are read of other {along}: {one.text}"
            yield f"zero-{along}-{one.id}", words, moved(lambda c, one=one, axis=axis: _zero_of(c, one, axis))
    for other in INPUTS:
        words = f"codes are decoded with the zero points of {other}"
        spread = lambda c, o=other: quantize.spread(c.other(f"zero_{o}"), c.codes.shape[-1], c.kind)  # noqa: E731
        yield f"zeros-of-{other}", words, moved(spread)


def _values() -> Iterator[tuple[str, str, Change]]:
    def valued(change: Callable[[np.ndarray, str], np.ndarray]) -> Change:
        return lambda c: replace(c, values=change(c.values, c.kind))

    half = lambda v: len(v) // 2  # noqa: E731
    small = lambda v, f: np.where(abs(v) < FORMATS[f].smallest_normal, 0.0, v)  # noqa: E731
    yield "flushed-values", "subnormal codes are 0", valued(small)
    yield "absolute-values", "the sign of codes is lost", valued(lambda v, f: abs(v))
    yield "negated-values", "the sign of codes is the wrong way round", valued(lambda v, f: -v)
    yield "next-values", "codes are decoded as the next one", valued(lambda v, f: np.roll(v, -1))
    yield "previous-values", "codes are decoded as the previous one", valued(lambda v, f: np.roll(v, 1))
    signed = lambda v, f: np.where(np.arange(len(v)) < half(v), np.arange(len(v)), np.arange(len(v)) - len(v))  # noqa: E731
    yield "signed-values", "codes are read as signed integers", valued(lambda v, f: signed(v, f).astype(np.float64))
    yield "unsigned-values", "codes are read as unsigned integers", valued(lambda v, f: np.arange(float(len(v))))
    for kind, form in FORMATS.items():
        words = f"codes are read as {kind}"
        same = lambda v, f, n=form.values: n if len(n) == len(v) else _unfit()  # noqa: E731
        yield f"values-of-{kind}", words, valued(same)
    yield "halves-of-bytes", "the halves of a byte are swapped", lambda c: _dims(c, lambda i, n: i ^ 1)
    yield "low-halves", "both dims of a byte are its low half", lambda c: _dims(c, lambda i, n: i // 2 * 2)
    yield "high-halves", "both dims of a byte are its high half", lambda c: _dims(c, lambda i, n: i // 2 * 2 + 1)
    halves = lambda i, n: i % (n // 2) * 2 + i // (n // 2)  # noqa: E731
    yield "halves-apart", "the low halves of bytes are taken for the first half of a row", lambda c: _dims(c, halves)


def _unfit() -> np.ndarray:
    raise Unfit


def _dims(c: Coded, places: Callable[[np.ndarray, int], np.ndarray]) -> Coded:
    n = c.codes.shape[-1]
    if not FORMATS[c.kind].four_bits or n % 2:
        raise Unfit
    return replace(c, codes=c.codes[..., places(np.arange(n), n)])


def _of_tensor(power: int) -> Change:
    def changed(c: Coded) -> Coded:
        if not FORMATS[c.kind].tensor_scale:
            raise Unfit
        return replace(c, over=np.asarray(c.over, np.float64) ** power)

    return changed


def _over_of(c: Coded, other: str) -> Coded:
    if not FORMATS[c.kind].tensor_scale or other not in c.at.p.codes.coded:
        raise Unfit
    return replace(c, over=c.at.whole(f"global_{other}")[0])


def _permuted(one: indices.Indexing, axis: int) -> Change:
    return lambda c: c.rescaled(taken(c.at.whole(f"scale_{c.of}"), one, axis))


def _both_permuted(one: indices.Indexing, axis: int) -> Change:
    def changed(c: Coded) -> Coded:
        if not FORMATS[c.kind].zero:
            raise Unfit
        return replace(_permuted(one, axis)(c), zero=_zero_of(c, one, axis))

    return changed


def _zero_of(c: Coded, one: indices.Indexing, axis: int) -> np.ndarray:
    return quantize.spread(taken(c.at.whole(f"zero_{c.of}"), one, axis), c.codes.shape[-1], c.kind)


def _of_dims(c: Coded, block: int) -> Coded:
    """With the scale, and the zero point, at dim // block of the row, the last one where there is none."""
    if block == c.block:
        raise Unfit
    dims = np.arange(c.codes.shape[-1])
    first = c.starts[np.minimum(dims // block, c.blocks - 1)]
    zero = c.zero[..., first] if isinstance(c.zero, np.ndarray) else c.zero
    return replace(c, scale=c.scale[..., first], zero=zero)


def _swizzled(c: Coded) -> Coded:
    """With scales at the places that a tile of 128 rows by 4 blocks has in the memory of block-scaled matrix products:
    512 numbers, those of rows r, r + 32, r + 64 and r + 96 beside each other (cuBLAS, "1D block scaling
    factors layout").
    """
    scales = c.at.whole(f"scale_{c.of}")
    rows, blocks = scales.shape[-2:]
    r, b = np.arange(rows)[:, None], np.arange(blocks)
    tile = r // 128 * -(-blocks // 4) + b // 4
    place = tile * 512 + r % 32 * 16 + r % 128 // 32 * 4 + b % 4
    flat = scales.reshape(*scales.shape[:2], rows * blocks)
    return c.rescaled(flat[..., place % (rows * blocks)])
