"""Kernels of ours as functions of operations, and the cases that their faults need."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workbench.cuda.faults.catalogue import OF_OPERATIONS as FAULTS
from workbench.cuda.kernels import OF_OPERATIONS
from workbench.operations.case import OperationCase
from workbench.operations.operation import Operation
from workbench.refusal import Refusal


def function_of(
    name: str, operation: Operation, faults: Sequence[str], probes: str, backend: str
) -> Callable[..., Any]:
    """A kernel of ours as a function of its operation, with faults put in, that dumps the stages of `probes`."""
    from workbench.cuda.operation_run import run

    def function(*arrays: Any, **numbers: Any) -> dict[str, Any]:
        inputs = dict(zip(operation.inputs, arrays, strict=True))
        return run(name, inputs, numbers, faults=faults, probes=probes, backend=backend)

    return function


def case_for(
    name: str,
    operation: Operation,
    faults: Sequence[str],
    axes: Mapping[str, int],
    dtype: str | None,
    distribution: str,
    seed: int,
    numbers: Mapping[str, float],
    optional: tuple[str, ...] = (),
) -> OperationCase:
    """The case that is asked for of kernel `name`, with what its faults need where nothing is said of it.

    Refusal for a kernel of another operation, and where something else is said than a fault needs.
    """
    if (own := OF_OPERATIONS[name].operation) != operation.name:
        raise Refusal(f"{name} computes {own}; got operation {operation.name}")
    letters = {axis: letter for letter, axis in operation.axes.items()}
    said: dict[str, Any] = {letters.get(axis, axis): n for axis, n in axes.items()} | dict(numbers)
    said |= {"dtype": dtype} if dtype else {}
    needs: dict[str, Any] = {}
    for fault in faults:
        for what, value in FAULTS[fault].needs.items() if fault in FAULTS else ():
            given = said.get(letters.get(what, what), value)
            if given != value:
                raise Refusal(f"fault {fault} shows only with {what}={value}; got {given}")
            needs[what] = value
    of_axes = {what: n for what, n in needs.items() if what in letters}
    of_numbers = {what: x for what, x in needs.items() if what in operation.numbers}
    return OperationCase(
        operation,
        {**of_axes, **{operation.axes.get(axis, axis): n for axis, n in axes.items()}},
        dtype or needs.get("dtype", "float32"),
        distribution,
        seed,
        {**of_numbers, **numbers},
        optional=optional,
    )
