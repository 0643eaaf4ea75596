"""Matrix products of tokens in chunks, and their errors: [b, h, chunks, chunk, ...], of one chunk or of all."""

from typing import Any, NamedTuple

import numpy as np

from workbench.case.contract import FAST_EXP_ULPS, FAST_EXP_ULPS_PER_X
from workbench.reference.arithmetic import Arithmetic
from workbench.reference.bound import Bound

Array = Any


class Error(NamedTuple):
    """As a Bound, with the square of what is random: errors that add up."""

    worst: Array = 0.0
    squares: Array = 0.0
    common: Array = 0.0

    def __add__(self, other: "Error") -> "Error":  # type: ignore[override]
        return Error(*(x + y for x, y in zip(self, other, strict=True)))

    def times(self, factor: Array) -> "Error":
        """Of what is multiplied by a factor."""
        return Error(abs(factor) * self.worst, factor * factor * self.squares, abs(factor) * self.common)

    def of_last(self) -> "Error":
        """Of the last token of each chunk."""
        return Error(*(x if isinstance(x, float) else x[..., -1:] for x in self))

    def through(self, left: Array | None = None, right: Array | None = None) -> "Error":
        """Of a matrix product with what is on the left or right of it."""
        made = self
        if left is not None and not isinstance(made.worst, float):
            made = Error(
                *(x @ _like(y, self.worst) for x, y in zip((abs(left), left**2, abs(left)), made, strict=True))
            )
        if right is not None and not isinstance(made.worst, float):
            made = Error(
                *(_like(y, made.worst) @ x for x, y in zip((abs(right), right**2, abs(right)), made, strict=True))
            )
        return made

    def bound(self, tokens: int) -> Bound:
        """Of the tokens, which are in chunks here."""
        parts = self.worst, np.sqrt(self.squares), self.common + 0.0 * self.worst
        return Bound(*(flat(x, tokens) for x in parts))


NOTHING = Error()


def _like(x: Array, other: Array) -> Array:
    return x + np.zeros_like(other)


def in_chunks(x: Array, chunk: int, mode: str = "constant") -> Array:
    """[b, h, tokens, ...] as [b, h, chunks, chunk, ...], filled with 0, or the last token's where `mode` is edge."""
    lacking = -x.shape[2] % chunk
    x = np.pad(x, [(0, lacking if axis == 2 else 0) for axis in range(x.ndim)], mode=mode)  # type: ignore[call-overload]
    return x.reshape(*x.shape[:2], -1, chunk, *x.shape[3:])


def flat(x: Array, tokens: int) -> Array:
    """The same back."""
    return x.reshape(*x.shape[:2], -1, *x.shape[4:])[:, :, :tokens]


def product_error(at: Any, x: Array, y: Array, casts: int, operands: str, terms: Array | None = None) -> Error:
    """Of x @ y: n products and sums in any order, as `steps.sums`, `casts` of its operands cast before. `terms`: how
    many products of each element are not 0, where x has a triangle of zeros: to add one is exact.
    """
    arithmetic, n = at.arithmetic(""), x.shape[-1] if terms is None else terms
    lost, least = cast_loss(operands)
    size, squares, made = abs(x) @ abs(y), x**2 @ y**2, x @ y
    random = arithmetic.unit**2 * (n * (squares / 2 + made**2 / 3) + squares) + casts * lost**2 * squares
    floor = n * arithmetic.floor
    if casts:
        floor = floor + least * (abs(x).sum(-1)[..., :, None] + abs(y).sum(-2)[..., None, :])
    added = n * arithmetic.unit / (1 - n * arithmetic.unit)
    return Error((added + casts * lost * (1 + lost)) * size + floor, random, floor)


def terms_of(chunk: int) -> Array:
    """How many tokens each token of a chunk sees, as a column."""
    return np.arange(1.0, chunk + 1)[:, None]


def cast_loss(operands: str) -> tuple[float, float]:
    """Relative and absolute error of a cast to the dtype of operands; 0 where they stay as they are."""
    return (0.0, 0.0) if operands == "float32" else Arithmetic(operands).cast()


def stored(value: Array, operands: str) -> Error:
    """Of a result that is stored as products read it."""
    lost, least = cast_loss(operands)
    return Error(lost * abs(value) + least, (lost * value) ** 2, least + 0.0 * value)


def rounded(value: Array, u: float, times: int) -> Error:
    """Of so many roundings of a result."""
    return Error(times * u * abs(value), times * (u * value) ** 2, 0.0 * value)


def of_exp(at: Any, x: Array, of_x: Error) -> Error:
    """Relative, of exp(x): what exp loses, its argument that is rounded, and what is off in it, which is common."""
    u, length = at.arithmetic("").unit, abs(x)
    own = 2 * u * (FAST_EXP_ULPS + FAST_EXP_ULPS_PER_X * length) + u * length
    return Error(np.expm1(own + of_x.worst), own**2, 1.05 * of_x.common + 0.0 * x)
