"""A function of an operation called on a case: what it read, and the stages that it returned."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from workbench.arrays import as_numpy, handed_over, home, of_torch, written
from workbench.case import mods
from workbench.foreign.collect import wrote
from workbench.foreign.launches import Launches, emulated
from workbench.operations.case import OperationCase
from workbench.operations.operation import Setting
from workbench.raised import as_raised
from workbench.refusal import Raised, Refusal, Unavailable

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
    gates: tuple[str, ...] = ()  #: what stands above any verdict on it
    #: of a function arrays, device, backend and gradients, as of `diff_operation`, of a kernel of ours backend, faults
    #: and probes; None of a run on inputs of Python's
    called_with: Mapping[str, Any] | None = None
    #: runs the function on another case, and on other inputs than it draws; None where nobody can
    again: "Callable[..., OperationRun] | None" = field(default=None, repr=False)

    @property
    def headline(self) -> str:
        """What was run, in words."""
        return f"{self.target}: {self.case.operation.name}, {self.case}"

    @property
    def setting(self) -> Setting:
        """What its stages depend on."""
        return replace(self.case.setting, own=self.own)


def run_operation(
    function: Callable[..., Any],
    case: OperationCase,
    *,
    name: str,
    arrays: str = "numpy",
    device: str | None = None,
    backend: str = "auto",
    inputs: Mapping[str, np.ndarray] | None = None,
) -> OperationRun:
    """The run of `function(*inputs, **numbers)`, inputs in the operation's order and of `arrays` on `device`, optional
    ones and functions by keyword; kernels of numba.cuda that it launches run on `backend`: auto, which takes a GPU
    where there is one, emulator or cuda. `inputs`: in place of those that the case draws, by name and in the dtypes
    that these have.

    It returns the first of the operation's results, a tuple of them, or a dict of stage -> array, with an optional key
    "contract": a dict of conventions. Refusal for other parameters, stages, shapes and dtypes; Raised where it raises;
    Unavailable for a backend that this machine lacks.
    """
    inputs = case.inputs() if inputs is None else _fitting(inputs, case, name)
    lives_on = home(arrays, device)
    try:
        beside = dict.fromkeys((*case.optional, *case.functions))
        inspect.signature(function).bind(*case.operation.inputs, **case.numbers, **beside)
    except TypeError as mismatch:
        keywords = [*case.numbers, *beside]
        said = ", ".join([*case.operation.inputs, *(["*", *keywords] if keywords else [])])
        raise Refusal(f"{name} is called as {case.operation.name}({said}): {mismatch}") from None
    try:
        with Launches(name, on_emulator=emulated(backend)).sent(), mods.running(**case.functions):
            over = {one: handed_over(x.copy(), arrays, lives_on) for one, x in inputs.items()}
            handed = dict(over)
            beside = {one: over.pop(one) for one in case.optional}
            beside |= {keyword: mods.function_of(mod, keyword) for keyword, mod in case.functions.items()}
            made, torch_wanted = function(*over.values(), **case.numbers, **beside), False
    except (Refusal, Unavailable):
        raise
    except Exception as error:
        if not (torch_wanted := of_torch(error, function, arrays)):
            raise Raised(f"{name} raised on {arrays} arrays:\n{as_raised(error)}") from None
    if torch_wanted:
        return run_operation(function, case, name=name, arrays="torch", device=device, backend=backend, inputs=inputs)
    gates = wrote(name, written(inputs, handed))
    given = _by_name(made, case, name)
    told = given.pop("contract", {})
    case = replace(case, conventions={**case.conventions, **told})
    inputs |= {one: as_numpy(x, f"{name}: {one}").copy() for one, x in given.pop(READ, {}).items()}
    own = tuple(given.pop(OWN, ()))
    known_stages = case.operation.stages(replace(case.setting, own=own))
    if unknown := [stage for stage in given if stage not in known_stages]:
        known = f"stages of {case.operation.name}: {', '.join(known_stages)}"
        raise Refusal(f"{name} returned unknown stages {', '.join(unknown)}; {known}")
    stages = {stage: as_numpy(given[stage], f"{name}: {stage}").copy() for stage in known_stages if stage in given}
    for stage, x in stages.items():
        wanted = shape_of(case, known_stages[stage])
        if x.shape != wanted:
            names = ", ".join({"t": "tiles", "c": "tile", **case.operation.axes}[axis] for axis in known_stages[stage])
            raise Refusal(f"{name}: {stage} has axes [{names}] and must have shape {list(wanted)}; got {list(x.shape)}")
    if not stages:
        raise Refusal(f"{name} returned no stage of {case.operation.name}: {', '.join(known_stages)}")
    return OperationRun(name, case, inputs, stages, own, (*told,), gates)


def shape_of(case: OperationCase, axes: str) -> tuple[int, ...]:
    """The shape of a stage with these axes."""
    return tuple(size_of(case, axis) for axis in axes)


def size_of(case: OperationCase, axis: str) -> int:
    """How long an axis of a stage is, of "t" and "c" in tiles of the axis that is walked."""
    if axis not in "tc":
        return case.sizes[axis]
    tile = case.operation.tile(case.setting)
    return tile if axis == "c" else -(-case.sizes[case.operation.walked] // tile)


def _by_name(made: Any, case: OperationCase, name: str) -> dict[str, Any]:
    """What was returned, with names."""
    if made is None:
        raise Refusal(f"{name} returned None; it must return {', '.join(results(case))}, or a dict of stages")
    if isinstance(made, Mapping):
        return {key: x for key, x in made.items() if x is not None}
    several = made if isinstance(made, tuple | list) else (made,)
    return {key: x for key, x in zip(results(case), several, strict=False) if x is not None}


def results(case: OperationCase) -> list[str]:
    """The stages that a function of a case returns, in order."""
    stages = case.operation.stages(case.setting)
    return [name for name in case.operation.results if name in stages]


def _fitting(inputs: Mapping[str, np.ndarray], case: OperationCase, name: str) -> dict[str, np.ndarray]:
    """The inputs in the order of the case; Refusal for other names, shapes and dtypes."""
    if {*inputs} != {*case.takes}:
        raise Refusal(f"{name}: inputs must be {', '.join(case.takes)}; got {', '.join(inputs)}")
    for one, axes in case.takes.items():
        x, shape, dtype = inputs[one], tuple(case.sizes[axis] for axis in axes), case.dtype_of(one)
        if x.shape != shape or x.dtype != dtype:
            raise Refusal(f"{name}: {one} must be {dtype} {list(shape)}; got {x.dtype} {list(x.shape)}")
    return {one: inputs[one] for one in case.takes}
