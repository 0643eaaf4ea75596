"""A function called by keyword on inputs of its caller: what it returned, twice, and what it did to memory."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np

from workbench.arrays import advice, as_numpy, home, names_torch, of_torch, written
from workbench.case.user_code import running
from workbench.floats import FLOATS
from workbench.foreign.collect import loading, wrote
from workbench.foreign.launches import Launches, emulated
from workbench.foreign.memory import Memory, unwritten
from workbench.foreign.probes import interpreter as triton_interpreter
from workbench.raised import as_raised
from workbench.refusal import Raised, Refusal, Unavailable

#: dtypes of inputs and of results
ACCEPTED = (
    *FLOATS,
    *(np.dtype(one) for one in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)),
    *(np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)),
    np.dtype(bool),
)
#: how many calls a judgement rests on: races and unwritten memory show as a difference
CALLS = 2


class _OfTorch(Raised):
    """A function that raised on NumPy arrays, and may be written for tensors of torch."""


@dataclass(frozen=True, eq=False)
class Returned:
    """What one call returned: arrays by name, or in order."""

    arrays: Mapping[str, np.ndarray] | tuple[np.ndarray | None, ...]
    unwritten: Mapping[str, np.ndarray] | tuple[np.ndarray | None, ...] = field(
        repr=False
    )  #: slots that still hold the fill

    def same(self, other: "Returned") -> bool:
        """Whether both hold the same bits."""
        mine, theirs = (_leaves(one.arrays) for one in (self, other))
        return mine.keys() == theirs.keys() and all(
            x.dtype == theirs[name].dtype and x.shape == theirs[name].shape and x.tobytes() == theirs[name].tobytes()
            for name, x in mine.items()
        )


@dataclass(frozen=True, eq=False)
class PlainRun:
    """CALLS calls of a function on the same inputs."""

    target: str
    returned: tuple[Returned, ...]  #: those that differ in bits, the first call's first
    gates: tuple[str, ...] = ()  #: what stands above any verdict on it
    notes: tuple[str, ...] = ()


def run_plain(
    function: Callable[..., Any],
    inputs: Mapping[str, Any],
    *,
    name: str,
    arrays: str | None = None,
    device: str | None = None,
    backend: str = "auto",
    beside: Mapping[str, Any] = MappingProxyType({}),
    through: Callable[[Mapping[str, Any]], Any] | None = None,
) -> PlainRun:
    """The run of `function(**inputs)`: arrays of NumPy or torch as they are, or NumPy's as `arrays` on `device`, and
    whatever else it takes.

    It returns an array or a number, a tuple or list of them, or a dict of name -> array, or list of arrays, one a turn
    of a loop; None in place of one is left out. One that raises on NumPy arrays and may be written for torch gets
    tensors, which a note says. through: what calls the function with the inputs and the arrays `beside` them, such as
    gradients of results. Refusal for other parameters and results; Raised where it raises; Unavailable for a library or
    device that this machine lacks.
    """
    lives_on = None if arrays is None else home(arrays, device)
    try:
        inspect.signature(function).bind(**inputs)
    except TypeError as mismatch:
        raise Refusal(f"{name} is called by keyword with {', '.join(inputs)}: {mismatch}") from None
    except ValueError:  # a builtin that does not tell
        pass
    inputs = {**inputs, **beside}
    before = {key: as_array(x, f"input {key}") for key, x in inputs.items() if is_array(x)}

    def once() -> tuple[Returned, list[str], list[str]]:
        """What one call on copies returned, the inputs that it changed, and the arrays beyond which it wrote."""
        memory, given = Memory(), dict(inputs)
        for key in before:
            if lives_on is None or arrays is None or not isinstance(inputs[key], np.ndarray):
                given[key] = memory.placed(key, inputs[key])
            else:
                given[key] = memory.handed_over(key, inputs[key], arrays, lives_on)
        try:
            with running(function), triton_interpreter.guarded(), Launches(name, on_emulator=emulated(backend)).sent():
                with loading(), memory.fresh(function):
                    made = function(**given) if through is None else through(given)
                found = read(made, name)  # waits for it, and so may find that it failed
                return found, written(before, {key: given[key] for key in before}), memory.broken
        except (Refusal, Unavailable, KeyboardInterrupt):
            raise
        except BaseException as error:  # sys.exit among them: its exit is not ours
            numpy = arrays is None and any(isinstance(inputs[key], np.ndarray) for key in before)
            hint = advice(error, function, arrays or "numpy", lives_on or "cpu") if arrays or numpy else ""
            kind = _OfTorch if numpy and of_torch(error, function, "numpy") else Raised
            raise kind(f"{name} raised:\n{as_raised(error)}{hint}") from None

    try:
        calls = [once() for _ in range(CALLS)]
    except _OfTorch as on_numpy:
        try:
            made = run_plain(function, inputs, name=name, arrays="torch", backend=backend)
        except Raised as on_torch:
            raise (on_torch if names_torch(function) else Raised(str(on_numpy))) from None
        return replace(made, notes=(*made.notes, "called with torch tensors, as it raises on NumPy arrays"))
    first = calls[0][0]
    others = [one for one, _, _ in calls[1:] if not one.same(first)]
    changed = dict.fromkeys(key for _, found, _ in calls for key in found)
    broken = dict.fromkeys(key for _, _, found in calls for key in found)
    gates = (*wrote(name, changed), *(f"{name} wrote before or behind {key}, out of bounds" for key in broken))
    notes = tuple(f"{_apart(first, one)}: each call is judged, the worse is shown" for one in others)
    return PlainRun(name, (first, *others), gates, notes)


def _apart(a: Returned, b: Returned) -> str:
    """How two calls differ, in words."""
    mine, theirs, said = _leaves(a.arrays), _leaves(b.arrays), []
    for name, x in mine.items():
        y = theirs.get(name)
        if y is None or x.shape != y.shape or x.dtype != y.dtype or x.tobytes() == y.tobytes():
            continue
        with np.errstate(all="ignore"):
            wide = x.astype(np.float64), y.astype(np.float64)
            same = (x == y) | (np.isnan(wide[0]) & np.isnan(wide[1]))
            off = abs(wide[0] - wide[1])[~same]
        far = f" by up to {np.max(np.where(np.isnan(off), np.inf, off)):.3g}" if off.size else ""
        said.append(f"{name if isinstance(name, str) else f'result {name}'}{far} in {off.size} of {x.size} elements")
    return f"{CALLS} calls returned different bits{': ' * bool(said)}{', '.join(said)}"


def is_array(x: Any) -> bool:
    """Whether x is an array of any library, and no number of Python's."""
    return hasattr(x, "__dlpack__") or isinstance(x, np.ndarray | np.generic)


def as_array(x: Any, what: str) -> np.ndarray:
    """A copy of x in NumPy, of its own shape; Refusal for a dtype that is not among ACCEPTED."""
    if isinstance(x, bool | int | float):
        return np.asarray(x)
    if not is_array(x):
        raise Refusal(f"{what} must be an array or a number; got {type(x).__name__}")
    return as_numpy(x, what, ACCEPTED).reshape(tuple(x.shape)).copy()


def read(made: Any, name: str) -> Returned:
    """What a function named `name` returned, as of `run_plain`."""
    if isinstance(made, Mapping):
        flat = dict(_flat(made, name))
        if not flat:
            raise Refusal(
                f"{name} returned no array; it returns an array, a tuple of arrays, or a dict of name -> array"
            )
        return Returned(flat, {key: unwritten(x) for key, x in flat.items()})
    several = made if isinstance(made, tuple | list) else (made,)
    found = tuple(None if x is None else as_array(x, f"{name}: result {i}") for i, x in enumerate(several))
    if all(x is None for x in found):
        raise Refusal(f"{name} returned None; it returns an array, a tuple of arrays, or a dict of name -> array")
    return Returned(found, tuple(None if x is None else unwritten(x) for x in found))


def _flat(made: Mapping[Any, Any], name: str) -> Iterator[tuple[str, np.ndarray]]:
    for key, x in made.items():
        if isinstance(x, tuple | list):
            for i, one in enumerate(x):
                yield f"{key}[{i}]", as_array(one, f"{name}: {key}[{i}]")
        elif x is not None:
            yield str(key), as_array(x, f"{name}: {key}")


def _leaves(arrays: Mapping[str, np.ndarray] | tuple[np.ndarray | None, ...]) -> dict[Any, np.ndarray]:
    pairs = arrays.items() if isinstance(arrays, Mapping) else enumerate(arrays)
    return {key: x for key, x in pairs if x is not None}
