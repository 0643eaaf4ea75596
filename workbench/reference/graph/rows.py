"""Values of several runs of a graph at once, one behind the other along a first axis of their own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import device

from workbench.floats import array_namespace
from workbench.reference.graph.rules import RULES
from workbench.reference.graph.rules.moves import put

#: primitives that go along an axis, or several, of their operands
_ALONG = frozenset("sum max min share cumsum argmax argmin argsort sort flip roll repeat concat gather".split())
#: of these, what takes several operands of one shape
_SEVERAL = frozenset(("concat", "gather"))


@dataclass(frozen=True, eq=False)
class Rows:
    """A node's values: (runs, *shape), or the shape alone where all runs have the same."""

    value: Any
    several: bool

    @property
    def first(self) -> Any:
        """That of the first run."""
        return self.value[0] if self.several else self.value


def made(op: str, attributes: Mapping[str, Any], x: Sequence[Rows], rows: int, in_place: bool = False) -> Rows:
    """What a primitive makes of them. in_place: whether it may write to what it reads first."""
    if not any(one.several for one in x):
        if in_place:
            return Rows(put(x[0].value, x[1].value, **attributes), False)
        return Rows(RULES[op].value(*(one.value for one in x), **attributes), False)
    if op == "lose":  # what it reads second is a size alone
        return Rows(x[0].value + 0.0, x[0].several)
    if op == "write":
        return Rows(_written(attributes, x[0], x[1], rows, in_place), True)
    return Rows(_made(op, attributes, x, rows), True)


def _made(op: str, attributes: Mapping[str, Any], x: Sequence[Rows], rows: int) -> Any:
    rule, how = RULES[op], dict(attributes)
    if op in _ALONG:
        ndim = x[0].value.ndim - x[0].several
        how["axis"] = _behind(how["axis"], ndim)
        return rule.value(*(_repeated(one, rows) if op in _SEVERAL else one.value for one in x), **how)
    if op == "index" and _is_one_array(how["index"]):
        return rule.value(x[0].value, index=_at(how["index"]))
    if op == "index" and not _is_plain(how["index"]):
        xp = array_namespace(x[0].value)
        return xp.stack([rule.value(x[0].value[k], **how) for k in range(rows)])
    if op in ("index", "transpose", "reshape", "broadcast"):
        value = x[0].value
        if op == "index":
            return value[_at(how["index"])]
        if op == "transpose":
            return rule.value(value, axes=(0, *(a + 1 for a in _positive(how["axes"], value.ndim - 1))))
        shape = (rows, *how["shape"])
        return rule.value(value if op == "reshape" else _aligned(x[0], len(shape) - 1), shape=shape)
    ndim = max(one.value.ndim - one.several for one in x)
    return rule.value(*(_aligned(one, ndim) for one in x), **how)


def _written(attributes: Mapping[str, Any], base: Rows, part: Rows, rows: int, in_place: bool) -> Any:
    """Copies of the first operand, or itself, in which a view holds the second."""
    xp, step, how = array_namespace(base.value), attributes["step"], attributes["how"]
    value = base.value
    if not (in_place and base.several):
        value = xp.empty((rows, *(base.value.shape[1:] if base.several else base.value.shape)), dtype=base.value.dtype,
                         device=device(base.value))  # fmt: skip
        value[...] = base.value
    if step == "index" and _is_plain(how["index"]):
        there = value[_at(how["index"])]
        value[_at(how["index"])] = _aligned(part, there.ndim - 1)
    else:
        for k in range(rows):
            put(value[k, ...], part.value[k] if part.several else part.value, **attributes)
    return value


def _aligned(one: Rows, ndim: int) -> Any:
    """Values that broadcast with others of so many axes, behind that of the runs."""
    value = one.value
    lacking = ndim - (value.ndim - 1) if one.several else 0
    if lacking <= 0:
        return value
    return array_namespace(value).reshape(value, (value.shape[0], *(1,) * lacking, *value.shape[1:]))


def _repeated(one: Rows, rows: int) -> Any:
    if one.several:
        return one.value
    return array_namespace(one.value).broadcast_to(one.value, (rows, *one.value.shape))


def _positive(axes: Any, ndim: int) -> tuple[int, ...]:
    return tuple(a % ndim for a in axes)


def _behind(axis: Any, ndim: int) -> Any:
    """An axis, or several, counted with that of the runs."""
    if axis is None:
        return tuple(range(1, ndim + 1))
    return axis % ndim + 1 if isinstance(axis, int) else tuple(a + 1 for a in _positive(axis, ndim))


def _is_plain(index: Any) -> bool:
    listed = index if isinstance(index, tuple) else (index,)
    whole = (int, np.integer)
    return all(
        part is None
        or part is Ellipsis
        or isinstance(part, slice)
        or (isinstance(part, whole) and type(part) is not bool)
        for part in listed
    )


def _is_one_array(index: Any) -> bool:
    """Whether an index is one array and slices: what it takes stands where the array does, with more axes before it."""
    listed = index if isinstance(index, tuple) else (index,)
    arrays = [part for part in listed if getattr(part, "ndim", 0)]
    return len(arrays) == 1 and sum(isinstance(part, slice) for part in listed) == len(listed) - 1


def _at(index: Any) -> tuple[Any, ...]:
    return (slice(None), *(index if isinstance(index, tuple) else (index,)))
