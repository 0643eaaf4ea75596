"""ATen's reductions and products, as plain code on arrays of a run."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from workbench.reference.graph import functions
from workbench.reference.graph.arrays import Traced, held
from workbench.reference.graph.contractions import matmul
from workbench.reference.graph.torch_elementwise import floating, noting, promoted
from workbench.reference.graph.torch_tensor import DTYPES

Dim = int | Sequence[int] | None


def axes(x: Traced, dim: Dim) -> int | tuple[int, ...] | None:
    """As NumPy says it: no dims, or none listed, are all."""
    if dim is None or isinstance(dim, int):
        return dim if x.ndim else None
    return tuple(dim) or None if x.ndim else None


def _noted(dtype: Any, otherwise: Any) -> np.dtype:
    return np.dtype(otherwise) if dtype is None else DTYPES[dtype]


def sum_(x: Traced, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> Traced:
    """Of whole numbers and truths int64."""
    made = functions.sum_(x, axes(x, dim), keepdims=keepdim)
    return noting(made, _noted(dtype, np.int64 if x.dtype.kind in "biu" else x.dtype))


def mean(x: Traced, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> Traced:
    """The sum by the number of its terms."""
    return noting(functions.mean(x, axes(x, dim), keepdims=keepdim), _noted(dtype, x.dtype))


def var(x: Traced, dim: Dim = None, *, correction: Any = None, keepdim: bool = False) -> Traced:
    """The mean of squares about the mean, over n - 1 unless another correction is said."""
    return noting(
        functions.var(x, axes(x, dim), ddof=1 if correction is None else correction, keepdims=keepdim), x.dtype
    )


def _extreme(name: str, place: str) -> Callable[..., Any]:
    """Overloads: the extreme of all; of two; along a dim, with its place."""

    def rule(x: Traced, dim: Any = None, keepdim: bool = False) -> Any:
        reduce: Any = getattr(functions, f"{name}_")
        if isinstance(dim, Traced):
            return noting({"max": np.maximum, "min": np.minimum}[name](x, dim), promoted(x, dim))
        if dim is None:
            return reduce(x)
        where = functions.METHODS[place](x, dim if x.ndim else None, keepdims=keepdim)
        return reduce(x, axes(x, dim), keepdims=keepdim), where

    return rule


def _place(name: str) -> Callable[..., Traced]:
    def rule(x: Traced, dim: int | None = None, keepdim: bool = False) -> Traced:
        made: Traced = functions.METHODS[name](x, dim if x.ndim else None, keepdims=keepdim)
        return made.reshape((1,) * x.ndim) if keepdim and dim is None else made

    return rule


def cumsum(x: Traced, dim: int, *, dtype: Any = None) -> Traced:
    """Running sums; of whole numbers and truths int64."""
    dtype = _noted(dtype, np.int64 if x.dtype.kind in "biu" else x.dtype)
    if x.whole and not x.fixed:
        x = x.astype(np.float64)
    return noting(functions.cumsum(x, dim) if x.ndim else x.copy(), dtype)


def cumprod(x: Traced, dim: int, *, dtype: Any = None) -> Traced:
    """One product after another, which have the relative error of any other order."""
    rows = list(functions.moveaxis(x, dim, 0)) if x.ndim else [x]
    made = rows[:1]
    for row in rows[1:]:
        made.append(made[-1] * row)
    stacked = functions.moveaxis(functions.stack(made), 0, dim) if x.ndim and made else x
    return noting(stacked.copy(), _noted(dtype, np.int64 if x.dtype.kind in "biu" else x.dtype))


def prod(x: Traced, dim: int | None = None, keepdim: bool = False, *, dtype: Any = None) -> Traced:
    """The last of them; of nothing 1."""
    flat = functions.reshape(x, (-1,)) if dim is None or not x.ndim else functions.moveaxis(x, dim, 0)
    made: Any = held(x.run, np.ones(flat.shape[1:], x.value.dtype), x.dtype) if not len(flat) else flat[0].copy()
    for row in list(flat)[1:]:
        made = made * row
    made = functions.expand_dims(made, dim) if keepdim and dim is not None and x.ndim else made
    return noting(made.copy(), _noted(dtype, np.int64 if x.dtype.kind in "biu" else x.dtype))


def _truth(name: str) -> Callable[..., Traced]:
    def rule(x: Traced, dim: Dim = None, keepdim: bool = False) -> Traced:
        return functions.METHODS[name](x, axes(x, dim), keepdims=keepdim)

    return rule


def top(x: Traced, dim: Any, largest: bool = True) -> Traced:
    """The largest along dims, which are kept; 0 where it is infinite, as exp(x - max) wants it."""
    made = functions.max_(x, axes(x, dim), keepdims=True)
    return made if np.isfinite(made.known).all() else functions.where(np.isinf(made), 0.0, made)


def logsumexp(x: Traced, dim: Dim, keepdim: bool = False) -> Traced:
    """log of the sum of exp, from the largest on; -inf where all are."""
    largest = top(x, dim)
    made = np.log(functions.sum_(np.exp(x - largest), axes(x, dim), keepdims=True)) + largest
    if not keepdim:
        made = made.reshape(functions.max_(x, axes(x, dim)).shape)
    return noting(made, floating(x.dtype))


def vector_norm(x: Traced, ord: Any = 2, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> Traced:
    """Of order 1, 2 or infinity."""
    axis, noted = axes(x, dim), _noted(dtype, x.dtype)
    if ord == 2:
        return noting(np.sqrt(functions.sum_(np.square(x), axis, keepdims=keepdim)), noted)
    if ord in (1, float("inf")):
        reduce = functions.sum_ if ord == 1 else functions.max_
        return noting(reduce(np.abs(x), axis, keepdims=keepdim), noted)
    x.run.refuse(f"no rule for a norm of order {ord}")


def _norm(x: Traced, p: Any = 2, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> Traced:
    return vector_norm(x, 2 if p is None else p, dim, keepdim, dtype=dtype)


def product(a: Traced, b: Traced, dtype: Any = None) -> Traced:
    """A product of matrices or vectors."""
    return noting(matmul(a, b), _noted(dtype, promoted(a, b)))


def _added(bias: Traced, a: Traced, b: Traced, dtype: Any = None, *, beta: Any = 1, alpha: Any = 1) -> Traced:
    """alpha a @ b + beta bias."""
    made = product(a, b, dtype)
    made = made if alpha == 1 else made * alpha
    return noting(made + (bias if beta == 1 else bias * beta), _noted(dtype, promoted(bias, a, b)))


SUMS: Mapping[str, Callable[..., Any]] = {
    "sum": sum_, "mean": mean, "var": var, "cumsum": cumsum, "cumprod": cumprod, "prod": prod, "logsumexp": logsumexp,
    "std": lambda x, dim=None, **more: noting(np.sqrt(var(x, dim, **more)), x.dtype),
    "var_mean": lambda x, dim=None, *, keepdim=False, **more: (var(x, dim, keepdim=keepdim, **more),
                                                              mean(x, dim, keepdim)),
    "amax": lambda x, dim=(), keepdim=False: functions.max_(x, axes(x, dim), keepdims=keepdim),
    "amin": lambda x, dim=(), keepdim=False: functions.min_(x, axes(x, dim), keepdims=keepdim),
    "aminmax": lambda x, *, dim=None, keepdim=False: (functions.min_(x, axes(x, dim), keepdims=keepdim),
                                                      functions.max_(x, axes(x, dim), keepdims=keepdim)),
    "max": _extreme("max", "argmax"), "min": _extreme("min", "argmin"),
    "argmax": _place("argmax"), "argmin": _place("argmin"), "all": _truth("all"), "any": _truth("any"),
    "linalg_vector_norm": vector_norm, "norm": _norm,
    "mm": product, "bmm": product, "mv": product, "dot": product, "vdot": product, "matmul": product,
    "addmm": _added, "baddbmm": _added, "addmv": _added,
    "addr": lambda x, a, b, **more: _added(x, a.reshape(-1, 1), b.reshape(1, -1), **more),
}  # fmt: skip
