"""Primitives that only move elements: views, copies, writes. Errors go where the values go, and nothing is rounded."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from array_api_compat import device

from workbench.floats import array_namespace
from workbench.reference.graph.error import Amount, Error, Own, none
from workbench.reference.graph.shapes import spread, to_shape
from workbench.reference.graph.site import Site


@dataclass(frozen=True)
class Move:
    """f(x, **attributes), whose elements are those of x."""

    f: Callable[..., Any]
    words: str
    #: d / d x from d / d y; None: by the places that the elements came from
    back: Callable[[Site, Any], Any] | None = None

    def value(self, *x: Any, **attributes: Any) -> Any:
        return self.f(*x, **attributes)

    def own(self, s: Site) -> Own:
        return Own()

    def linear(self, s: Site, i: int, e: Any) -> Any:
        return self.f(spread(e, s.x[i]), **s.attributes)

    squared = linear

    def adjoint(self, s: Site, i: int, g: Any) -> Any:
        if self.back is not None:
            return self.back(s, g)
        return from_places(s, g)

    def beyond(self, s: Site) -> Amount:
        return 0.0

    def grows(self, s: Site) -> float:
        return 0.0

    def alike(self, s: Site, i: int) -> bool:
        return False

    def shared(self, s: Site, i: int) -> tuple[bool, ...]:
        """All axes, where any is: places are not followed."""
        of = s.reads[i].error.shared
        if s.node.op == "transpose":
            return tuple(of[a] for a in s.attributes["axes"])
        return (any(of) or (s.node.op in SPREADING and prod(s.y.shape) > prod(s.x[i].shape)),) * s.y.ndim

    def bits(self, s: Site) -> int:
        return s.reads[0].bits

    def terms(self, s: Site) -> dict[str, Any]:
        """Those of an unseen sum, moved as it is."""
        x = s.reads[0]
        size, squares, attributed = (
            self.f(spread(one, x.value), **s.attributes) for one in (x.size, x.of_squares, x.attributed)
        )
        return {"additions": x.additions, "terms": x.terms, "size": size, "of_squares": squares,
                "attributed": attributed}  # fmt: skip


@dataclass(frozen=True)
class Joined(Move):
    """Several arrays, one behind the other along an axis."""

    def value(self, *x: Any, axis: int) -> Any:
        return array_namespace(*x).concat(list(x), axis=axis)

    def error(self, s: Site) -> Error:
        """Those of all, joined once: of thousands of arrays one by one would take a square of their number."""
        errors = [one.error for one in s.reads]

        def joined(parts: list[Amount]) -> Amount:
            return 0.0 if all(none(one) for one in parts) else self.value(*map(spread, parts, s.x), **s.attributes)

        sources = 0
        for one in errors:
            sources |= one.sources
        shared = [one.shared for one in errors if one.shared]
        worst, variance, common = (joined([one[k] for one in errors]) for k in range(3))
        return Error(worst, variance, common, sources, tuple(map(any, zip(*shared, strict=True))))

    def adjoint(self, s: Site, i: int, g: Any) -> Any:
        axis = s.attributes["axis"] % s.y.ndim
        first = sum(x.shape[axis] for x in s.x[:i])
        return g[(slice(None),) * axis + (slice(first, first + s.x[i].shape[axis]),)]

    def bits(self, s: Site) -> int:
        return max(one.bits for one in s.reads)


@dataclass(frozen=True)
class Write(Move):
    """A copy of x in which the view `step` of it holds another array."""

    def value(self, x: Any, part: Any, *, step: str, how: Mapping[str, Any]) -> Any:
        return put(_own(x), part, step, how)

    def error(self, s: Site) -> Error:
        """The errors of the array and of the part. They are written in place where nothing else reads the array: a loop
        of n writes would copy it n times.
        """
        base, part = (one.error for one in s.reads)

        def written(of_base: Amount, of_part: Amount) -> Amount:
            if none(of_base) and none(of_part):
                return 0.0
            kept = s.in_place and not none(of_base)
            made = of_base if kept else _own(spread(of_base, s.x[0]))
            return put(made, of_part, **s.attributes)

        worst, variance, common = (written(base[k], part[k]) for k in range(3))
        of_part = bool(part.shared) and (any(part.shared) or self._spreads(s))
        shared = tuple(one or of_part for one in (base.shared or s.unshared))
        return Error(worst, variance, common, base.sources | part.sources, shared)

    def _spreads(self, s: Site) -> bool:
        """Whether one element is written to several places."""
        places = MOVES[s.attributes["step"]].value(s.y, **s.attributes["how"])
        return prod(places.shape) > prod(s.x[1].shape)

    def adjoint(self, s: Site, i: int, g: Any) -> Any:
        how, step = s.attributes["how"], s.attributes["step"]
        if i == 0:
            return self.value(g, s.xp.zeros_like(s.x[1]), **s.attributes)
        return to_shape(MOVES[step].value(g, **how), s.x[1].shape)

    def bits(self, s: Site) -> int:
        return max(one.bits for one in s.reads)


def _own(x: Any) -> Any:
    """A copy in the order of its axes, of which every shape is a view; a copy in the order of x has shapes of which
    only copies are, and a write to them would be lost.
    """
    made = array_namespace(x).empty(x.shape, dtype=x.dtype, device=device(x))
    made[...] = x
    return made


def put(made: Any, part: Any, step: str, how: Mapping[str, Any]) -> Any:
    """Writes to a view of an array; returns the array."""
    if step == "index":
        made[how["index"]] = part
    else:
        MOVES[step].value(made, **how)[...] = part
    return made


def from_places(s: Site, g: Any) -> Any:
    """g summed at the places that its elements came from: of any move."""
    xp, shape = s.xp, s.x[0].shape
    n = prod(shape)
    places = MOVES[s.node.op].value(xp.reshape(xp.arange(n, device=device(g)), shape), **s.attributes)
    made = xp.bincount(xp.reshape(places, (-1,)), weights=xp.reshape(g, (-1,)), minlength=n)
    return xp.reshape(made, shape)


def _index(x: Any, *, index: Any) -> Any:
    listed = index if isinstance(index, tuple) else (index,)
    places = listed[-1] if listed else None
    if isinstance(x, np.ndarray) and isinstance(places, np.ndarray) and places.dtype.kind in "iu":
        if all(isinstance(part, slice) and part == slice(None) for part in listed[:-1]):
            return x.take(places, axis=len(listed) - 1)  # as x[index], in a quarter of its time
    return x[index]


def _back_of_index(s: Site, g: Any) -> Any:
    index, x = s.attributes["index"], s.x[0]
    listed = index if isinstance(index, tuple) else (index,)
    if all(part is None or part is Ellipsis or isinstance(part, int | slice) for part in listed):
        made = s.xp.zeros_like(x, dtype=s.xp.float64)
        made[index] = g
        return made
    return from_places(s, g)


def _back_of_transpose(s: Site, g: Any) -> Any:
    axes = s.attributes["axes"]
    return s.xp.permute_dims(g, tuple(axes.index(i) for i in range(len(axes))))


def _namespaced(name: str) -> Callable[..., Any]:
    return lambda x, **attributes: getattr(array_namespace(x), name)(x, **attributes)


#: moves that put one element in several places
SPREADING = ("broadcast", "index", "repeat")

MOVES: Mapping[str, Any] = {
    "index": Move(_index, "{0}[...]", _back_of_index),
    "transpose": Move(lambda x, *, axes: array_namespace(x).permute_dims(x, axes), "{0} transposed",
                      _back_of_transpose),
    "reshape": Move(lambda x, *, shape: array_namespace(x).reshape(x, shape), "{0} reshaped",
                    lambda s, g: s.xp.reshape(g, s.x[0].shape)),
    "broadcast": Move(lambda x, *, shape: array_namespace(x).broadcast_to(x, shape), "{0} broadcast",
                      lambda s, g: to_shape(g, s.x[0].shape)),
    "named": Move(lambda x: x, "{0}", lambda s, g: g),
    "cast": Move(lambda x, *, dtype: x, "{0} as another float", lambda s, g: g),
    "as_float": Move(lambda x: array_namespace(x).astype(x, array_namespace(x).float64), "{0}", lambda s, g: g),
    "repeat": Move(lambda x, *, repeats, axis: array_namespace(x).repeat(x, repeats, axis=axis), "{0} repeated"),
    "flip": Move(lambda x, *, axis: array_namespace(x).flip(x, axis=axis), "{0} flipped",
                 lambda s, g: s.xp.flip(g, axis=s.attributes["axis"])),
    "roll": Move(lambda x, *, shift, axis: array_namespace(x).roll(x, shift, axis=axis), "{0} rolled"),
    "tril": Move(lambda x, *, k: array_namespace(x).tril(x, k=k), "lower triangle of {0}",
                 lambda s, g: s.xp.tril(g, k=s.attributes["k"])),
    "triu": Move(lambda x, *, k: array_namespace(x).triu(x, k=k), "upper triangle of {0}",
                 lambda s, g: s.xp.triu(g, k=s.attributes["k"])),
    "concat": Joined(_namespaced("concat"), "{0} and others, joined"),
    "write": Write(_index, "{0} with {1} written into it"),
}  # fmt: skip
