"""Arrays of a run whose values nobody computes: a shape, a dtype, and memory of their own that is never touched.

Where the values of a run are to be on another device, its trace needs shapes, and which array is a view of which. NumPy
has both without the numbers: what would compute them gives one more such array. Large memory that nobody touches takes
none of the machine's.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

Axis = int | tuple[int, ...] | None


class Blank(np.ndarray):
    """One of them. Its views are views of NumPy; its elements say nothing."""

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = (), **how: Any) -> Any:
        if out:
            return out[0]
        if method == "reduce":
            return _reduced(inputs[0], how.get("axis", 0), bool(how.get("keepdims")), _of_sum(ufunc, inputs[0].dtype))
        if method != "__call__":
            return _like(inputs[0])
        if ufunc is np.matmul:
            return _made(_of_product(*inputs), _dtype(ufunc, inputs))
        return _spread(inputs, _dtype(ufunc, inputs))

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        made = _MADE.get(function)
        return super().__array_function__(function, types, args, kwargs) if made is None else made(*args, **kwargs)

    def __setitem__(self, index: Any, x: Any) -> None:
        """Writes nothing; refuses what would not fit."""
        shape = self[index].shape
        if np.broadcast_shapes(shape, np.shape(x)) != shape:
            raise ValueError(f"could not broadcast input array from shape {np.shape(x)} into shape {shape}")

    def copy(self, order: Any = "C") -> "Blank":
        """Memory of its own."""
        return np.empty_like(self, order=order)

    def astype(self, dtype: Any, order: Any = "K", **_: Any) -> "Blank":  # type: ignore[override]
        """The same of another dtype."""
        return np.empty_like(self, dtype=dtype, order=order)


def blank(x: np.ndarray) -> Blank:
    """An array in whose values nobody may trust: a view of it."""
    return x.view(Blank)


def _made(shape: tuple[int, ...], dtype: Any) -> Blank:
    return np.empty(shape, dtype).view(Blank)


def _spread(x: Sequence[Any], dtype: Any) -> Blank:
    """Of the shape that they have together, in the order in memory that NumPy gives a result."""
    flags: Any = [["readonly"]] * len(x) + [["writeonly", "allocate"]]
    found = np.nditer([*x, None], ["zerosize_ok", "refs_ok"], flags, [None] * len(x) + [dtype], casting="unsafe")
    return found.operands[-1].view(Blank)


def _like(x: Any, dtype: Any = None) -> Blank:
    return np.empty_like(x, dtype=dtype).view(Blank)


def _dtype(ufunc: np.ufunc, inputs: tuple[Any, ...]) -> np.dtype:
    """That of the result; float64 of a function of Python's, of which NumPy knows none."""
    if ufunc.types == ["O" * ufunc.nin + "->" + "O" * ufunc.nout]:
        return np.dtype(np.float64)
    of = tuple(type(x) if type(x) in (int, float) else np.asarray(x).dtype for x in inputs)
    return ufunc.resolve_dtypes((*of, *(None,) * ufunc.nout))[-1]


def _of_product(a: Any, b: Any) -> tuple[int, ...]:
    """The shape of a @ b; NumPy's error where they do not fit."""
    np.matmul(np.empty((0, a.shape[-1])), np.empty((*b.shape[-2:-1], 0) if b.ndim > 1 else b.shape))
    rows, columns = a.shape[:-1][-1:], b.shape[-1:] if b.ndim > 1 else ()
    return (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *rows, *columns)


def _of_sum(ufunc: np.ufunc, dtype: np.dtype) -> np.dtype:
    """Of whole numbers and truths sums are in NumPy's widest."""
    if ufunc in (np.add, np.multiply) and dtype.kind in "biu":
        return np.dtype(np.uint64 if dtype.kind == "u" else np.int64)
    return np.dtype(bool) if ufunc in (np.logical_and, np.logical_or) else dtype


def _reduced(x: Any, axis: Axis, keepdims: bool, dtype: Any) -> Blank:
    axes = tuple(range(x.ndim)) if axis is None else normalize_axis_tuple(axis, x.ndim)
    kept = [1 if a in axes else n for a, n in enumerate(x.shape) if keepdims or a not in axes]
    if not x.size:
        return _made(tuple(kept), dtype)
    return _like(x[tuple((slice(1) if keepdims else 0) if a in axes else slice(None) for a in range(x.ndim))], dtype)


def _place(x: Any, axis: int | None = None, out: Any = None, *, keepdims: bool = False) -> Blank:
    return _reduced(x, axis, bool(keepdims), np.int64)


def _joined(x: Any, axis: int = 0, **_: Any) -> Blank:
    along = normalize_axis_index(axis, x[0].ndim)
    shapes = {one.shape[:along] + one.shape[along + 1 :] for one in x}
    if len(shapes) > 1:
        raise ValueError(f"all the input array dimensions except {axis} must match: {[one.shape for one in x]}")
    shape = list(x[0].shape)
    shape[along] = sum(one.shape[along] for one in x)
    return np.empty_like(x[0], shape=tuple(shape), dtype=np.result_type(*x)).view(Blank)


def _chosen(condition: Any, a: Any, b: Any) -> Blank:
    return _spread((condition, a, b), np.result_type(a, b))


def _at_places(x: Any, places: Any, axis: int = -1) -> Blank:
    along = normalize_axis_index(axis, x.ndim)
    rest = np.broadcast_shapes(*(one.shape[:along] + (1,) + one.shape[along + 1 :] for one in (x, places)))
    return _made((*rest[:along], places.shape[along], *rest[along + 1 :]), x.dtype)


def _repeated(x: Any, repeats: Any, axis: int | None = None) -> Blank:
    shape = list(x.shape) if axis is not None else [prod(x.shape)]
    along = 0 if axis is None else normalize_axis_index(axis, x.ndim)
    shape[along] = int(np.sum(np.broadcast_to(repeats, shape[along])))
    return _made(tuple(shape), x.dtype)


#: functions of NumPy that are no ufuncs, and would compute
_MADE: Mapping[Any, Callable[..., Any]] = {
    np.where: _chosen, np.concatenate: _joined, np.take_along_axis: _at_places, np.repeat: _repeated,
    np.argmax: _place, np.argmin: _place,
    np.argsort: lambda x, axis=-1, **_: _made(x.shape, np.int64), np.sort: lambda x, axis=-1, **_: _like(x),
    np.cumsum: lambda x, axis, **_: _like(x, _of_sum(np.add, x.dtype)),
}  # fmt: skip
