"""A function of an operation run and judged in one call."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from workbench.cuda.kernels import OF_OPERATIONS
from workbench.foreign.target import target_of
from workbench.operations.case import OperationCase
from workbench.operations.every import OPERATIONS
from workbench.operations.gradients import through_autograd
from workbench.operations.judge import OperationDiff, judged
from workbench.operations.operation import Operation
from workbench.operations.ours import case_for, function_of, words
from workbench.operations.run import run_operation
from workbench.refusal import Refusal

if TYPE_CHECKING:
    from workbench.cuda.check import Checked


def diff_operation(
    target: str | Callable[..., Any],
    operation: str | Operation,
    *,
    axes: Mapping[str, int] | None = None,
    dtype: str | None = None,
    distribution: str = "",
    seed: int = 0,
    numbers: Mapping[str, float] | None = None,
    contract: Mapping[str, Any] | None = None,
    arrays: str = "numpy",
    device: str | None = None,
    backend: str = "auto",
    gradients: bool = False,
    faults: Sequence[str] = (),
    probes: str = "all",
) -> OperationDiff:
    """The judgement of a function of an operation, of OPERATIONS by name or of your own, on one case.

    `target`: the function, or path.py:function; it takes the operation's inputs in their order, `arrays` on `device`,
    and its numbers by keyword, and returns its results, or a dict of stages. `axes`: sizes by name, `numbers` and
    `contract` (conventions): the usual where nothing is said, and float32. `backend`: where kernels of numba.cuda run.
    `gradients`, of attention_backward: `target` is a forward pass in torch, which is run through autograd.

    Or a kernel of ours by name (backward, backward_atomic), with `faults` put in, which dumps the stages of `probes`:
    all, output (its results alone), or some, separated by commas; where nothing is said of what its faults need, that
    is taken.

    Raises Refusal for names that the operation does not have, for a function that takes or returns something else, and,
    as Raised, where it raises.
    """
    of = _operation(operation)
    if isinstance(target, str) and target in OF_OPERATIONS:
        if gradients or contract or device is not None or arrays != "numpy":
            raise Refusal(
                f"gradients, contract, arrays, device are for functions of yours; {target} is a kernel of ours"
            )
        case = case_for(target, of, faults, axes or {}, dtype, distribution, seed, numbers or {})
        return judged(
            run_operation(function_of(target, of, faults, probes, backend), case, name=target, backend=backend)
        )
    found = target_of(target)
    if not found.is_foreign:
        raise Refusal(f"a function of {of.name} is given as FILE.py:FUNCTION, or itself; got {found.name}")
    if faults or probes != "all":
        raise Refusal(f"faults and probes are of kernels of ours ({', '.join(OF_OPERATIONS)}); got {found.name}")
    case = OperationCase(of, axes or {}, dtype or "float32", distribution, seed, numbers or {}, contract or {})
    function = found.function()
    if gradients:
        if of.name != "attention_backward" or arrays != "torch":
            raise Refusal(f"gradients are of attention_backward, in torch; got {of.name} of {arrays} arrays")
        function = through_autograd(function, found.name)
    return judged(run_operation(function, case, name=found.name, arrays=arrays, device=device, backend=backend))


def check_operation(
    target: str,
    operation: str | Operation,
    *,
    axes: Mapping[str, int] | None = None,
    dtype: str | None = None,
    distribution: str = "",
    seed: int = 0,
    numbers: Mapping[str, float] | None = None,
    faults: Sequence[str] = (),
    probes: str = "all",
    schedules: int = 1,
) -> "Checked":
    """What a watched run of a kernel of ours of an operation finds, as of `workbench.cuda.check.check`: nothing, of a
    correct one. Arguments as of `diff_operation`. Raises Refusal likewise.
    """
    from workbench.cuda.operation_run import check

    of = _operation(operation)
    if target not in OF_OPERATIONS:
        raise Refusal(f"kernels of ours of an operation are {', '.join(OF_OPERATIONS)}; got {target!r}")
    case = case_for(target, of, faults, axes or {}, dtype, distribution, seed, numbers or {})
    found = check(target, case.inputs(), case.numbers, faults=faults, probes=probes, schedules=schedules)
    return replace(found, words=words(case))


def _operation(operation: str | Operation) -> Operation:
    of = operation if isinstance(operation, Operation) else OPERATIONS.get(operation)
    if of is None:
        raise Refusal(f"operations are {', '.join(OPERATIONS)}; got {operation!r}")
    return of
