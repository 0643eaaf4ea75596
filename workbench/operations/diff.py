"""`workbench.diff`: a trace judged by what attention is, or a function by a plain reference."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from workbench.judge import diff as of_attention
from workbench.judge.diff import Diff
from workbench.refusal import Refusal
from workbench.trace.trace import Trace

if TYPE_CHECKING:
    from workbench.judge.reference.diff import ReferenceDiff
    from workbench.reference.graph import Contract


@overload
def diff(
    of: Trace, *, device: str = "auto", report: bool = False, measure: bool = False, effort: float = 1.0
) -> Diff: ...
@overload
def diff(
    of: str | Callable[..., Any],
    *,
    reference: str | Callable[..., Any] | Sequence[str | Callable[..., Any]],
    inputs: Mapping[str, Any] | Callable[..., Any] | str | Path,
    dtype: str | None = None,
    seed: int = 0,
    axes: Mapping[str, int] | None = None,
    contract: "str | Contract | None" = None,
    arrays: str | None = None,
    device: str | None = None,
    backend: str = "auto",
    gradients: bool = False,
) -> "ReferenceDiff": ...
def diff(of: Any, *, reference: Any = None, **given: Any) -> Any:
    """The judgement of a trace, stage by stage, as of `workbench.judge.diff.diff`; of a function, with a `reference` in
    plain code and `inputs`, as of `workbench.operations.reference.call.diff_reference`.

    Refusal for a function without a reference, and for a trace with one.

    >>> from workbench import Case, run
    >>> found = diff(run("examples/numpy_attention.py:scale_twice", Case(seqlen=16, head_dim=8)))
    >>> found.verdict, found.origin, found.victims
    ('bug', 'scores', ('out',))

    >>> import numpy as np
    >>> def naive(x):
    ...     return x / x.sum()
    >>> diff(lambda x: x / x.sum() * 1.001, reference=naive, inputs={"x": np.ones(4, np.float32)}).verdict
    'bug'
    """
    if isinstance(of, Trace):
        if reference is not None:
            raise Refusal("a trace is of attention, which needs no reference; pass the function and its inputs")
        return of_attention.diff(of, **given)
    if reference is None or "inputs" not in given:
        missing = "inputs" if reference is not None else "reference"
        raise Refusal(f"diff takes a trace, or a function with reference= and inputs=; {missing} is missing")
    from workbench.operations.reference.call import diff_reference  # a trace needs none of it

    return diff_reference(of, reference, **given)
