"""Inputs of a function and of its reference: those that a function of the user's makes, a file's, or as they are."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - NumPy knows bfloat16 by name from then on
import numpy as np

from workbench.arrays import own_random
from workbench.case.user_code import function_of, running
from workbench.floats import DTYPES
from workbench.foreign.plain import is_array
from workbench.operations.reference.distributions import changed
from workbench.raised import as_raised
from workbench.refusal import Raised, Refusal
from workbench.trace.inputs import read

Given = Mapping[str, Any] | Callable[..., Any] | str | Path
#: files of arrays by name
FILES = (".safetensors", ".npz", ".pt")


def inputs_of(
    given: Given, dtype: str | None, seed: int, axes: Mapping[str, int], distribution: str = ""
) -> dict[str, Any]:
    """The inputs by name: of `inputs(seed, dtype, **axes)`, a function or file.py:function; of a file; or themselves.

    dtype: the name that the function is told, float32 unless said. distribution: other values of these inputs, as of
    `distributions.changed`. Refusal for a dtype or axes beside a file or arrays, for a function that takes others, for
    what is no dict, and for inputs of which none is in the dtype that was asked.
    """
    return changed(distribution, _inputs_of(given, dtype, seed, axes), seed)


def function_of_inputs(given: Given) -> Callable[..., Any] | None:
    """The function that makes inputs; None of a file and of arrays. Refusal for what cannot be found."""
    if isinstance(given, Mapping) or (isinstance(given, str | Path) and Path(given).suffix in FILES):
        return None
    return _named(str(given)) if isinstance(given, str | Path) else given


def _inputs_of(given: Given, dtype: str | None, seed: int, axes: Mapping[str, int]) -> dict[str, Any]:
    if isinstance(given, str | Path) and Path(given).suffix in FILES:
        return _at_rest(dict(read(Path(given))), str(given), dtype, axes)
    if isinstance(given, Mapping):
        return _at_rest(dict(given), "inputs", dtype, axes)
    if isinstance(given, str | Path):
        return _made(_named(str(given)), str(given), dtype or "float32", seed, axes)
    return _made(given, getattr(given, "__name__", "inputs"), dtype or "float32", seed, axes)


def _named(given: str) -> Callable[..., Any]:
    path, _, name = given.rpartition(":")
    if not path.endswith(".py"):
        raise Refusal(f"inputs are FILE.py:FUNCTION, or a file ({', '.join(FILES)}); got {given!r}")
    if not Path(path).is_file():
        raise Refusal(f"{path}: no such file")
    return function_of(Path(path), name)


def is_made(given: Given) -> bool:
    """Whether a function makes the inputs, others with another seed."""
    return not isinstance(given, Mapping) and not (isinstance(given, str | Path) and Path(given).suffix in FILES)


def dtype_of(inputs: Mapping[str, Any]) -> str:
    """The dtype of a kernel on these inputs: the first that is a float of 16 bits, else float32."""
    narrow = [name for name, dtype in DTYPES.items() if dtype.itemsize == 2]
    found = (str(x.dtype).rpartition(".")[2] for x in inputs.values() if is_array(x))
    return next((name for name in found if name in narrow), "float32")


def _at_rest(inputs: dict[str, Any], where: str, dtype: str | None, axes: Mapping[str, int]) -> dict[str, Any]:
    if dtype is not None or axes:
        what = "--axes" if axes else "--dtype"
        raise Refusal(f"{what} is for a function that makes inputs; {where} is of arrays, which have their own")
    return _checked(inputs, where)


def _made(function: Callable[..., Any], name: str, dtype: str, seed: int, axes: Mapping[str, int]) -> dict[str, Any]:
    if dtype not in DTYPES:
        raise Refusal(f"dtype is one of {', '.join(DTYPES)}; got {dtype!r}")
    try:
        inspect.signature(function).bind(seed, dtype, **axes)
    except TypeError as mismatch:
        said = ", ".join(f"{axis}={n}" for axis, n in axes.items())
        raise Refusal(f"{name} is called as inputs(seed, dtype{', ' * bool(said)}{said}): {mismatch}") from None
    try:
        with running(function), own_random(seed):
            made = function(seed, dtype, **axes)
    except (Refusal, KeyboardInterrupt):
        raise
    except Exception as error:
        raise Raised(f"{name} raised:\n{as_raised(error)}") from None
    if not isinstance(made, Mapping):
        raise Refusal(f"{name} returns a dict of name -> array; got {type(made).__name__}")
    found = _checked(dict(made), name)
    floats = {str(x.dtype).rpartition(".")[2] for x in found.values() if is_array(x) and _is_float(x)}
    if floats and dtype not in floats:
        raise Refusal(
            f"{name} was asked for {dtype}, and made {', '.join(sorted(floats))}: cast with x.astype(dtype), or in "
            "torch x.to(getattr(torch, dtype))"
        )
    return found


def _is_float(x: Any) -> bool:
    return not str(x.dtype).rpartition(".")[2].startswith(("int", "uint", "bool"))


def _checked(inputs: dict[str, Any], where: str) -> dict[str, Any]:
    """The inputs; Refusal where none is an array, and for names that no keyword can have."""
    if not any(is_array(x) for x in inputs.values()):
        raise Refusal(f"{where} holds no array")
    if wrong := [name for name in inputs if not isinstance(name, str) or not name.isidentifier()]:
        raise Refusal(f"{where}: inputs are passed by keyword; {wrong[0]!r} is no name of one")
    return {name: x if not isinstance(x, np.generic) else np.asarray(x) for name, x in inputs.items()}
