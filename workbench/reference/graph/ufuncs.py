"""NumPy's ufuncs, and what they reduce, accumulate and write to."""

from typing import Any

import numpy as np

from workbench.reference.graph.arrays import BEHIND, METHODS, Traced, as_traced, held, held_of, noted
from workbench.reference.graph.recording import Recording
from workbench.reference.graph.rules import RULES

#: ufunc -> primitive, where the names differ
_SAME = {"true_divide": "divide", "absolute": "abs", "fabs": "abs", "radians": "deg2rad", "degrees": "rad2deg",
         "positive": "cast", "invert": "logical_not", "bitwise_and": "logical_and", "bitwise_or": "logical_or",
         "bitwise_xor": "logical_xor", "fmax": "maximum", "fmin": "minimum", "pow": "power",
         "float_power": "power", "atan": "arctan", "asinh": "arcsinh"}  # fmt: skip
#: ufuncs with a rule
_TRUTHS = frozenset(
    "equal not_equal less less_equal greater greater_equal logical_and logical_or logical_xor logical_not isnan isinf"
    " isfinite".split()
)
UFUNCS = _TRUTHS | frozenset(
    "add subtract multiply divide negative abs square sqrt cbrt reciprocal exp exp2 expm1 log log2 log10 log1p tanh"
    " sinh cosh sin cos arctan arcsinh power logaddexp deg2rad rad2deg maximum minimum floor ceil trunc rint sign"
    " matmul cast".split()
)
_REDUCED = {"add": "sum", "maximum": "max", "minimum": "min", "logical_and": "all", "logical_or": "any"}


def of_ufunc(
    run: Recording,
    ufunc: np.ufunc,
    method: str,
    inputs: tuple[Any, ...],
    *,
    out: tuple[Any, ...] = (None,),
    dtype: Any = None,
    where: Any = True,
    **kwargs: Any,
) -> Any:
    """What a ufunc, or a reduction by it, makes."""
    name = _SAME.get(ufunc.__name__, ufunc.__name__)
    called = f"np.{ufunc.__name__}" + (f".{method}" if method != "__call__" else "")
    if where is not True:
        run.refuse(f"{called} with where= has no rule; use np.where")
    x = [as_traced(run, one) for one in inputs]
    if method == "reduce" and name in _REDUCED:
        made = METHODS[_REDUCED[name]](x[0], **{"axis": 0, **kwargs})
    elif method == "accumulate" and name == "add":
        made = METHODS["cumsum"](x[0], **{"axis": 0, **kwargs})
    elif method == "outer":
        left = x[0].reshape(x[0].shape + (1,) * x[1].ndim)
        made = of_ufunc(run, ufunc, "__call__", (left, x[1]))
    elif method != "__call__":
        run.refuse(f"no rule for {called}")
    else:
        made = _called(run, ufunc, name, x, _weak(inputs, x))
    made = made.astype(dtype) if dtype is not None else made
    if out[0] is None:
        return made
    if not isinstance(out[0], Traced):
        run.refuse(f"{called} would write into an array that the reference did not make with its own np")
    return out[0].replace(made)


def _called(run: Recording, ufunc: np.ufunc, name: str, x: list[Traced], types: list[Any]) -> Traced:
    with np.errstate(all="ignore"):
        if all(one.fixed and one.whole for one in x):
            if name == "remainder":
                return _floored(run, name, x)
            made = np.asarray(ufunc(*(one.value for one in x)))
            bits = name.startswith("logical") and ufunc.__name__ not in _TRUTHS and x[0].dtype != bool
            known = name in RULES and name != "matmul" and not bits and made.dtype.kind in "biu"
            return held_of(run, name, x, made) if known else held(run, made, made.dtype)
        if name == "power":
            return _power(run, x, types)
        if name == "matmul":
            return BEHIND["matmul"](*x)
        if name in ("floor_divide", "remainder"):
            return _floored(run, name, x)
        if name not in UFUNCS or (
            ufunc.__name__ in ("invert", "bitwise_and", "bitwise_or", "bitwise_xor") and x[0].dtype != bool
        ):
            run.refuse(f"no rule for np.{ufunc.__name__}")
        value = np.asarray(ufunc(*(one.value for one in x)))
        if value.dtype.kind == "f" and all(one.whole for one in x):  # a quotient, which torch makes in float32
            x = [one.astype(np.float64) for one in x]
    dtype = np.dtype(bool) if name in _TRUTHS else noted(types, value)
    reads = tuple(one.node_of_run for one in x)
    how = {"dtype": dtype.name} if name == "cast" else {}
    return Traced(run, value, run.add(name, reads, how, value, dtype), dtype, all(one.fixed for one in x))


def _power(run: Recording, x: list[Traced], types: list[Any]) -> Traced:
    """x ** 2 is a square and x ** 0.5 a root, as NumPy and every compiler have it."""
    base, exponent = x
    if exponent.fixed and exponent.size == 1 and base.ndim >= exponent.ndim:
        by = float(exponent.value.reshape(()))
        if by in (2.0, 0.5, 1.0, -1.0):
            ufunc = {2.0: np.square, 0.5: np.sqrt, 1.0: np.positive, -1.0: np.reciprocal}[by]
            return _called(run, ufunc, _SAME.get(ufunc.__name__, ufunc.__name__), [base], types[:1])
        if by == -0.5:
            root = _called(run, np.sqrt, "sqrt", [base], types[:1])
            return _called(run, np.reciprocal, "reciprocal", [root], types[:1])
    value = np.asarray(np.power(*(one.value for one in x)))
    reads = tuple(one.node_of_run for one in x)
    dtype = noted(types, value)
    return Traced(run, value, run.add("power", reads, {}, value, dtype), dtype, all(one.fixed for one in x))


def _floored(run: Recording, name: str, x: list[Traced]) -> Traced:
    """a // b and a - (a // b) b: of whole numbers exact, of floats by a division."""
    a, b = x
    quotient: Any
    if a.whole and b.whole:
        value = np.asarray(np.floor_divide(a.value, b.value))
        if a.fixed and b.fixed:
            return _rest(name, x, held_of(run, "floor_divide", x, value))
        node = run.add("floor_divide", (a.node_of_run, b.node_of_run), {}, value, value.dtype)
        quotient = Traced(run, value, node, value.dtype, a.fixed and b.fixed)
    else:
        quotient = np.floor(np.true_divide(*x))  # type: ignore[call-overload]
    return _rest(name, x, quotient)


def _rest(name: str, x: list[Traced], quotient: Any) -> Traced:
    made: Traced = quotient if name == "floor_divide" else x[0] - quotient * x[1]
    return made


def _weak(inputs: tuple[Any, ...], x: list[Traced]) -> list[Any]:
    """What promotion looks at: Python's own numbers are weak."""
    strong = [one.dtype for one, raw in zip(x, inputs, strict=True) if type(raw) not in (bool, int, float)]
    if not strong or all(dtype.kind in "biu" for dtype in strong):
        return [raw if type(raw) in (bool, int, float) else one.dtype for one, raw in zip(x, inputs, strict=True)]
    return strong


BEHIND["of_ufunc"] = of_ufunc
