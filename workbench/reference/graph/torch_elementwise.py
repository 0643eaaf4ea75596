"""ATen's operations of single elements, as plain code on arrays of a run. The noted dtype is torch's, not NumPy's."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import torch

from workbench.reference.graph import functions
from workbench.reference.graph.arrays import Traced
from workbench.reference.graph.torch_tensor import DTYPES, of_torch


def noting(made: Any, dtype: Any) -> Traced:
    """A new array with the dtype that torch gives it: among floats as a note, else as a cast."""
    new: Traced = made
    dtype = np.dtype(dtype)
    if new.dtype == dtype:
        return new
    if new.whole or dtype.kind in "biu":
        return new.astype(dtype)
    new.dtype = dtype
    i = new.node_of_run
    new.run.nodes[i] = replace(new.run.nodes[i], dtype=dtype)
    return new


def promoted(*x: Any) -> np.dtype:
    """Of torch's promotion: dtypes of arrays with dimensions first, then of those without, then of Python's numbers.

    What comes later counts only where it is of a higher kind (torch/aten/src/ATen/native/TypeProperties.cpp).
    """
    arrays = [one for one in x if isinstance(one, Traced)]
    groups = (
        [of_torch(one.dtype) for one in arrays if one.ndim],
        [of_torch(one.dtype) for one in arrays if not one.ndim],
        [_of_number(one) for one in x if isinstance(one, bool | int | float)],
    )
    found: torch.dtype | None = None
    for group in filter(None, groups):
        lower = reduce(torch.promote_types, group)
        if found is None:
            found = lower
        elif _kind(lower) > _kind(found):
            found = torch.promote_types(found, lower)
    assert found is not None
    return DTYPES[found]


def floating(dtype: Any) -> np.dtype:
    """The dtype itself, of whole numbers torch's default one."""
    return default() if np.dtype(dtype).kind in "biu" else np.dtype(dtype)


def default() -> np.dtype:
    """That of floats without a dtype."""
    return DTYPES[torch.get_default_dtype()]


def _of_number(x: Any) -> torch.dtype:
    return torch.bool if isinstance(x, bool) else torch.int64 if isinstance(x, int) else torch.get_default_dtype()


def _kind(dtype: torch.dtype) -> int:
    return 2 if dtype.is_floating_point else int(dtype != torch.bool)


def alike(dtype: np.dtype, *x: Any) -> tuple[Any, ...]:
    """What meets a float: floats of another dtype as of this one, whole numbers as floats. No float is cast."""
    return x if dtype.kind in "biu" else tuple(_alike(dtype, one) for one in x)


def _alike(dtype: np.dtype, x: Any) -> Any:
    if not isinstance(x, Traced):
        return float(x) if isinstance(x, int) else x
    if x.whole:
        return x.astype(np.float64)
    return x if x.dtype == dtype else Traced(x.run, x.value, x.node_of_run, dtype, x.fixed)


def _as(dtype: np.dtype, f: Callable[..., Any], *x: Any) -> Traced:
    return noting(f(*alike(dtype, *x)), dtype)


def _same(f: Callable[..., Any]) -> Callable[..., Traced]:
    """Of the promoted dtype."""
    return lambda *x: _as(promoted(*x), f, *x)


def _function(f: Callable[..., Any]) -> Callable[..., Traced]:
    """A float, of whole numbers too."""
    return lambda *x: _as(floating(promoted(*x)), f, *x)


def _truth(f: Callable[..., Any]) -> Callable[..., Traced]:
    return lambda *x: noting(f(*alike(promoted(*x), *x)), bool)


def _times(x: Any, by: Any) -> Any:
    return x if by == 1 else x * by


def _divide(a: Any, b: Any, *, rounding_mode: str | None = None) -> Traced:
    dtype = promoted(a, b)
    if rounding_mode is None:
        return _as(floating(dtype), np.true_divide, a, b)
    if rounding_mode == "floor":
        return _as(dtype, np.floor_divide, a, b)
    quotient: Any = np.true_divide(a, b)
    return noting(np.trunc(quotient), dtype)


def _fmod(a: Any, b: Any) -> Traced:
    return noting(a - np.trunc(np.true_divide(a, b)) * b, promoted(a, b))


def where(condition: Traced, a: Any, b: Any) -> Traced:
    """a where the condition is, else b."""
    dtype = promoted(a, b)
    return noting(functions.where(condition, *alike(dtype, a, b)), dtype)


def masked_fill(x: Traced, mask: Traced, value: Any) -> Traced:
    """x, with `value` where the mask is."""
    return noting(functions.where(mask, value, x), x.dtype)


def clamp(x: Traced, min: Any = None, max: Any = None) -> Traced:
    """x between two ends, arrays or numbers; None is no end."""
    dtype = promoted(*(one for one in (x, min, max) if one is not None))
    return noting(functions.clip(x, min, max), dtype)


def round_(x: Traced, *, decimals: int = 0) -> Traced:
    """To nearest, ties to even."""
    return noting(functions.rounded(x, decimals), x.dtype)


def _reciprocal_root(x: Any) -> Any:
    return np.reciprocal(np.sqrt(x))


def nan_to_num(x: Traced, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Traced:
    """Numbers in the place of NaN and infinities; None: 0, and the dtype's largest."""
    info = torch.finfo(of_torch(x.dtype))
    ends = info.max if posinf is None else posinf, info.min if neginf is None else neginf
    return noting(functions.nan_to_num(x, nan=0.0 if nan is None else nan, posinf=ends[0], neginf=ends[1]), x.dtype)


_BINARY: Mapping[str, Any] = {
    "mul": np.multiply, "maximum": np.maximum, "minimum": np.minimum, "pow": np.power,
    "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor,
}  # fmt: skip
_UNARY: Mapping[str, Any] = {
    "neg": np.negative, "abs": np.abs, "square": np.square, "sign": np.sign, "sgn": np.sign, "floor": np.floor,
    "ceil": np.ceil, "trunc": np.trunc, "bitwise_not": np.invert, "relu": lambda x: np.maximum(x, 0),
}  # fmt: skip
_FLOATS: Mapping[str, Any] = {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2, "log10": np.log10,
    "log1p": np.log1p, "sqrt": np.sqrt, "rsqrt": _reciprocal_root, "reciprocal": np.reciprocal, "sin": np.sin,
    "cos": np.cos, "tanh": np.tanh, "sinh": np.sinh, "cosh": np.cosh, "atan": np.arctan, "asinh": np.arcsinh,
    "deg2rad": np.deg2rad, "rad2deg": np.rad2deg, "logaddexp": np.logaddexp,
}  # fmt: skip
_TRUTHS: Mapping[str, Any] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "logical_and": np.logical_and, "logical_or": np.logical_or,
    "logical_xor": np.logical_xor, "logical_not": np.logical_not, "isnan": np.isnan, "isinf": np.isinf,
    "isfinite": np.isfinite,
}  # fmt: skip

ELEMENTWISE: Mapping[str, Callable[..., Any]] = {
    **{name: _same(f) for name, f in {**_BINARY, **_UNARY}.items()},
    **{name: _function(f) for name, f in _FLOATS.items()},
    **{name: _truth(f) for name, f in _TRUTHS.items()},
    "add": lambda a, b, alpha=1: _as(promoted(a, b), np.add, a, _times(b, alpha)),
    "sub": lambda a, b, alpha=1: _as(promoted(a, b), np.subtract, a, _times(b, alpha)),
    "rsub": lambda a, b, alpha=1: _as(promoted(a, b), np.subtract, b, _times(a, alpha)),
    "div": _divide,
    "floor_divide": lambda a, b: _divide(a, b, rounding_mode="floor"),
    "remainder": lambda a, b: _as(promoted(a, b), np.remainder, a, b),
    "fmod": _fmod,
    "where": where,
    "masked_fill": masked_fill,
    "clamp": clamp,
    "clamp_min": lambda x, min: clamp(x, min),
    "clamp_max": lambda x, max: clamp(x, None, max),
    "round": round_,
    "lerp": lambda a, b, weight: noting(a + weight * (b - a), promoted(a, b)),
    "addcmul": lambda x, a, b, *, value=1: noting(x + _times(a * b, value), promoted(x, a, b)),
    "addcdiv": lambda x, a, b, *, value=1: noting(x + _times(a / b, value), promoted(x, a, b)),
    "nan_to_num": nan_to_num,
}  # fmt: skip
