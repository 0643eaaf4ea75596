"""ATen's reads and writes at places: index, gather, scatter, sort, topk. Places are given, or computed in the run."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from workbench.reference.graph import functions
from workbench.reference.graph.arrays import Traced, held
from workbench.reference.graph.torch_elementwise import noting
from workbench.reference.graph.torch_moves import clone, unsqueeze

Places = Sequence[Traced | None]


def _computed(x: Traced | None) -> bool:
    """Whether a place follows from rounded values; of a mask the elements are a decision."""
    return x is not None and not x.fixed and x.dtype != bool


def index(x: Traced, indices: Places) -> Traced:
    """x[indices], of which None is all of an axis."""
    taken = sum(one.ndim if one is not None and _is_mask(one) else 1 for one in indices)
    listed = [*indices, *[None] * (x.ndim - taken)]
    if not any(_computed(one) for one in listed):
        return x[tuple(slice(None) if one is None else one for one in listed)]
    if any(_is_mask(one) for one in listed):
        x.run.refuse("no rule for an index by a mask beside computed places")
    at = [axis for axis, one in enumerate(listed) if one is not None]
    ahead = functions.moveaxis(x, tuple(at), tuple(range(len(at))))
    rest = ahead.shape[len(at) :]
    flat = functions.reshape(ahead, (prod(ahead.shape[: len(at)]), *rest))
    place: Any = 0
    for axis, one in zip(at, (one for one in listed if one is not None), strict=True):
        n = x.shape[axis]
        place = place * n + functions.where(one < 0, one + n, one)
    made = flat[place]
    if at != list(range(at[0], at[0] + len(at))):
        return made
    return functions.moveaxis(made, tuple(range(place.ndim)), tuple(range(at[0], at[0] + place.ndim)))


def _is_mask(x: Traced | None) -> bool:
    return x is not None and x.dtype in (bool, np.uint8)


def within(places: Traced, n: int) -> Traced:
    """Places from 0 to n - 1; torch's error for others, of which NumPy counts the negative ones from behind."""
    if places.size:
        known = places.known
        if not (0 <= int(known.min()) and int(known.max()) < n):
            raise IndexError(f"index out of range: places reach from {known.min()} to {known.max()} of {n}")
    return places


def index_select(x: Traced, dim: int, places: Traced) -> Traced:
    """Of one axis."""
    at = normalize_axis_index(dim, x.ndim)
    return index(x, [*[None] * at, within(places, x.shape[at])])


def gather(x: Traced, dim: int, places: Traced, **_: Any) -> Traced:
    """out[i][j] = x[places[i][j]][j], and so on."""
    at = normalize_axis_index(dim, x.ndim)
    places = within(places, x.shape[at])
    part = tuple(slice(None) if a == at else slice(n) for a, n in enumerate(places.shape))
    inner = x if all(a == at or n == x.shape[a] for a, n in enumerate(places.shape)) else x[part]
    return functions.take_along_axis(inner, places, at)


def index_put(x: Traced, indices: Places, values: Traced, accumulate: bool = False, *_: Any) -> Traced:
    """A copy of x, with values at places; accumulate: added to what is there, as often as a place is named."""
    return put_at(clone(x), indices, values, accumulate)


def put_at(x: Traced, indices: Places, values: Traced, accumulate: bool = False) -> Traced:
    """The same, written into x."""
    listed = [*indices]
    if any(_computed(one) for one in listed):
        if any(_is_mask(one) for one in listed):
            x.run.refuse("no rule for a write by a mask beside computed places")
        at = [axis for axis, one in enumerate(listed) if one is not None]
        if at != list(range(at[0], at[0] + len(at))):
            x.run.refuse("no rule for a write at computed places of axes that are not neighbours; use scatter")
        return x.replace(_put_at_computed(x, listed, at, values, accumulate))
    mask = listed[0] if listed and _is_mask(listed[0]) else None
    if mask is not None and len(listed) == 1 and values.size == 1 and not accumulate:
        wide = functions.reshape(mask, mask.shape + (1,) * (x.ndim - mask.ndim))
        return x.replace(functions.where(wide, functions.reshape(values, (1,) * x.ndim), x))
    at_all = tuple(slice(None) if one is None else one._taken("an index") for one in listed)
    if not accumulate:
        x[at_all] = values
        return x
    flat = np.arange(x.size).reshape(x.shape)[at_all]
    wide = functions.broadcast_to(values, flat.shape)
    return x.replace(_summed_at(x, flat.reshape(-1), functions.reshape(wide, (-1,))))


def _put_at_computed(x: Traced, listed: list[Any], at: list[int], values: Traced, accumulate: bool) -> Traced:
    """The same, at places of neighbouring axes, which become one."""
    inner, place = tuple(x.shape[axis] for axis in at), listed[at[0]]
    for axis in at:
        n, one = x.shape[axis], listed[axis]
        one = functions.where(one < 0, one + n, one)
        place = one if axis == at[0] else place * n + one
    before, behind = x.shape[: at[0]], x.shape[at[-1] + 1 :]
    wide = functions.broadcast_to(values, before + place.shape + behind)
    wide = functions.reshape(wide, (*before, place.size, *behind))
    lined = _lined(functions.reshape(place, (-1,)), at[0], wide.shape)
    flat = functions.reshape(x, (*before, prod(inner), *behind))
    return functions.reshape(_at_computed(flat, at[0], lined, wide, accumulate), x.shape)


def _lined(places: Traced, at: int, shape: tuple[int, ...]) -> Traced:
    """Places of one axis, for each element."""
    lined = functions.reshape(places, (1,) * at + places.shape + (1,) * (len(shape) - at - 1))
    return functions.broadcast_to(lined, shape)


def _summed_at(x: Traced, to: np.ndarray, source: Traced) -> Traced:
    """x with source[i] added at to[i]: for each place one sum of all that goes there, in any order."""
    order = np.argsort(to, kind="stable")
    found, first, counts = np.unique(to[order], return_index=True, return_counts=True)
    if not found.size:
        return x.copy()
    table = np.full((found.size, counts.max()), source.size)
    table[np.repeat(np.arange(found.size), counts), np.arange(to.size) - np.repeat(first, counts)] = order
    if counts.max() > 1:
        kind = source.value.dtype
        terms = functions.joined([source, held(x.run, np.zeros(1, kind), source.dtype)])[table].sum(-1)
    else:
        terms = source[table[:, 0]]
    flat = functions.reshape(x, (-1,)).copy()
    flat[found] = flat[found] + terms
    return functions.reshape(flat, x.shape)


def _at_computed(x: Traced, at: int, places: Traced, source: Traced, accumulate: bool) -> Traced:
    """By comparison of each place with all there are: what goes where is as open as the place is."""
    if any(a != at and n != places.shape[a] for a, n in enumerate(x.shape)):
        x.run.refuse("no rule for a scatter at computed places that leaves out a part of another axis")
    n = x.shape[at]
    there = np.arange(n).reshape((n, 1) + (1,) * (x.ndim - at - 1))
    here = unsqueeze(functions.where(places < 0, places + n, places), at) == there  # ..., n, places, ...
    if accumulate:
        return x + functions.where(here, unsqueeze(source, at), 0.0).sum(at + 1)
    made = x
    for k in range(places.shape[at]):
        part = (slice(None),) * (at + 1) + (k,)
        each = (slice(None),) * at + (slice(k, k + 1),)
        made = functions.where(here[part], source[each], made)
    return made


def scatter(x: Traced, dim: int, places: Traced, src: Any = None, *, value: Any = None, reduce: Any = None) -> Traced:
    """A copy of x, with src (an array or a number) at places along an axis."""
    if reduce not in (None, "add"):
        x.run.refuse(f"no rule for scatter with reduce={reduce!r}")
    return _scattered(x, dim, places, value if src is None else src, reduce == "add")


def scatter_reduce(x: Traced, dim: int, places: Traced, src: Traced, reduce: str, *, include_self: bool = True) -> Any:
    """Sums alone have a rule."""
    if reduce != "sum" or not include_self:
        x.run.refuse(f"no rule for scatter_reduce with {reduce!r}, include_self={include_self}")
    return _scattered(x, dim, places, src, True)


def _scattered(x: Traced, dim: int, places: Traced, src: Any, add: bool) -> Traced:
    at = normalize_axis_index(dim, x.ndim)
    places = within(places, x.shape[at])
    if not isinstance(src, Traced):
        src = held(x.run, np.full(places.shape, src), x.dtype)
    if not src.ndim:
        src = functions.broadcast_to(src, places.shape)
    if src.shape != places.shape:
        src = src[tuple(slice(n) for n in places.shape)]
    if _computed(places):
        return noting(_at_computed(x, at, places, src, add), x.dtype)
    grid = list(np.ogrid[tuple(slice(n) for n in places.shape)])
    grid[at] = places.value
    if add:
        to = np.arange(x.size).reshape(x.shape)[tuple(grid)]
        return noting(_summed_at(x, to.reshape(-1), functions.reshape(src, (-1,))), x.dtype)
    made = clone(x)
    made[tuple(grid)] = src
    return made


def index_add(x: Traced, dim: int, places: Traced, source: Traced, *, alpha: Any = 1) -> Traced:
    """x with the rows of source added at places of one axis."""
    at = normalize_axis_index(dim, x.ndim)
    source = source if alpha == 1 else source * alpha
    return _scattered(x, at, _lined(places, at, source.shape), source, True)


def index_copy(x: Traced, dim: int, places: Traced, source: Traced) -> Traced:
    """x with the rows of source in the place of others."""
    at = normalize_axis_index(dim, x.ndim)
    return _scattered(x, at, _lined(places, at, source.shape), source, False)


def index_fill(x: Traced, dim: int, places: Traced, value: Any) -> Traced:
    """x with one number in some rows."""
    at = normalize_axis_index(dim, x.ndim)
    shape = (*x.shape[:at], places.size, *x.shape[at + 1 :])
    return _scattered(x, at, _lined(functions.reshape(places, (-1,)), at, shape), value, False)


def argsort(x: Traced, dim: int = -1, descending: bool = False, *_: Any, **__: Any) -> Traced:
    """Places in order; of equal ones the first first."""
    return functions.argsort(-x if descending else x, dim)


def sort(x: Traced, dim: int = -1, descending: bool = False, **_: Any) -> tuple[Traced, Traced]:
    """Values and places."""
    places = argsort(x, dim, descending)
    return functions.take_along_axis(x, places, dim), places


def sort_stable(x: Traced, stable: Any = None, dim: int = -1, descending: bool = False) -> tuple[Traced, Traced]:
    """The same, as `aten::sort.stable` has its arguments."""
    return sort(x, dim, descending)


def topk(x: Traced, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Traced, Traced]:
    """The first k of the order."""
    at = normalize_axis_index(dim, x.ndim)
    places = argsort(x, at, largest)[(slice(None),) * at + (slice(k),)]
    return functions.take_along_axis(x, places, at), places


def nonzero(x: Traced) -> Traced:
    """Where x is not 0: a decision."""
    return held(x.run, np.argwhere(x._taken("nonzero")), np.int64)


PLACES: Mapping[str, Callable[..., Any]] = {
    "index": index, "index_select": index_select, "gather": gather, "index_put": index_put, "scatter": scatter,
    "scatter_add": lambda x, dim, places, src: _scattered(x, dim, places, src, True),
    "scatter_reduce": scatter_reduce, "index_add": index_add, "index_copy": index_copy, "index_fill": index_fill,
    "argsort": argsort, "sort": sort, "topk": topk, "nonzero": nonzero,
    "masked_select": lambda x, mask: index(x, [functions.broadcast_to(mask, x.shape)]),
    "embedding": lambda weight, places, *_: index_select(weight, 0, places),
    "take_along_dim": lambda x, places, dim=None: functions.take_along_axis(x, places, dim),
}  # fmt: skip
