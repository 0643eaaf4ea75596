"""NumPy's functions that move elements of arrays, or put arrays together."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from workbench.reference.graph.arrays import Traced, as_traced, held, plain_index
from workbench.reference.graph.recording import Recording


def reshape(x: Traced, *shape: Any, order: str = "C", copy: bool | None = None) -> Traced:
    wanted = shape[0] if len(shape) == 1 and not isinstance(shape[0], int | np.integer | Traced) else shape
    if order != "C":
        x.run.refuse(f"no rule for reshape with order={order!r}")
    value = x.value.reshape(tuple(int(n) for n in wanted))
    return x if value.shape == x.shape else x.made("reshape", {"shape": value.shape}, value)


def transpose(x: Traced, *axes: Any) -> Traced:
    listed = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
    order = tuple(range(x.ndim))[::-1] if not listed else tuple(normalize_axis_index(a, x.ndim) for a in listed)
    return x.made("transpose", {"axes": order}, x.value.transpose(order))


def swapaxes(x: Traced, a: int, b: int) -> Traced:
    return moveaxis(x, (a, b), (b, a))


def moveaxis(x: Traced, source: Any, destination: Any) -> Traced:
    places = np.moveaxis(np.empty((1,) * x.ndim, bool), source, destination)  # refuses what is no axis
    from_, to = (normalize_axis_tuple(axis, x.ndim) for axis in (source, destination))
    order = [a for a in range(places.ndim) if a not in from_]
    for where_, a in sorted(zip(to, from_, strict=True)):
        order.insert(where_, a)
    return transpose(x, tuple(order))


def expand_dims(x: Traced, axis: Any) -> Traced:
    return reshape(x, np.expand_dims(x.value, axis).shape)


def squeeze(x: Traced, axis: Any = None) -> Traced:
    return reshape(x, np.squeeze(x.value, axis).shape)


def ravel(x: Traced, order: str = "C") -> Traced:
    return reshape(x, (-1,), order=order)


def flatten(x: Traced, order: str = "C") -> Traced:
    return ravel(x, order).copy()


def broadcast_to(x: Any, shape: Any, subok: bool = False) -> Traced:
    shape = (shape,) if isinstance(shape, int) else tuple(int(n) for n in shape)
    return x.made("broadcast", {"shape": shape}, np.broadcast_to(x.value, shape))


def broadcast_arrays(*x: Any, subok: bool = False) -> tuple[Traced, ...]:
    run = _run_of(x)
    made = [as_traced(run, one) for one in x]
    shape = np.broadcast_shapes(*(one.shape for one in made))
    return tuple(broadcast_to(one, shape) for one in made)


def axis_moved(op: str) -> Callable[..., Traced]:
    def move(x: Traced, *args: Any, **more: Any) -> Traced:
        value = getattr(np, op)(x.value, *args, **more)
        names = {"flip": ("axis",), "roll": ("shift", "axis"), "repeat": ("repeats", "axis")}[op]
        how = dict.fromkeys(names, None) | dict(zip(names, args, strict=False)) | more
        if op == "flip" and how["axis"] is None:
            how["axis"] = tuple(range(x.ndim))
        if op in ("repeat", "roll") and how["axis"] is None:
            return move(ravel(x), args[0], axis=0).reshape(value.shape)
        return x.made(op, how, value)

    return move


def triangle(op: str) -> Callable[..., Traced]:
    return lambda x, k=0: x.made(op, {"k": k}, getattr(np, op)(x.value, k))


def joined(x: Any, axis: int | None = 0, out: Any = None, dtype: Any = None, **_: Any) -> Traced:
    run = _run_of(x)
    parts = [as_traced(run, one) for one in x]
    if axis is None:
        parts, axis = [ravel(one) for one in parts], 0
    parts = [one.astype(np.float64) if one.whole and not all(p.whole for p in parts) else one for one in parts]
    value = np.concatenate([one.value for one in parts], axis)
    dtype = np.result_type(*(one.dtype for one in parts))
    if all(one.fixed and one.whole for one in parts):
        return held(run, value, dtype)
    node = run.add("concat", tuple(one.node_of_run for one in parts), {"axis": axis}, value, dtype)
    return Traced(run, value, node, dtype, all(one.fixed for one in parts))


def stack(x: Any, axis: int = 0, out: Any = None, **_: Any) -> Traced:
    run, x = _run_of(x), list(x)
    return joined([expand_dims(as_traced(run, one), axis) for one in x], axis)


def stacked(name: str) -> Callable[..., Traced]:
    def made(x: Any, **_: Any) -> Traced:
        run, x = _run_of(x), list(x)
        parts = [as_traced(run, one) for one in x]
        if name == "vstack":
            parts = [one if one.ndim > 1 else one.reshape(1, -1) for one in parts]
        return joined(parts, 0 if name == "vstack" or parts[0].ndim == 1 else 1)

    return made


def split(x: Traced, parts: Any, axis: int = 0) -> list[Traced]:
    places = np.split(np.arange(x.shape[axis]), parts)
    lead = (slice(None),) * normalize_axis_index(axis, x.ndim)
    return [x[(*lead, slice(part[0], part[-1] + 1) if part.size else slice(0, 0))] for part in places]


def array_split(x: Traced, parts: Any, axis: int = 0) -> list[Traced]:
    sizes = [len(part) for part in np.array_split(np.arange(x.shape[axis]), parts)]
    return split(x, np.cumsum(sizes)[:-1], axis)


def tile(x: Traced, reps: Any) -> Traced:
    reps = (reps,) if isinstance(reps, int) else tuple(reps)
    for axis, n in enumerate((1,) * (x.ndim - len(reps)) + reps):
        x = reshape(x, (1,) * (len(reps) - x.ndim) + x.shape) if len(reps) > x.ndim else x
        x = joined([x] * n, axis) if n != 1 else x
    return x


def take(x: Traced, places: Any, axis: int | None = None, out: Any = None, mode: str = "raise") -> Traced:
    x, axis = (ravel(x), 0) if axis is None else (x, normalize_axis_index(axis, x.ndim))
    if isinstance(places, Traced) and not places.fixed and axis == 0:
        return x[places]
    return x[(slice(None),) * axis + (plain_index(x.run, places),)]


def diagonal(x: Traced, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Traced:
    last = moveaxis(x, (axis1, axis2), (-2, -1))
    places = np.arange(np.diagonal(np.empty(last.shape[-2:]), offset).size)
    return last[..., places - min(offset, 0), places + max(offset, 0)]


def diff(x: Traced, n: int = 1, axis: int = -1) -> Traced:
    for _ in range(n):
        lead = (slice(None),) * normalize_axis_index(axis, x.ndim)
        x = x[(*lead, slice(1, None))] - x[(*lead, slice(None, -1))]
    return x


def pad(x: Traced, width: Any, mode: str = "constant", **more: Any) -> Traced:
    if mode != "constant":
        x.run.refuse(f"no rule for np.pad with mode={mode!r}")
    value = np.pad(np.zeros(x.shape), width, constant_values=more.get("constant_values", 0.0))
    made = held(x.run, value, x.dtype)
    places = np.pad(np.ones(x.shape, bool), width).nonzero()
    made[tuple(slice(int(p.min()), int(p.max()) + 1) for p in places)] = x
    return made


def like(fill: float | None) -> Callable[..., Traced]:
    def made(x: Traced, *args: Any, **more: Any) -> Traced:
        number = args[0] if fill is None else fill
        dtype = more.get("dtype") or (args[1:] if fill is None else args)[0:1] or x.dtype
        dtype = np.dtype(dtype[0] if isinstance(dtype, tuple) else dtype)
        shape = more.get("shape")
        value = np.full(x.shape if shape is None else shape, number)
        return held(x.run, value.astype(dtype) if dtype.kind in "biu" else value, dtype)

    return made


def put_along_axis(x: Traced, places: Any, values: Any, axis: int) -> None:
    places = plain_index(x.run, places)
    axis = normalize_axis_index(axis, x.ndim)
    grid = np.ogrid[tuple(slice(n) for n in places.shape)]
    x[tuple(places if a == axis else grid[a] for a in range(x.ndim))] = values


def array(run: Recording, x: Any, dtype: Any = None) -> Traced:
    """np.array and np.asarray of what a run has."""
    if isinstance(x, Traced):
        made = x.copy()
    elif isinstance(x, list | tuple) and _any_traced(x):
        made = stack([array(run, one) for one in x])
    else:
        plain = np.asarray(x)
        made = held(run, plain, plain.dtype)
    return made if dtype is None else made.astype(dtype)


def _any_traced(x: Any) -> bool:
    return isinstance(x, Traced) or (isinstance(x, list | tuple) and any(_any_traced(one) for one in x))


def _run_of(x: Any) -> Recording:
    return next(one for one in _flat(x) if isinstance(one, Traced)).run


def _flat(x: Any) -> list[Any]:
    return [y for one in x for y in _flat(one)] if isinstance(x, list | tuple) else [x]
