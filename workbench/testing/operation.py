"""Functions of operations beside attention in a test suite."""

from collections.abc import Callable
from typing import Any

from workbench.operations.call import diff_operation
from workbench.operations.judge import OperationDiff
from workbench.operations.operation import Operation


def assert_operation(target: str | Callable[..., Any], operation: str | Operation, **given: Any) -> OperationDiff:
    """The judgement of a function of an operation that has no wrong stage; `given` as of `workbench.diff_operation`.

    Raises AssertionError, with the report, where a stage is wrong, and where nothing could be judged; Refusal as
    `diff_operation` does.
    """
    __tracebackhide__ = True  # of pytest
    judged = diff_operation(target, operation, **given)
    if judged.origin is not None or judged.verdict == "untestable":
        raise AssertionError(f"{judged.verdict}: {judged.origin or 'nothing could be judged'}\n{judged}")
    return judged
