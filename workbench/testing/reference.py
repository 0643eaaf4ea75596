"""An assertion on arrays alone, held against a plain reference."""

import shlex
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workbench.judge.fails import classed, failing
from workbench.judge.reference.diff import ReferenceDiff
from workbench.operations.reference.call import diff_results
from workbench.reference.graph import Contract
from workbench.testing.attention import AttentionWarning
from workbench.testing.settings import current


def assert_close(
    actual: Any,
    reference: Callable[..., Any] | Sequence[Callable[..., Any]],
    inputs: Mapping[str, Any],
    *,
    contract: str | Contract | None = None,
    gradients: bool = False,
    fail_on: str | None = None,
) -> ReferenceDiff:
    """The judgement of `actual`, which is what `reference(**inputs)` says, element by element, within what rounding may
    do; no tolerance is given.

    actual: an array or a number, a tuple of them in the order in which the reference returns them, or a dict by the
    names of its results and stages. reference: a function on arrays of NumPy or torch; of several it is right by one.
    inputs: its arguments by keyword, as the kernel read them. contract: how the kernel computes, such as
    "operands=tf32"; None: in float32, products of 16-bit inputs in that dtype. gradients: `actual` is a dict and has
    `d<input>`, too, made from `d<result>` among the inputs; the reference is in torch. fail_on: as of
    `assert_attention`.

    What passes and is suspicious, since only arithmetic that nobody declared explains it, is an AttentionWarning.
    Raises AssertionError, with the report, where a stage is wrong, where errors are larger than chance allows, and
    where fewer than 99 % of the elements could be judged; Refusal for what does not fit.

    >>> import numpy as np
    >>> def softmax(x):
    ...     weights = np.exp(x - x.max())
    ...     return weights / weights.sum()
    >>> x = np.arange(8, dtype=np.float32)
    >>> assert_close(np.exp(x) / np.exp(x).sum(), softmax, {"x": x}).verdict
    'rounding'
    """
    __tracebackhide__ = True  # of pytest
    judged = diff_results(actual, reference, inputs, contract=contract, gradients=gradients)
    if classed(judged) in failing(fail_on or current.get().fail_on):
        why = judged.origin or (judged.gates or ("default arithmetic does not explain the errors",))[0]
        said = f"{judged.verdict}: {why}\n{judged}"
        node = current.get().node
        raise AssertionError(f"{said}\nrepeat: pytest {shlex.quote(node)}" if node else said)
    if judged.doubt:
        reason = next(f"{one.name}: {one.reason}" for one in judged.stages if one.verdict == "suspicious")
        warnings.warn(f"{judged.headline} is suspicious: {reason}", AttentionWarning, stacklevel=2)
    return judged
