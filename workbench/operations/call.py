"""A function of an operation run and judged in one call."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from workbench.foreign.target import target_of
from workbench.operations.case import OperationCase
from workbench.operations.every import OPERATIONS
from workbench.operations.judge import OperationDiff, judged
from workbench.operations.of_attention import forward_case
from workbench.operations.operation import Operation
from workbench.operations.run import OperationRun, run_operation
from workbench.operations.through_autograd import through_autograd
from workbench.refusal import Refusal


def diff_operation(
    target: str | Callable[..., Any],
    operation: str | Operation,
    *,
    axes: Mapping[str, int] | None = None,
    dtype: str = "float32",
    distribution: str = "",
    seed: int = 0,
    numbers: Mapping[str, float] | None = None,
    contract: Mapping[str, Any] | None = None,
    arrays: str = "numpy",
    device: str | None = None,
    backend: str = "auto",
    gradients: bool = False,
    optional: Sequence[str] = (),
) -> OperationDiff:
    """The judgement of a function of an operation, of OPERATIONS by name or of your own, on one case.

    `target`: the function, or path.py:function; it takes the operation's inputs in their order, `arrays` on `device`,
    and its numbers by keyword, and returns its results, or a dict of stages. `axes`: sizes by name, `numbers` and
    `contract` (conventions): the usual where nothing is said. `backend`: where kernels of numba.cuda run. `gradients`,
    of attention_backward: `target` is a forward pass in torch, which is called as `workbench.run` calls it and run
    through autograd. `optional`: inputs that the case has beside the usual, which it takes by keyword. Raises Refusal
    for names that the operation does not have, for a function that takes or returns something else, and, as Raised,
    where it raises.
    """
    of = operation if isinstance(operation, Operation) else OPERATIONS.get(operation)
    if of is None:
        raise Refusal(f"operations are {', '.join(OPERATIONS)}; got {operation!r}")
    case = OperationCase(of, axes or {}, dtype, distribution, seed, numbers or {}, contract or {}, tuple(optional))
    again = runner(target, of, arrays=arrays, device=device, backend=backend, gradients=gradients)
    called = {"arrays": arrays, "device": device, "backend": backend, "gradients": gradients}
    return judged(replace(again(case, case.inputs()), called_with=called))


#: runs a function on a case and inputs for it
Runner = Callable[[OperationCase, Mapping[str, np.ndarray]], OperationRun]


def runner(
    target: str | Callable[..., Any],
    of: Operation,
    *,
    arrays: str = "numpy",
    device: str | None = None,
    backend: str = "auto",
    gradients: bool = False,
) -> Runner:
    """What runs a function of an operation; arguments and errors as of `diff_operation`."""
    found = target_of(target)
    if not found.is_foreign:
        raise Refusal(f"a function of {of.name} is given as FILE.py:FUNCTION, or itself; got {found.name}")
    if gradients and (of.name != "attention_backward" or arrays != "torch"):
        raise Refusal(f"gradients are of attention_backward, in torch; got {of.name} of {arrays} arrays")
    function, name = found.function(), found.name

    def run(case: OperationCase, inputs: Mapping[str, np.ndarray]) -> OperationRun:
        called = function
        if gradients:
            called = through_autograd(function, name, forward_case(case, inputs), device=device)
        return run_operation(called, case, name=name, arrays=arrays, device=device, backend=backend, inputs=inputs)

    return run
