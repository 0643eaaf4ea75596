"""Primitives of the places that an order gives. What ties within the budgets leave open has no bound, nor what ties
exactly: libraries differ in which of equal elements they take, and top-k of torch promises none. Of whole numbers, the
keys of a permutation, equal ones stay in order.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from array_api_compat import device

from workbench.floats import array_namespace
from workbench.reference.graph.combine import is_float
from workbench.reference.graph.error import Amount
from workbench.reference.graph.rules.choices import Exact, Flat, unless_none
from workbench.reference.graph.shapes import spread
from workbench.reference.graph.site import Site


@dataclass(frozen=True)
class Place(Flat):
    """Where an order puts elements: argmax, argsort. What ties leave open is infinite: no bound."""

    name: str  #: argmax, argmin, argsort
    words: str

    def value(self, x: Any, *, axis: int, keepdims: bool = False) -> Any:
        xp = array_namespace(x)
        if self.name == "argsort":
            return xp.argsort(x, axis=axis, stable=True)
        x = xp.astype(x, xp.int8) if x.dtype == xp.bool else x  # torch has no order of truths
        return getattr(xp, self.name)(x, axis=axis, keepdims=keepdims)

    def beyond(self, s: Site) -> Amount:
        """Infinite at each place that another element might have."""
        if s.exact and not is_float(s.x[0]):
            return 0.0
        xp, x = s.xp, s.xp.astype(s.x[0], s.xp.float64)  # of truths, too
        least = -1.0 if is_float(s.x[0]) else 0.0  # equal floats tie, whatever their errors
        axis = s.attributes["axis"] % x.ndim
        sign = -1.0 if self.name == "argmax" else 1.0
        order = xp.argsort(sign * x, axis=axis, stable=True)
        at = xp.take_along_axis(x, order, axis=axis)
        e = xp.take_along_axis(spread(s.reads[0].error.worst, x), order, axis=axis)
        if at.shape[axis] < 2:
            return 0.0
        before, behind = _cut(at, axis, slice(None, -1)), _cut(at, axis, slice(1, None))
        off = _cut(e, axis, slice(None, -1)) + _cut(e, axis, slice(1, None))
        close = ((abs(before - behind) <= off) | (before == behind)) & (off > least)
        if self.name == "argsort":
            edge = xp.zeros_like(_cut(close, axis, slice(0, 1)))
            open_ = xp.concat([close, edge], axis=axis) | xp.concat([edge, close], axis=axis)
            return unless_none(s, open_, xp.inf)
        # the first may be any whose interval reaches the one of the first, not the second alone
        reach = sign * _cut(at, axis, slice(0, 1)) + _cut(e, axis, slice(0, 1))
        rest = sign * _cut(at, axis, slice(1, None)) - _cut(e, axis, slice(1, None))
        off = _cut(e, axis, slice(0, 1)) + _cut(e, axis, slice(1, None))
        keep = bool(s.attributes.get("keepdims"))
        open_ = xp.any((rest <= reach) & (off > least), axis=axis, keepdims=keep)
        return xp.where(open_, xp.inf, 0.0)

    def bits(self, s: Site) -> int:
        return 53


@dataclass(frozen=True)
class Sorted(Exact):
    """Elements in order. No element of a sorted array moves by more than the largest error: order statistics are
    1-Lipschitz in the largest norm.
    """

    words: str = "{0} sorted"

    def value(self, x: Any, *, axis: int) -> Any:
        return array_namespace(x).sort(x, axis=axis)

    def linear(self, s: Site, i: int, e: Any) -> Any:
        axis = s.attributes["axis"]
        order = s.xp.argsort(s.x[0], axis=axis, stable=True)
        return s.xp.take_along_axis(spread(e, s.x[0]), order, axis=axis)

    squared = linear

    def adjoint(self, s: Site, i: int, g: Any) -> Any:
        axis = s.attributes["axis"]
        order = s.xp.argsort(s.x[0], axis=axis, stable=True)
        back = s.xp.argsort(order, axis=axis, stable=True)
        return s.xp.take_along_axis(g, back, axis=axis)

    def beyond(self, s: Site) -> Amount:
        if s.exact:
            return 0.0
        worst = spread(s.reads[0].error.worst, s.x[0])
        largest = s.xp.max(worst, axis=s.attributes["axis"], keepdims=True)
        return s.xp.maximum(largest - self.linear(s, 0, worst), 0.0)

    def shared(self, s: Site, i: int) -> tuple[bool, ...]:
        return (any(s.reads[0].error.shared),) * s.y.ndim


@dataclass(frozen=True)
class Gather(Exact):
    """Elements of the first operand at places that the second gives, along an axis. Places that are open give no
    bound; where they are of the operand's `own` order, that of sorted elements.
    """

    words: str = "{0} at {1}"

    def value(self, x: Any, places: Any, *, axis: int, own: bool = False) -> Any:
        """NaN at places that the axis does not have, as a wrong kernel may dump them."""
        xp, n = array_namespace(x), x.shape[axis]
        places = xp.astype(places, xp.int64)
        inside = (places >= 0) & (places < n)
        made = xp.take_along_axis(x, xp.where(inside, places, 0), axis=axis)
        return made if bool(xp.all(inside)) else xp.where(inside, made, xp.nan)

    def linear(self, s: Site, i: int, e: Any) -> Any:
        return 0.0 * s.held if i else self.value(spread(e, s.x[0]), s.x[1], **s.attributes)

    squared = linear

    def adjoint(self, s: Site, i: int, g: Any) -> Any:
        if i:
            return s.xp.zeros_like(s.x[1], dtype=s.xp.float64)
        n = prod(s.x[0].shape)
        places = self.value(s.xp.reshape(s.xp.arange(n, device=device(g)), s.x[0].shape), s.x[1], **s.attributes)
        made = s.xp.bincount(s.xp.reshape(places, (-1,)), weights=s.xp.reshape(g, (-1,)), minlength=n)
        return s.xp.reshape(made, s.x[0].shape)

    def beyond(self, s: Site) -> Amount:
        open_ = s.reads[1].error.worst
        if isinstance(open_, float) and open_ == 0.0:
            return 0.0
        off: Any = s.xp.inf
        if s.attributes.get("own"):
            worst = spread(s.reads[0].error.worst, s.x[0])
            off = s.xp.max(worst, axis=s.attributes["axis"], keepdims=True) - self.linear(s, 0, worst)
        return s.xp.where(spread(open_, s.x[1]) > 0, off, 0.0)

    def shared(self, s: Site, i: int) -> tuple[bool, ...]:
        return (True,) * s.y.ndim

    def bits(self, s: Site) -> int:
        return s.reads[0].bits


def _cut(x: Any, axis: int, part: slice) -> Any:
    return x[(slice(None),) * axis + (part,)]


PLACES: Mapping[str, Any] = {
    "argmax": Place("argmax", "place of the largest of {0}"),
    "argmin": Place("argmin", "place of the smallest of {0}"),
    "argsort": Place("argsort", "order of {0}"),
    "sort": Sorted(),
    "gather": Gather(),
}
