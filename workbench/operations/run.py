"""A function of an operation called on a case: what it read, and the stages that it returned."""

import inspect
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from workbench.arrays import as_numpy, handed_over, home
from workbench.foreign.launches import Launches, emulated
from workbench.operations.case import OperationCase
from workbench.refusal import Raised, Refusal

#: keys of what a function returns beside stages: inputs as it read them, where these are not ours; and those of its own
#: that nobody saw
READ, OWN = "inputs", "own inputs"


@dataclass(frozen=True)
class OperationRun:
    """What one run of a function left behind."""

    target: str
    case: OperationCase  #: with the conventions that the function told
    inputs: Mapping[str, np.ndarray] = field(repr=False)  #: as it read them
    stages: Mapping[str, np.ndarray] = field(repr=False)  #: by name, in data-flow order
    own: tuple[str, ...] = ()  #: inputs that the function made itself, which nobody saw
    told: tuple[str, ...] = ()  #: conventions that the function told


def run_operation(
    function: Callable[..., Any],
    case: OperationCase,
    *,
    name: str,
    arrays: str = "numpy",
    device: str | None = None,
    backend: str = "auto",
) -> OperationRun:
    """The run of `function(*inputs, **numbers)`, inputs in the operation's order and of `arrays` on `device`; kernels
    of numba.cuda that it launches run on `backend`: auto, which takes a GPU where there is one, emulator or cuda.

    It returns the first of the operation's results, a tuple of them, or a dict of stage -> array, with an optional key
    "contract": a dict of conventions. Refusal for other parameters, stages, shapes and dtypes; Raised where it raises.
    """
    inputs = case.inputs()
    lives_on = home(arrays, device)
    try:
        inspect.signature(function).bind(*inputs, **case.numbers)
    except TypeError as mismatch:
        said = ", ".join([*inputs, *(["*", *case.numbers] if case.numbers else [])])
        raise Refusal(f"{name} is called as a function ({said}) of {case.operation.name}: {mismatch}") from None
    try:
        with Launches(name, on_emulator=emulated(backend)).sent():
            made = function(*(handed_over(x.copy(), arrays, lives_on) for x in inputs.values()), **case.numbers)
    except Refusal:
        raise
    except Exception:
        raise Raised(f"{name} raised on {arrays} arrays:\n{traceback.format_exc()}") from None
    given = _by_name(made, case, name)
    told = given.pop("contract", {})
    case = replace(case, conventions={**case.conventions, **told})
    inputs |= {one: as_numpy(x, f"{name}: {one}").copy() for one, x in given.pop(READ, {}).items()}
    own = tuple(given.pop(OWN, ()))
    table = case.operation.table(case.setting)
    if unknown := [stage for stage in given if stage not in table]:
        raise Refusal(f"{name} returned {', '.join(unknown)}; stages of {case.operation.name} are {', '.join(table)}")
    stages = {stage: as_numpy(given[stage], f"{name}: {stage}").copy() for stage in table if stage in given}
    for stage, x in stages.items():
        wanted = tuple(size_of(case, axis) for axis in table[stage].axes)
        if x.shape != wanted:
            names = ", ".join({"t": "tiles", "c": "tile", **case.operation.axes}[axis] for axis in table[stage].axes)
            raise Refusal(f"{name}: {stage} has axes [{names}] and shape {list(wanted)}; got {list(x.shape)}")
    if not stages:
        raise Refusal(f"{name} returned no stage of {case.operation.name}: {', '.join(table)}")
    return OperationRun(name, case, inputs, stages, own, (*told,))


def size_of(case: OperationCase, axis: str) -> int:
    """How long an axis of a stage is, of "t" and "c" in tiles of the axis that is walked."""
    if axis not in "tc":
        return case.sizes[axis]
    tile = case.operation.tile(case.setting)
    return tile if axis == "c" else -(-case.sizes[case.operation.walked] // tile)


def _by_name(made: Any, case: OperationCase, name: str) -> dict[str, Any]:
    """What was returned, with names."""
    if made is None:
        raise Refusal(f"{name} returned None; it returns {', '.join(case.operation.results)}, or a dict of stages")
    if isinstance(made, Mapping):
        return {key: x for key, x in made.items() if x is not None}
    several = made if isinstance(made, tuple | list) else (made,)
    return {key: x for key, x in zip(case.operation.results, several, strict=False) if x is not None}
