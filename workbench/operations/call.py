"""A function of an operation run and judged in one call."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, TypeGuard, Unpack

import numpy as np

from workbench.cuda.kernels import OF_OPERATIONS
from workbench.foreign.target import target_of
from workbench.operations.case import OperationCase
from workbench.operations.every import OPERATIONS
from workbench.operations.judge import OperationDiff, judged
from workbench.operations.of_attention import forward_case
from workbench.operations.operation import Operation
from workbench.operations.ours import case_for, function_of
from workbench.operations.run import OperationRun, run_operation
from workbench.operations.through_autograd import through_autograd
from workbench.refusal import Refusal

if TYPE_CHECKING:
    from workbench.cuda.check import Checked


class Asked(TypedDict, total=False):
    """What is asked of a function of an operation, where it is not the usual; as of `diff_operation`."""

    axes: Mapping[str, int] | None
    dtype: str | None
    distribution: str
    seed: int
    numbers: Mapping[str, float] | None
    contract: Mapping[str, Any] | None
    optional: Sequence[str]
    functions: Mapping[str, Any] | None
    arrays: str
    device: str | None
    backend: str
    gradients: bool
    faults: Sequence[str]
    probes: str


#: of these, the ways in which a function is called; `faults` says what a case needs, too
_WAYS = ("arrays", "device", "backend", "gradients", "faults", "probes")


def diff_operation(
    target: str | Callable[..., Any], operation: str | Operation, **asked: Unpack[Asked]
) -> OperationDiff:
    """The judgement of a function of an operation, one of OPERATIONS or its name, on one case.

    `target`: the function, or path.py:function; it takes the operation's inputs in their order, `arrays` (numpy) on
    `device`, and its numbers by keyword, and returns its results, or a dict of stages. `axes`: sizes by name, `numbers`
    and `contract` (conventions): the usual where nothing is said, and float32 for `dtype`; `distribution` and `seed` of
    the inputs. `backend` (auto): where kernels of numba.cuda run. `gradients`, of attention_backward: `target` is a
    forward pass in torch, which is called as `workbench.run` calls it and run through autograd. `optional`: inputs that
    the case has beside the usual, which it takes by keyword; `functions`, too: of attention_backward score_mod, itself
    or as path.py:function.

    Or a kernel of ours by name (backward, backward_atomic), with `faults` put in, which dumps the stages of `probes`:
    all, output (its results alone), or some, separated by commas; where nothing is said of what its faults need, that
    is taken.

    Raises Refusal for names that the operation does not have, for a function that takes or returns something else, and,
    as Raised, where it raises.
    """
    run, case = asked_for(target, operation_of(operation), **asked)
    return judged(run(case))


def asked_for(
    target: str | Callable[..., Any], of: Operation, **asked: Unpack[Asked]
) -> "tuple[Runner, OperationCase]":
    """What runs a function and the case that is asked for; arguments and errors as of `diff_operation`."""
    ways: Any = {name: x for name, x in asked.items() if name in _WAYS}
    of_case: Any = {name: x for name, x in asked.items() if name == "faults" or name not in _WAYS}
    return runner(target, of, **ways), case_of(target, of, **of_case)


def check_operation(
    target: str, operation: str | Operation, *, probes: str = "all", schedules: int = 1, **of_case: Any
) -> "Checked":
    """What a watched run of a kernel of ours of an operation finds, as of `workbench.cuda.check.check`: nothing, of a
    correct one. The arguments of its case as of `diff_operation`. Raises Refusal likewise.
    """
    from workbench.cuda.operation_run import check

    of = operation_of(operation)
    if target not in OF_OPERATIONS:
        raise Refusal(f"built-in kernels of operations: {', '.join(OF_OPERATIONS)}; got {target!r}")
    case, faults = case_of(target, of, **of_case), of_case.get("faults", ())
    found = check(target, case.inputs(), case.numbers, faults=faults, probes=probes, schedules=schedules)
    return replace(found, words=case.words)


def operation_of(operation: str | Operation) -> Operation:
    """An operation by its name, or itself."""
    of = operation if isinstance(operation, Operation) else OPERATIONS.get(operation)
    if of is None:
        raise Refusal(f"operation must be one of {', '.join(OPERATIONS)}; got {operation!r}")
    return of


def case_of(
    target: str | Callable[..., Any],
    of: Operation,
    *,
    axes: Mapping[str, int] | None = None,
    dtype: str | None = None,
    distribution: str = "",
    seed: int = 0,
    numbers: Mapping[str, float] | None = None,
    contract: Mapping[str, Any] | None = None,
    optional: Sequence[str] = (),
    functions: Mapping[str, Any] | None = None,
    faults: Sequence[str] = (),
) -> OperationCase:
    """The case that is asked for, of a kernel of ours with what its faults need; as of `diff_operation`."""
    if _is_ours(target):
        _refuse_of_functions(target, {"contract": contract, "functions": functions})
        return case_for(target, of, faults, axes or {}, dtype, distribution, seed, numbers or {}, tuple(optional))
    return OperationCase(
        of, axes or {}, dtype or "float32", distribution, seed, numbers or {}, contract or {}, tuple(optional),
        functions or {},
    )  # fmt: skip


class Runner(Protocol):
    """Runs a function of an operation on a case; `inputs`: in place of those that the case draws."""

    def __call__(self, case: OperationCase, inputs: Mapping[str, np.ndarray] | None = None) -> OperationRun: ...


def runner(
    target: str | Callable[..., Any],
    of: Operation,
    *,
    arrays: str = "numpy",
    device: str | None = None,
    backend: str = "auto",
    gradients: bool = False,
    faults: Sequence[str] = (),
    probes: str = "all",
) -> Runner:
    """What runs a function, or a kernel of ours, of an operation; arguments and errors as of `diff_operation`."""
    called_with: dict[str, Any] = {"backend": backend}
    if _is_ours(target):
        _refuse_of_functions(target, {"gradients": gradients, "arrays": arrays != "numpy", "device": device})
        function, name = function_of(target, of, faults, probes, backend), target
        called_with |= {"faults": tuple(faults), "probes": probes}
    else:
        found = target_of(target)
        if not found.is_foreign:
            raise Refusal(f"give a function for {of.name} as FILE.py:FUNCTION or as a callable; got {found.name}")
        if faults or probes != "all":
            raise Refusal(f"faults and probes need a built-in kernel ({', '.join(OF_OPERATIONS)}); got {found.name}")
        if gradients and (of.name != "attention_backward" or arrays != "torch"):
            raise Refusal(f"gradients needs attention_backward and torch arrays; got {of.name} and {arrays} arrays")
        function, name = found.function(), found.name
        called_with |= {"arrays": arrays, "device": device, "gradients": gradients}

    def run(case: OperationCase, inputs: Mapping[str, np.ndarray] | None = None) -> OperationRun:
        read, called = case.inputs() if inputs is None else inputs, function
        if gradients:
            called = through_autograd(function, name, forward_case(case, read), device=device)
        made = run_operation(called, case, name=name, arrays=arrays, device=device, backend=backend, inputs=read)
        return replace(made, called_with=called_with if inputs is None else None, again=run)

    return run


def _is_ours(target: str | Callable[..., Any]) -> TypeGuard[str]:
    return isinstance(target, str) and target in OF_OPERATIONS


def _refuse_of_functions(name: str, given: Mapping[str, Any]) -> None:
    """Refusal for what was said to a kernel of ours that is for functions."""
    if said := [what for what, value in given.items() if value]:
        raise Refusal(f"{', '.join(said)}: only for your own functions; {name} is a built-in kernel")
