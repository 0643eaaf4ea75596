"""Gradients of a kernel in a test suite: what autograd makes of its forward pass, judged."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workbench.case.case import Case
from workbench.case.inputs import by_name
from workbench.foreign.adapters import adapter_of
from workbench.foreign.keywords import Asked
from workbench.foreign.target import target_of
from workbench.operations.judge import OperationDiff, judged
from workbench.operations.of_attention import backward_case
from workbench.operations.run import run_operation
from workbench.operations.through_autograd import through_autograd
from workbench.refusal import Refusal
from workbench.trace.inputs import taken

#: options of `workbench.run` that a run through autograd has, or that are of the forward pass alone
TAKEN = ("arrays", "device", "layout", "inputs", "contract", "backend", "calibration", "runs")


class GradientWarning(UserWarning):
    """Gradients that are right by conventions that nobody told.

    >>> import torch
    >>> import warnings
    >>> from workbench import Case
    >>> from workbench.testing import GradientWarning, assert_attention
    >>> def attention(q, k, v, *, scale, causal):
    ...     return torch.softmax(q @ k.mT * scale, -1) @ v
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", GradientWarning)  # conventions have to be told
    ...     assert_attention(attention, Case(seqlen=16, head_dim=8), arrays="torch", gradients=True).verdict
    'rounding'
    """

    __module__ = "workbench.testing"


def assert_gradients(
    kernel: str | Callable[..., Any],
    case: Case,
    conventions: Mapping[str, Any],
    options: Mapping[str, Any],
    again: Sequence[str],
) -> OperationDiff:
    """The judgement of the gradients of q, k, v, and of sinks and a bias where the case has them, of a forward pass in
    torch that `kernel` is, with a normal dout; AssertionError, whose text ends with the lines `again`, where one is
    wrong or nothing could be judged. Gradients that are right by other conventions of known kernels, alone or together,
    where none were told, are a GradientWarning. Refusal for kernels, cases and options that autograd does not take.
    """
    __tracebackhide__ = True  # of pytest
    found = target_of(kernel)
    if not found.is_foreign:
        raise Refusal(f"gradients= needs a torch function; {found.name} is {found.kind.value}")
    function, name = found.function(), found.name
    if adapter_of(function) is None and options.get("arrays") != "torch":
        raise Refusal(f"gradients= needs a torch function: pass arrays='torch'; got {options.get('arrays', 'numpy')}")
    if other := [option for option in options if option not in TAKEN]:
        raise Refusal(f"gradients= takes no {', '.join(other)}")
    inputs = None if options.get("inputs") is None else taken(options["inputs"], name)
    of, read = backward_case(case, inputs, conventions)
    device, layout = options.get("device"), options.get("layout", "bhsd")
    if layout == "strided":
        raise Refusal("gradients= needs layout bhsd or bshd; got strided")
    asked = Asked(case, by_name(case, inputs), None if inputs is None else inputs.get("mask"))
    backward = through_autograd(function, name, asked, device=device, layout=layout)
    got = judged(run_operation(backward, of, name=name, arrays="torch", device=device, inputs=read))
    if got.verdict == "untestable" or (got.origin is not None and not got.explained_by):
        said = f"{got.verdict} in {', '.join(got.origins) or 'every gradient'} ({name})"
        raise AssertionError("\n".join([said, "", str(got), *again]))
    if got.origin is not None:
        words = "; or ".join(words for words, _ in got.explained_by)
        told = dict(got.explained_by[0][1])
        warnings.warn(f"{name}: gradients are right with {words}: pass gradients={told}", GradientWarning, stacklevel=3)
    return got
