"""NumPy's functions and methods of arrays, of primitives. What is not here is refused with its name and line."""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from workbench.reference.graph.arrays import BEHIND, METHODS, Traced, as_traced, held, of_ufunc, plain_index
from workbench.reference.graph.contractions import dot, einsum, inner, matmul, outer, tensordot, vdot
from workbench.reference.graph.recording import Recording

Axis = int | tuple[int, ...] | None


def _reduced(op: str) -> Callable[..., Traced]:
    """A reduction along axes: sum, max, min."""

    def reduce(
        x: Traced, axis: Axis = None, dtype: Any = None, out: Any = None, keepdims: bool = False, **more: Any
    ) -> Any:
        more = {name: value for name, value in more.items() if value is not np._NoValue}
        if more:
            x.run.refuse(f"no rule for np.{op} with {', '.join(more)}")
        function = {"sum": np.sum, "max": np.max, "min": np.min}[op]
        axes = tuple(range(x.ndim)) if axis is None else normalize_axis_tuple(axis, x.ndim)
        keepdims = keepdims is not np._NoValue and bool(keepdims)
        value = np.asarray(function(x.value, axis=axes, keepdims=keepdims))
        if x.fixed and x.whole:
            return held(x.run, value, value.dtype)
        if x.whole:  # of truths: how many there are
            x, value = x.astype(np.float64), value.astype(np.float64)
        made = x.made(op, {"axis": axes, "keepdims": keepdims}, value)
        made = made.astype(dtype) if dtype is not None else made
        return made if out is None else out.replace(made)

    return reduce


sum_, max_, min_ = _reduced("sum"), _reduced("max"), _reduced("min")


def mean(x: Traced, axis: Axis = None, dtype: Any = None, out: Any = None, keepdims: bool = False, **more: Any) -> Any:
    """The sum by the number of its terms."""
    axes = range(x.ndim) if axis is None else normalize_axis_tuple(axis, x.ndim)
    made = sum_(x, axis, dtype, None, keepdims, **more) / prod(x.shape[a] for a in axes)
    return made if out is None else out.replace(made)


def var(
    x: Traced,
    axis: Axis = None,
    dtype: Any = None,
    out: Any = None,
    ddof: int = 0,
    keepdims: bool = False,
    **more: Any,
) -> Any:
    """As NumPy: the mean of squares about the mean."""
    axes = range(x.ndim) if axis is None else normalize_axis_tuple(axis, x.ndim)
    about = x - mean(x, axis, keepdims=True)
    ddof = more.pop("correction", ddof)
    made = sum_(np.square(about), axis, dtype, None, keepdims, **more) / (prod(x.shape[a] for a in axes) - ddof)
    return made if out is None else out.replace(made)


def std(x: Traced, *args: Any, **more: Any) -> Any:
    """The root of that."""
    return np.sqrt(var(x, *args, **more))


def norm(x: Traced, ord: Any = None, axis: Axis = None, keepdims: bool = False) -> Traced:
    """The root of the sum of squares; other norms have no rule."""
    if ord not in (None, 2) or (ord == 2 and axis is None and x.ndim != 1):
        x.run.refuse(f"no rule for np.linalg.norm with ord={ord}")
    return np.sqrt(sum_(np.square(x), axis, keepdims=keepdims))


def cumsum(x: Traced, axis: int | None = None, dtype: Any = None, out: Any = None) -> Any:
    """Running sums."""
    x = x.reshape(-1) if axis is None else x
    axis = normalize_axis_index(-1 if axis is None else axis, x.ndim)
    value = np.cumsum(x.value, axis)
    made = held(x.run, value, value.dtype) if x.fixed and x.whole else x.made("cumsum", {"axis": axis}, value)
    made = made.astype(dtype) if dtype is not None else made
    return made if out is None else out.replace(made)


def truth(op: str) -> Callable[..., Traced]:
    """all and any, of comparisons."""

    def reduce(x: Traced, axis: Axis = None, out: Any = None, keepdims: bool = False, **_: Any) -> Traced:
        numbers = (x if x.dtype == bool else x != 0).astype(np.float64)
        return (min_ if op == "all" else max_)(numbers, axis, keepdims=keepdims) != 0

    return reduce


def _places(op: str) -> Callable[..., Traced]:
    """argmax and argmin."""

    def place(x: Traced, axis: int | None = None, out: Any = None, *, keepdims: bool = False) -> Traced:
        x, axis = (x.reshape(-1), 0) if axis is None else (x, normalize_axis_index(axis, x.ndim))
        keepdims = keepdims is not np._NoValue and bool(keepdims)
        value = np.asarray(getattr(np, op)(x.value, axis, keepdims=keepdims))
        return x.made(op, {"axis": axis, "keepdims": keepdims}, value, np.int64)

    return place


def argsort(x: Traced, axis: int = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> Traced:
    axis = normalize_axis_index(axis, x.ndim)
    return x.made("argsort", {"axis": axis}, np.argsort(x.value, axis, stable=True), np.int64)


def sort(x: Traced, axis: int = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> Traced:
    axis = normalize_axis_index(axis, x.ndim)
    return x.made("sort", {"axis": axis}, np.sort(x.value, axis))


def partition(x: Traced, kth: Any, axis: int = -1, kind: str = "introselect", order: Any = None) -> Traced:
    """In full order, which is one of those that NumPy may give."""
    return sort(x, axis)


def argpartition(x: Traced, kth: Any, axis: int = -1, kind: str = "introselect", order: Any = None) -> Traced:
    return argsort(x, axis)


def take_along_axis(x: Traced, places: Any, axis: int = -1) -> Traced:
    run = x.run if isinstance(x, Traced) else places.run
    x, places, axis = as_traced(run, x), as_traced(run, places), normalize_axis_index(axis, np.ndim(places))
    value = np.take_along_axis(x.value, places.value, axis)
    reads = (x.node_of_run, places.node_of_run)
    return Traced(
        run, value, run.add("gather", reads, {"axis": axis}, value, x.dtype), x.dtype, x.fixed and places.fixed
    )


def gathered(x: Traced, index: Any) -> Traced | None:
    """x at computed places: x[places], and x[np.arange(n), places] of two axes; None where the index is another."""
    parts = index if isinstance(index, tuple) else (index,)
    free = [isinstance(part, Traced) and not part.fixed and part.dtype != bool for part in parts]
    if not any(free):
        return None
    if free == [True] and x.ndim:
        places = parts[0]
        if not places.ndim:
            return take_along_axis(x, np.broadcast_to(places, (1, *x.shape[1:])), 0)[0]
        flat = places.reshape((-1,) + (1,) * (x.ndim - 1))
        made = take_along_axis(x, np.broadcast_to(flat, (places.size, *x.shape[1:])), 0)
        return made.reshape(places.shape + x.shape[1:])
    if free == [False, True] and x.ndim == 2 and parts[1].ndim == 1:
        rows = plain_index(x.run, parts[0])
        if isinstance(rows, np.ndarray) and rows.shape == parts[1].shape:
            return take_along_axis(x[rows], parts[1][:, None], 1)[:, 0]
    return x.run.refuse("no rule for this index by computed places; use np.take_along_axis")


def where(condition: Any, a: Any = None, b: Any = None) -> Any:
    run = next(one.run for one in (condition, a, b) if isinstance(one, Traced))
    if a is None or b is None:
        return np.where(condition._taken("where")) if isinstance(condition, Traced) else np.where(condition)
    x = [as_traced(run, one) for one in (condition, a, b)]
    if all(one.fixed for one in x) and all(one.whole for one in x):
        value = np.where(*(one.value for one in x))
        return held(run, value, value.dtype)
    value = np.asarray(np.where(x[0].value != 0, x[1].value, x[2].value))
    types = [one.dtype for one, raw in zip(x[1:], (a, b), strict=True) if type(raw) not in (int, float)]
    dtype = np.result_type(*(types or [x[1].dtype]))
    return Traced(run, value, run.add("where", tuple(one.node_of_run for one in x), {}, value, dtype), dtype,
                  all(one.fixed for one in x))  # fmt: skip


def clip(
    x: Traced, a_min: Any = None, a_max: Any = None, out: Any = None, *, min: Any = None, max: Any = None, **_: Any
) -> Any:
    low, high = (two if one is None or one is np._NoValue else one for one, two in ((a_min, min), (a_max, max)))
    low, high = (None if one is np._NoValue else one for one in (low, high))
    made = x if low is None else np.maximum(x, low)
    made = made if high is None else np.minimum(made, high)
    return made if out is None else out.replace(made)


def rounded(x: Traced, decimals: int = 0, out: Any = None) -> Any:
    made = np.rint(x) if not decimals else np.rint(x * 10.0**decimals) / 10.0**decimals
    return made if out is None else out.replace(made)


def nan_to_num(x: Traced, copy: bool = True, nan: float = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    large = np.finfo(x.dtype).max if posinf is None or neginf is None else 0.0
    made = np.where(np.isnan(x), nan, x)
    made = np.where(made == np.inf, large if posinf is None else posinf, made)
    made = np.where(made == -np.inf, -large if neginf is None else neginf, made)
    return made if copy else x.replace(made)


# moves


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


def _axis_moved(op: str) -> Callable[..., Traced]:
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


def _triangle(op: str) -> Callable[..., Traced]:
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


def _stacked(name: str) -> Callable[..., Traced]:
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


METHODS.update({
    "sum": sum_, "max": max_, "min": min_, "mean": mean, "var": var, "std": std, "cumsum": cumsum, "all": truth("all"),
    "any": truth("any"), "argmax": _places("argmax"), "argmin": _places("argmin"), "argsort": argsort,
    "reshape": reshape,
    "transpose": transpose, "swapaxes": swapaxes, "squeeze": squeeze, "ravel": ravel, "flatten": flatten,
    "repeat": _axis_moved("repeat"), "take": take, "diagonal": diagonal, "clip": clip, "round": rounded, "dot": dot,
})  # fmt: skip

FUNCTIONS: Mapping[Any, Callable[..., Any]] = {
    np.sum: sum_, np.max: max_, np.amax: max_, np.min: min_, np.amin: min_, np.mean: mean,
    np.var: var,
    np.std: std, np.cumsum: cumsum, np.all: truth("all"), np.any: truth("any"), np.argmax: METHODS["argmax"],
    np.argmin: METHODS["argmin"], np.argsort: argsort, np.sort: sort, np.partition: partition,
    np.argpartition: argpartition, np.take_along_axis: take_along_axis, np.where: where, np.clip: clip,
    np.round: rounded, np.around: rounded, np.nan_to_num: nan_to_num, np.linalg.norm: norm, np.reshape: reshape,
    np.transpose: transpose, np.permute_dims: transpose, np.swapaxes: swapaxes, np.matrix_transpose: lambda x: x.mT,
    np.moveaxis: moveaxis, np.expand_dims: expand_dims, np.squeeze: squeeze, np.ravel: ravel,
    np.broadcast_to: broadcast_to, np.broadcast_arrays: broadcast_arrays, np.repeat: METHODS["repeat"], np.tile: tile,
    np.flip: _axis_moved("flip"), np.roll: _axis_moved("roll"), np.tril: _triangle("tril"), np.triu: _triangle("triu"),
    np.concatenate: joined, np.stack: stack, np.vstack: _stacked("vstack"), np.hstack: _stacked("hstack"),
    np.split: split, np.array_split: array_split, np.take: take, np.diagonal: diagonal, np.diff: diff, np.pad: pad,
    np.zeros_like: like(0.0), np.ones_like: like(1.0), np.empty_like: like(0.0), np.full_like: like(None),
    np.put_along_axis: put_along_axis, np.copy: lambda x, **_: x.copy(), np.einsum: einsum, np.dot: dot,
    np.inner: inner, np.outer: outer, np.vdot: vdot, np.tensordot: tensordot, np.shape: lambda x: x.shape,
    np.ndim: lambda x: x.ndim, np.size: lambda x, axis=None: x.size if axis is None else x.shape[axis],
    np.iscomplexobj: lambda x: False, np.isrealobj: lambda x: True,
    np.trace: lambda x, *a, **k: diagonal(x, *a, **k).sum(-1),
    np.result_type: lambda *x: np.result_type(*(one.dtype if isinstance(one, Traced) else one for one in x)),
    np.copyto: lambda out, x: out.replace(as_traced(out.run, x)), np.average: lambda x, axis=None: mean(x, axis),
    np.atleast_1d: lambda x: x if x.ndim else x.reshape(1),
}  # fmt: skip


def of_function(run: Recording, function: Any, args: Any, kwargs: Any) -> Any:
    """What a function of NumPy makes; Refusal without a rule for it."""
    made = FUNCTIONS.get(function)
    if made is None:
        run.refuse(f"no rule for {getattr(function, '__module__', 'np')}.{function.__name__}")
    with np.errstate(all="ignore"):
        return made(*args, **kwargs)


BEHIND.update(
    {"gathered": gathered, "of_function": of_function, "matmul": matmul, "array": array, "of_ufunc": of_ufunc}
)
