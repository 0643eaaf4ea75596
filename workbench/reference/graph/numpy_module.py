"""A stand-in for the `np` of a reference while it runs: arrays that it makes belong to the run, all else is NumPy's."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock
from types import CodeType, FunctionType
from typing import Any

import ml_dtypes
import numpy as np

from workbench.reference.graph.arrays import BEHIND, Traced, held
from workbench.reference.graph.recording import Recording

#: module globals are of the whole process: one run at a time puts its own into them
_TURN = RLock()
#: NumPy's functions that make arrays of numbers alone
_CREATE = ("zeros", "ones", "empty", "full", "eye", "identity", "arange", "linspace", "tri", "hanning", "hamming")
_CONVERT = ("array", "asarray", "asanyarray", "ascontiguousarray")


class Numpy:
    """NumPy for one run."""

    def __init__(self, run: Recording) -> None:
        self._run, self._draws = run, False
        own: dict[str, Any] = {name: self._creating(name) for name in _CREATE}
        own |= {name: self._converting(name) for name in _CONVERT}
        own["finfo"] = ml_dtypes.finfo  # knows bfloat16, too
        self._own = own

    def __getattr__(self, name: str) -> Any:
        if name == "random":
            self._draws = True
            return _Drawing(self._run, np.random)
        return self._own[name] if name in self._own else getattr(np, name)

    @property
    def draws(self) -> bool:
        """Whether the reference asked for random numbers."""
        return self._draws

    def standing_for(self, x: Any) -> Any:
        """What takes the place of a global: for NumPy and its functions that make arrays; None for others."""
        if x is np:
            return self
        name = getattr(x, "__name__", "")
        return self._own[name] if name in self._own and x is getattr(np, name, None) else None

    def _creating(self, name: str) -> Callable[..., Traced]:
        make = getattr(np, name)

        def create(*args: Any, **kwargs: Any) -> Traced:
            args = tuple(_plain(one) for one in args)
            kwargs = {key: _plain(one) for key, one in kwargs.items() if key != "like"}
            made = np.zeros(*args, **kwargs) if name == "empty" else make(*args, **kwargs)
            if made.dtype.kind not in "biu" and "dtype" in kwargs:  # its values in float64, not in what is asked
                noted = made.dtype
                made = (np.zeros if name == "empty" else make)(*args, **kwargs | {"dtype": np.float64})
                return held(self._run, made, noted)
            return held(self._run, made, made.dtype)

        return create

    def _converting(self, name: str) -> Callable[..., Any]:
        def convert(x: Any, dtype: Any = None, **_: Any) -> Any:
            if isinstance(x, Traced) and name != "array":
                return x if dtype is None or np.dtype(dtype) == x.dtype else x.astype(dtype)
            return BEHIND["array"](self._run, x, dtype)

        return convert


class _Drawing:
    """np.random, or a generator of it, whose draws belong to the run."""

    def __init__(self, run: Recording, of: Any) -> None:
        self._run, self._of = run, of

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._of, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            made = found(*args, **kwargs)
            if isinstance(made, np.random.Generator | np.random.RandomState):
                return _Drawing(self._run, made)
            return held(self._run, made, made.dtype) if isinstance(made, np.ndarray) else made

        return call


def _plain(x: Any) -> Any:
    if isinstance(x, tuple | list):
        return type(x)(_plain(one) for one in x)
    return (x._taken("a size").item() if not x.ndim else x._taken("a size")) if isinstance(x, Traced) else x


def code_of(f: Any) -> CodeType | None:
    """The code of a function, behind decorators and partial; None of what is no function of Python."""
    while not isinstance(f, FunctionType):
        inner = getattr(f, "func", None) or getattr(f, "__func__", None) or getattr(f, "__wrapped__", None)
        if inner is None:
            call = type(f).__dict__.get("__call__") or type(f).__dict__.get("forward")  # of a module of torch
            inner = call if isinstance(call, FunctionType) else None
        if inner is None:
            return None
        f = inner
    while hasattr(f, "__wrapped__"):
        f = f.__wrapped__
    return f.__code__ if isinstance(f, FunctionType) else None


def _namespaces(f: Any, found: dict[int, dict[str, Any]]) -> None:
    """The globals of a function and of those that it is wrapped around."""
    for inner in (getattr(f, "func", None), getattr(f, "__func__", None), getattr(f, "__wrapped__", None)):
        if inner is not None:
            _namespaces(inner, found)
    if not isinstance(f, FunctionType):
        call = type(f).__dict__.get("__call__")
        if isinstance(call, FunctionType):
            found[id(call.__globals__)] = call.__globals__
        return
    found[id(f.__globals__)] = f.__globals__
    for cell in f.__closure__ or ():
        try:
            held_ = cell.cell_contents
        except ValueError:  # not yet assigned
            continue
        if isinstance(held_, FunctionType) and id(held_.__globals__) not in found:
            _namespaces(held_, found)


@contextmanager
def standing_in(f: Any, module: Numpy) -> Iterator[None]:
    """`module` in the place of NumPy in the globals of a function and of those that it wraps."""
    found: dict[int, dict[str, Any]] = {}
    _namespaces(f, found)
    with _TURN:
        before = [(space, key, x) for space in found.values() for key, x in space.items()]
        before = [(space, key, x) for space, key, x in before if module.standing_for(x) is not None]
        try:
            for space, key, x in before:
                space[key] = module.standing_for(x)
            yield
        finally:
            for space, key, x in before:
                space[key] = x
