"""A function of an operation run and judged in one call."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from workbench.foreign.target import target_of
from workbench.operations.case import OperationCase
from workbench.operations.every import OPERATIONS
from workbench.operations.judge import OperationDiff, judged
from workbench.operations.of_attention import forward_case
from workbench.operations.operation import Operation
from workbench.operations.run import run_operation
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
    found = target_of(target)
    if not found.is_foreign:
        raise Refusal(f"a function of {of.name} is given as FILE.py:FUNCTION, or itself; got {found.name}")
    case = OperationCase(of, axes or {}, dtype, distribution, seed, numbers or {}, contract or {}, tuple(optional))
    function = found.function()
    if gradients:
        if of.name != "attention_backward" or arrays != "torch":
            raise Refusal(f"gradients are of attention_backward, in torch; got {of.name} of {arrays} arrays")
        function = through_autograd(function, found.name, forward_case(case, case.inputs()), device=device)
    called = {"arrays": arrays, "device": device, "backend": backend, "gradients": gradients}
    run = run_operation(function, case, name=found.name, arrays=arrays, device=device, backend=backend)
    return judged(replace(run, called_with=called))
