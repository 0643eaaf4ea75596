"""NumPy's functions and methods of arrays, of primitives. What is not here is refused with its name and line."""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from workbench.reference.graph.arrays import BEHIND, METHODS, Traced, as_traced, held, plain_index
from workbench.reference.graph.contractions import dot, einsum, inner, matmul, outer, tensordot, vdot
from workbench.reference.graph.patterns import ORDERS
from workbench.reference.graph.recording import Recording
from workbench.reference.graph.shaping import (
    array,
    array_split,
    axis_moved,
    broadcast_arrays,
    broadcast_to,
    diagonal,
    diff,
    expand_dims,
    flatten,
    joined,
    like,
    moveaxis,
    pad,
    put_along_axis,
    ravel,
    reshape,
    split,
    squeeze,
    stack,
    stacked,
    swapaxes,
    take,
    tile,
    transpose,
    triangle,
)

Axis = int | tuple[int, ...] | None


def _reduced(op: str) -> Callable[..., Traced]:
    """A reduction along axes: sum, max, min."""

    def reduce(
        x: Traced, axis: Axis = None, dtype: Any = None, out: Any = None, keepdims: bool = False, **more: Any
    ) -> Any:
        more = {name: value for name, value in more.items() if value is not np._NoValue}
        if more:
            x.run.refuse(f"no rule for np.{op} with {', '.join(more)}")
        function: Any = {"sum": np.sum, "max": np.max, "min": np.min}[op]
        axes = tuple(range(x.ndim)) if axis is None else normalize_axis_tuple(axis, x.ndim)
        keepdims = keepdims is not np._NoValue and bool(keepdims)
        value = np.asarray(function(x.value, axis=axes, keepdims=keepdims))
        if x.fixed and x.whole:
            return held(x.run, value, value.dtype)
        made = _counted(x, op, {"axis": axes, "keepdims": keepdims}, value)
        made = made.astype(dtype) if dtype is not None else made
        return made if out is None else out.replace(made)

    return reduce


def _counted(x: Traced, op: str, how: Mapping[str, Any], value: np.ndarray) -> Traced:
    """What a reduction makes; of whole numbers and truths, such as how many there are, in NumPy's dtype."""
    if not x.whole:
        return x.made(op, how, value)
    made: Any = np.rint(x.astype(np.float64).made(op, how, value.astype(np.float64)))  # no count is a part off
    return made.astype(value.dtype)


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
    *,
    correction: Any = np._NoValue,
    **more: Any,
) -> Any:
    """As NumPy: the mean of squares about the mean."""
    axes = range(x.ndim) if axis is None else normalize_axis_tuple(axis, x.ndim)
    about = x - mean(x, axis, keepdims=True)
    ddof = ddof if correction is np._NoValue else correction
    made = sum_(np.square(about), axis, dtype, None, keepdims, **more) / (prod(x.shape[a] for a in axes) - ddof)
    return made if out is None else out.replace(made)


def std(x: Traced, *args: Any, **more: Any) -> Any:
    """The root of that."""
    found: Any = np.sqrt(var(x, *args, **more))
    return found


def norm(x: Traced, ord: Any = None, axis: Axis = None, keepdims: bool = False) -> Traced:
    """The root of the sum of squares; other norms have no rule."""
    if ord not in (None, 2) or (ord == 2 and axis is None and x.ndim != 1):
        x.run.refuse(f"no rule for np.linalg.norm with ord={ord}")
    found: Any = np.sqrt(sum_(np.square(x), axis, keepdims=keepdims))
    return found


def cumsum(x: Traced, axis: int | None = None, dtype: Any = None, out: Any = None) -> Any:
    """Running sums."""
    x = x.reshape(-1) if axis is None else x
    axis = normalize_axis_index(-1 if axis is None else axis, x.ndim)
    value = np.cumsum(x.value, axis)
    made = held(x.run, value, value.dtype) if x.fixed and x.whole else _counted(x, "cumsum", {"axis": axis}, value)
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
    how = {"axis": axis, "own": _is_own_order(run, *reads, axis)}
    return Traced(run, value, run.add("gather", reads, how, value, x.dtype), x.dtype, x.fixed and places.fixed)


def _is_own_order(run: Recording, i: int, places: int, axis: int) -> bool:
    """Whether places along an axis of node i are those of its own order there, or some of them."""
    nodes, shape = run.nodes, run.nodes[places].shape
    while (node := nodes[places]).op in ("named", "cast", "index", "reshape"):
        index = node.attributes.get("index", ())
        for k, part in enumerate(index if isinstance(index, tuple) else (index,)):
            whole = part is None or part is Ellipsis or (isinstance(part, slice) and part == slice(None))
            if not whole and not (isinstance(part, slice) and k == axis):
                return False
        places = node.reads[0]
    if node.op not in ORDERS or node.attributes["axis"] % len(nodes[node.reads[0]].shape) != axis:
        return False
    kept = (*node.shape[:axis], 1, *node.shape[axis:])
    if len(node.shape) != len(shape) and kept != shape:
        return False
    same = []
    for j in (i, node.reads[0]):
        while nodes[j].op in ("named", "cast", "negative"):
            j = nodes[j].reads[0]
        same.append(j)
    return same[0] == same[1]


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
    made: Any = np.where(np.isnan(x), nan, x)
    made = np.where(made == np.inf, large if posinf is None else posinf, made)
    made = np.where(made == -np.inf, -large if neginf is None else neginf, made)
    return made if copy else x.replace(made)


METHODS.update({
    "sum": sum_, "max": max_, "min": min_, "mean": mean, "var": var, "std": std, "cumsum": cumsum, "all": truth("all"),
    "any": truth("any"), "argmax": _places("argmax"), "argmin": _places("argmin"), "argsort": argsort,
    "reshape": reshape,
    "transpose": transpose, "swapaxes": swapaxes, "squeeze": squeeze, "ravel": ravel, "flatten": flatten,
    "repeat": axis_moved("repeat"), "take": take, "diagonal": diagonal, "clip": clip, "round": rounded, "dot": dot,
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
    np.flip: axis_moved("flip"), np.roll: axis_moved("roll"), np.tril: triangle("tril"), np.triu: triangle("triu"),
    np.concatenate: joined, np.stack: stack, np.vstack: stacked("vstack"), np.hstack: stacked("hstack"),
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
    first = len(run.nodes)
    with np.errstate(all="ignore"):
        found = made(*args, **kwargs)
    several = found if isinstance(found, list | tuple) else [found]
    run.one_call(first, [one.node_of_run for one in several if isinstance(one, Traced)])
    return found


BEHIND.update({"gathered": gathered, "of_function": of_function, "matmul": matmul, "array": array})
