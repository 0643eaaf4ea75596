"""Changes of a value: a factor, a power, an offset, a clamp, a cast."""

from collections.abc import Callable, Iterator, Sequence
from math import e, log, sqrt
from typing import NamedTuple

import numpy as np

from workbench.judge.reference.causes.edit import Draft
from workbench.judge.reference.given import is_whole
from workbench.reference.graph.contract import BITS
from workbench.reference.graph.node import Node
from workbench.reference.graph.rules import CONSTANT

#: a value that may be read -> the changed one
Change = Callable[[Draft, int], int]


class Changed(NamedTuple):
    """One change, in words that stand behind the name of a value."""

    words: str
    family: str
    size: int
    change: Change


#: dtypes in which a value may be stored: how they are called, and how unlikely they are
CASTS = {
    "bfloat16": ("bfloat16", 1),
    "float16": ("float16", 1),
    "float8_e4m3fn": ("e4m3", 2),
    "float8_e5m2": ("e5m2", 3),
}
#: elements that a kernel takes at once
TILES = (8, 16, 32, 64, 128, 256, 512)
#: what keeps a denominator or a logarithm from 0
EPSILONS = tuple(10.0**-k for k in (5, 6, 8, 12, 4, 7, 10, 3))


def changes(node: Node, lengths: Sequence[int]) -> Iterator[Changed]:
    """Elementwise mistakes: a factor, a power, an offset, ...; `lengths`: of the axes, for factors such as 1/n."""
    if is_whole(node.dtype):
        yield from _of_whole(node, lengths)
        return
    if node.op == CONSTANT and bool((node.value == np.round(node.value)).all()) and abs(node.value).max() <= 128:
        yield _SYMMETRIC
    yield Changed("has the other sign", "factor", 1, lambda d, x: d.add("negative", x))
    for words, c, size in _factors(lengths):
        yield Changed(f"is multiplied by {words}", "factor", size, _scaled(c))
    yield Changed("is squared", "power", 1, lambda d, x: d.add("square", x))
    yield Changed("is replaced by its square root", "power", 2, lambda d, x: d.add("sqrt", x))
    yield Changed("is replaced by its reciprocal", "power", 2, lambda d, x: d.add("divide", d.hold(1.0), x))
    yield Changed("is replaced by its magnitude", "clamp", 2, lambda d, x: d.add("abs", x))
    for c in (1.0, -1.0):
        yield Changed(f"is larger by {c:g}" if c > 0 else f"is smaller by {-c:g}", "offset", 2, _larger(c))
    for c in EPSILONS:
        yield Changed(f"is larger by {c:g}", "offset", 2, _larger(c))
    yield Changed("is clamped to at least 0", "clamp", 2, _at_least(0.0))
    yield Changed("is clamped to at most 1", "clamp", 3, _at_most(1.0))
    for dtype, (words, size) in CASTS.items():
        yield Changed(f"is rounded to {words}", "cast", size, _rounded(dtype))
    yield Changed("is 1", "operand", 2, lambda d, x: d.hold(np.ones(d.of(x).shape)))
    yield Changed("is 0", "operand", 2, lambda d, x: d.hold(np.zeros(d.of(x).shape)))


def _factors(lengths: Sequence[int]) -> Iterator[tuple[str, float, int]]:
    yield from (("2", 2.0, 1), ("1/2", 0.5, 1), ("log2(e)", log(e, 2), 1), ("ln(2)", log(2), 1))
    for n in lengths:
        yield f"sqrt({n})", sqrt(n), 2
        yield f"1 / sqrt({n})", 1 / sqrt(n), 2
        yield f"{n} / {n - 1}", n / (n - 1), 2
        yield f"{n - 1} / {n}", (n - 1) / n, 2
        yield f"{n}", float(n), 2
        yield f"1 / {n}", 1 / n, 2


def growing(node: Node, scale: float) -> Iterator[Changed]:
    """A factor that a loop over tiles applies to what it keeps, so that it is there once more in each tile."""
    for axis, n in enumerate(node.shape):
        for t in TILES:
            if 16 <= t < n:
                for words, c in (("log2(e)", log(e, 2)), (f"{scale:g}", scale)):
                    said = f"is multiplied by {words} once more with each tile of {t} of axis {axis}"
                    yield Changed(said, "factor", 3, _grown(axis, c ** (np.arange(n) // t)))


def _grown(axis: int, factors: np.ndarray) -> Change:
    def change(d: Draft, x: int) -> int:
        shape = d.of(x).shape
        return d.add("multiply", x, d.hold(factors.reshape([-1 if a == axis else 1 for a in range(len(shape))])))

    return change


def _of_whole(node: Node, lengths: Sequence[int]) -> Iterator[Changed]:
    if np.dtype(node.dtype).kind == "b":
        yield Changed("is True everywhere", "operand", 0, lambda d, x: d.hold(np.ones(d.of(x).shape, bool), bool))
        return
    yield Changed("is larger by 1", "offset", 1, _larger(1, np.int64))
    yield Changed("is smaller by 1", "offset", 1, _larger(-1, np.int64))
    if node.dtype.itemsize == 1 and node.dtype.kind == "i":
        yield _SYMMETRIC
    for n in lengths:
        for t in TILES:
            if t < n:
                yield Changed(f"is taken modulo {t}", "offset", 2, _modulo(t, 0))
                start = (n - 1) // t * t
                said = f"is counted from the start of the last tile of {t}: {start} is missing"
                yield Changed(said, "offset", 2, _modulo(start, start))


def _modulo(by: int, first: int) -> Change:
    """x less the largest multiple of a number, from `first` on."""

    def change(d: Draft, x: int) -> int:
        c = d.hold(by, np.int64)
        if first:
            inside = d.add("greater_equal", x, c)
            return d.add("where", inside, d.add("subtract", x, c), x)
        return d.add("subtract", x, d.add("multiply", c, d.add("floor_divide", x, c)))

    return change


#: of codes in 8 bits: a symmetric format has no -128
_SYMMETRIC = Changed(
    "is clamped to at least -127", "clamp", 1, lambda d, x: d.add("maximum", x, d.hold(-127, np.int64))
)


def _scaled(c: float) -> Change:
    return lambda d, x: d.add("multiply", x, d.hold(c))


def _larger(c: float, dtype: type = np.float64) -> Change:
    return lambda d, x: d.add("add", x, d.hold(c, dtype))


def _at_least(c: float) -> Change:
    return lambda d, x: d.add("maximum", x, d.hold(c))


def _at_most(c: float) -> Change:
    return lambda d, x: d.add("minimum", x, d.hold(c))


def _rounded(dtype: str) -> Change:
    return lambda d, x: rounded(d, x, dtype)


def rounded(d: Draft, x: int, dtype: str) -> int:
    """x as a dtype of fewer bits holds it."""
    bits = BITS.get(CASTS[dtype][0], 24)
    return d.add("executed", x, dtype=dtype, bits=bits)
