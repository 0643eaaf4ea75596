"""Functions of operations beside attention in a test suite."""

import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Unpack

from workbench.foreign.find import name_of
from workbench.operations.call import Asked, diff_operation
from workbench.operations.judge import OperationDiff
from workbench.operations.operation import Operation
from workbench.testing.settings import current


def assert_operation(
    target: str | Callable[..., Any], operation: str | Operation, **given: Unpack[Asked]
) -> OperationDiff:
    """The judgement of a function of an operation that has no wrong stage; `given` as of `call.diff_operation`.

    Raises AssertionError, with the report and what repeats it, where a stage is wrong, and where nothing could be
    judged; Refusal as `diff_operation` does.

    >>> import numpy as np
    >>> def rmsnorm(x, weight, *, eps):
    ...     return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(eps)) * weight
    >>> assert_operation(rmsnorm, "rmsnorm", axes={"rows": 4, "dim": 16}).verdict
    'rounding'
    """
    __tracebackhide__ = True  # of pytest
    judged = diff_operation(target, operation, **given)
    if not isinstance(target, str) and (name := name_of(target)) is not None:
        judged = replace(judged, run=replace(judged.run, target=name))
    if judged.fails:
        why = judged.origin or (judged.run.gates or ["nothing could be judged"])[0]
        said = f"{judged.verdict}: {why}\n{judged}"
        node = current.get().node
        raise AssertionError(f"{said}\nrepeat: pytest {shlex.quote(node)}" if node else said)
    return judged
