"""Primitives that choose: maxima, where, comparisons, steps such as floor, and the places that an order gives.

A choice that the budgets of what is compared leave open is part of the bound: as far as the other choice would be.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.floats import array_namespace, round_to
from workbench.reference.graph.error import EXACT, Amount, Error, Own, plus
from workbench.reference.graph.shapes import spread, to_shape
from workbench.reference.graph.site import Site, finite, likely


class Exact:
    """What all choices share: they round nothing."""

    def own(self, s: Site) -> Own:
        return Own()

    def grows(self, s: Site) -> float:
        return 0.0

    def alike(self, s: Site, i: int) -> bool:
        return False

    def shared(self, s: Site, i: int) -> tuple[bool, ...]:
        return (False,) * s.y.ndim

    def bits(self, s: Site) -> int:
        return max(one.bits for one in s.reads)


class Flat(Exact):
    """What jumps from one value to another: it has no slope."""

    def linear(self, s: Site, i: int, e: Any) -> Any:
        return 0.0 * spread(0.0, s.y)

    squared = linear

    def adjoint(self, s: Site, i: int, g: Any) -> Any:
        return s.xp.zeros_like(s.x[i], dtype=s.xp.float64)


@dataclass(frozen=True)
class Extreme(Exact):
    """The larger or the smaller of two, or along axes. It is exact and monotone, so that the ends of intervals bound
    it; what it is off by all later uses share: it is common.
    """

    name: str  #: maximum, minimum; max, min
    words: str

    def value(self, *x: Any, **attributes: Any) -> Any:
        return getattr(array_namespace(*x), self.name)(*x, **attributes)

    def end(self, s: Site, off: list[Amount]) -> Any:
        """The farther end, of operands that are off by so much."""
        up = self.value(*(one + e for one, e in zip(s.x, off, strict=True)), **s.attributes)
        down = self.value(*(one - e for one, e in zip(s.x, off, strict=True)), **s.attributes)
        return s.xp.where(up == down, 0.0, finite(s.xp.maximum(up - s.y, s.y - down)))

    def error(self, s: Site) -> Error:
        """The bounds of the ends."""
        worst = self.end(s, [one.error.worst for one in s.reads])
        return Error(worst, 0.0, self.end(s, [likely(one) for one in s.reads]))

    def linear(self, s: Site, i: int, e: Any) -> Any:
        """Of the chosen element."""
        if len(s.reads) == 2:
            return s.xp.where(self._chosen(s, i), e, 0.0)
        y, keep = self._kept(s)
        first = self._first(s.x[0], y, s)
        made = s.xp.sum(s.xp.where(first > 0, first * e, 0.0), axis=s.attributes["axis"], keepdims=keep)
        return made

    def adjoint(self, s: Site, i: int, g: Any) -> Any:
        if len(s.reads) == 2:
            return to_shape(g * self._chosen(s, i), s.x[i].shape)
        y, keep = self._kept(s)
        g = g if keep else s.xp.reshape(g, y.shape)
        return self._first(s.x[0], y, s) * g

    def beyond(self, s: Site) -> Amount:
        """What the choice itself may add to the error of what is chosen."""
        if s.exact:
            return 0.0
        first: Any = 0.0
        for i, one in enumerate(s.reads):
            if one.error is not EXACT:
                first = plus(first, self.linear(s, i, one.error.worst))
        return s.xp.maximum(self.end(s, [one.error.worst for one in s.reads]) - first, 0.0)

    def _chosen(self, s: Site, i: int) -> Any:
        first = s.x[0] >= s.x[1] if self.name == "maximum" else s.x[0] <= s.x[1]
        return first if i == 0 else ~first

    def _kept(self, s: Site) -> tuple[Any, bool]:
        keep = bool(s.attributes.get("keepdims"))
        return self.value(s.x[0], axis=s.attributes["axis"], keepdims=True), keep

    def _first(self, x: Any, y: Any, s: Site) -> Any:
        """Where the extreme is, once for each: of several the share of each."""
        same = s.xp.astype(x == y, s.xp.float64)
        several = s.xp.sum(same, axis=s.attributes["axis"], keepdims=True)
        return same / s.xp.where(several > 0, several, 1.0)


def unless_none(s: Site, open_: Any, off: Any) -> Amount:
    """`off` where a choice is open; no array for what is exact and leaves none."""
    return 0.0 if s.exact and not bool(s.xp.any(open_)) else s.xp.where(open_, off, 0.0)


@dataclass(frozen=True)
class Share(Flat):
    """Of an element in the extreme along axes: 1, or as many parts of it as there are equal ones, and 0 of the others.
    Where several are equal, or errors leave open which it is, each that may be has anything from 0 to 1.
    """

    words: str = "whether {0} is the extreme"

    def value(self, x: Any, *, of: str, axis: tuple[int, ...]) -> Any:
        xp = array_namespace(x)
        same = xp.astype(x == getattr(xp, of)(x, axis=axis, keepdims=True), xp.float64)
        return same / xp.sum(same, axis=axis, keepdims=True)

    def beyond(self, s: Site) -> Amount:
        xp, axis, sign = s.xp, s.attributes["axis"], 1.0 if s.attributes["of"] == "max" else -1.0
        x, e = sign * s.x[0], spread(s.reads[0].error.worst, s.x[0])
        may = x + e >= xp.max(x - e, axis=axis, keepdims=True)
        several = xp.sum(xp.astype(may, xp.float64), axis=axis, keepdims=True) > 1
        return unless_none(s, may & several, xp.maximum(s.y, 1.0 - s.y))


@dataclass(frozen=True)
class Where(Exact):
    """One of two by a condition. An open condition adds the distance to the other."""

    words: str = "{1} where {0}, else {2}"

    def value(self, condition: Any, a: Any, b: Any) -> Any:
        return array_namespace(condition, a, b).where(condition != 0, a, b)

    def linear(self, s: Site, i: int, e: Any) -> Any:
        if i == 0:
            return 0.0 * s.held
        chosen = s.truth
        return s.xp.where(chosen, e, 0.0) if i == 1 else s.xp.where(chosen, 0.0, e)

    squared = linear

    def adjoint(self, s: Site, i: int, g: Any) -> Any:
        if i == 0:
            return s.xp.zeros_like(s.x[0], dtype=s.xp.float64)
        chosen = s.truth
        return to_shape(s.xp.where(chosen if i == 1 else ~chosen, g, 0.0), s.x[i].shape)

    def beyond(self, s: Site) -> Amount:
        open_ = s.reads[0].error.worst
        if isinstance(open_, float) and open_ == 0.0:
            return 0.0
        a, b = s.x[1:]
        apart = s.xp.where(a == b, 0.0, abs(a - b))
        apart = s.xp.where(s.xp.isnan(apart), s.xp.inf, apart)
        return s.xp.where(open_ > 0, apart + s.reads[1].error.worst + s.reads[2].error.worst, 0.0)

    def shared(self, s: Site, i: int) -> tuple[bool, ...]:
        x, found = s.x[i], []
        for j in range(s.y.ndim):
            k = j - s.y.ndim + x.ndim
            found.append(k < 0 or (x.shape[k] == 1 and s.y.shape[j] > 1) or s.reads[i].error.shared[k])
        return tuple(found)

    def bits(self, s: Site) -> int:
        return max(one.bits for one in s.reads[1:])


@dataclass(frozen=True)
class Compare(Flat):
    """1 or 0, off by 1 where the operands' errors leave it open."""

    name: str
    words: str

    def value(self, a: Any, b: Any) -> Any:
        return getattr(array_namespace(a, b), self.name)(a, b)

    def beyond(self, s: Site) -> Amount:
        if s.exact:
            return 0.0
        off = sum(one.error.worst for one in s.reads)
        return s.xp.astype((abs(s.x[0] - s.x[1]) <= off) & (s.xp.asarray(off) > 0), s.xp.float64)

    def bits(self, s: Site) -> int:
        return 1


@dataclass(frozen=True)
class Logical(Flat):
    """and, or, not of such: open where an operand is."""

    name: str
    words: str

    def value(self, *x: Any) -> Any:
        return getattr(array_namespace(*x), self.name)(*x)

    def linear(self, s: Site, i: int, e: Any) -> Any:
        return s.xp.minimum(spread(e, s.y), spread(1.0, s.y))

    squared = linear

    def beyond(self, s: Site) -> Amount:
        return 0.0

    def bits(self, s: Site) -> int:
        return 1


@dataclass(frozen=True)
class Kind(Logical):
    """NaN, infinite, finite: of a number that may be off by something finite it is what it is."""

    def linear(self, s: Site, i: int, e: Any) -> Any:
        off = spread(e, s.y)
        return s.xp.where(s.xp.isfinite(off), 0.0, 1.0)

    squared = linear


@dataclass(frozen=True)
class Quotient(Exact):
    """a // b of whole numbers: as open as they are."""

    words: str = "{0} // {1}"

    def value(self, a: Any, b: Any) -> Any:
        return array_namespace(a, b).floor_divide(a, b)

    def linear(self, s: Site, i: int, e: Any) -> Any:
        return s.xp.where(spread(e, s.y) > 0, s.xp.inf, 0.0)

    squared = linear

    def adjoint(self, s: Site, i: int, g: Any) -> Any:
        return to_shape(0.0 * g, s.x[i].shape)

    def beyond(self, s: Site) -> Amount:
        return 0.0


@dataclass(frozen=True)
class Step(Flat):
    """A monotone function that jumps, such as floor, or a cast to 8 bits: as far as it goes between the ends of the
    interval.
    """

    f: Callable[..., Any]
    words: str

    def value(self, x: Any, **attributes: Any) -> Any:
        return self.f(x, **attributes)

    def beyond(self, s: Site) -> Amount:
        if s.exact:
            return 0.0
        return self._end(s, s.reads[0].error.worst)

    def error(self, s: Site) -> Error:
        """All elements of one value jump alike: common."""
        return Error(self._end(s, s.reads[0].error.worst), 0.0, self._end(s, likely(s.reads[0])))

    def _end(self, s: Site, e: Amount) -> Any:
        x, y = s.xp.astype(s.x[0], s.xp.float64, copy=False), s.y  # of truths, too
        up, down = (s.xp.astype(self.f(x + sign * e, **s.attributes), s.xp.float64) for sign in (1, -1))
        moved = s.xp.maximum(abs(up - y), abs(down - y))
        moved = s.xp.where((up == y) & (down == y), 0.0, moved)
        dtype = s.attributes.get("dtype", "")
        if not dtype.startswith(("int", "uint")):
            return moved
        least, most = float(np.iinfo(dtype).min - 1), float(np.iinfo(dtype).max + 1)
        return s.xp.where((x - e <= least) | (x + e >= most), s.xp.inf, moved)  # machines wrap, or saturate

    def bits(self, s: Site) -> int:
        return int(s.attributes.get("bits", 24))


def _call(name: str) -> Callable[..., Any]:
    return lambda x: getattr(array_namespace(x), name)(x)


def _executed(x: Any, *, dtype: str, bits: int = 24) -> Any:
    """A cast to 8 bits or to integers, which changes the value."""
    xp = array_namespace(x)
    whole = dtype.startswith(("int", "uint", "bool"))
    return xp.astype(x, getattr(xp, dtype)) if whole else round_to(x, dtype)


CHOICES: Mapping[str, Any] = {
    "maximum": Extreme("maximum", "max({0}, {1})"),
    "minimum": Extreme("minimum", "min({0}, {1})"),
    "max": Extreme("max", "max of {0}"),
    "min": Extreme("min", "min of {0}"),
    "share": Share(),
    "where": Where(),
    **{name: Compare(name, f"{{0}} {sign} {{1}}")
       for name, sign in {"equal": "==", "not_equal": "!=", "less": "<", "less_equal": "<=", "greater": ">",
                          "greater_equal": ">="}.items()},
    "logical_and": Logical("logical_and", "{0} and {1}"),
    "logical_or": Logical("logical_or", "{0} or {1}"),
    "logical_xor": Logical("logical_xor", "{0} xor {1}"),
    "logical_not": Logical("logical_not", "not {0}"),
    "isnan": Kind("isnan", "isnan({0})"),
    "isinf": Kind("isinf", "isinf({0})"),
    "isfinite": Kind("isfinite", "isfinite({0})"),
    "floor_divide": Quotient(),
    "floor": Step(_call("floor"), "floor({0})"),
    "ceil": Step(_call("ceil"), "ceil({0})"),
    "trunc": Step(_call("trunc"), "trunc({0})"),
    "rint": Step(_call("round"), "{0} rounded to whole numbers"),
    "sign": Step(_call("sign"), "sign({0})"),
    "executed": Step(_executed, "{0} cast to fewer bits"),
}  # fmt: skip
