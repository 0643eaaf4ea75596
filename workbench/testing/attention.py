"""An assertion on a kernel: it is run on a case, every stage is judged, and what is wrong fails the test."""

import math
import shlex
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, Unpack

import numpy as np

from workbench.case.case import Case
from workbench.case.given import RunOptions
from workbench.explore.lost_keys import on_telling_cases
from workbench.foreign.find import name_of
from workbench.foreign.run import run
from workbench.foreign.target import target_of
from workbench.judge.diff import Diff, diff
from workbench.judge.fails import classed, failing, outcome
from workbench.judge.table import run_row
from workbench.report.command import diff_command
from workbench.testing.examples import by_the_clearest, keep
from workbench.testing.gradients import assert_gradients
from workbench.testing.message import in_a_line, of_run
from workbench.testing.repeat import python_line
from workbench.testing.settings import current
from workbench.trace.trace import Trace


class AttentionWarning(UserWarning):
    """A judgement that passes, and is suspicious by what nobody declared of the kernel.

    >>> import numpy as np
    >>> import pytest
    >>> from workbench.testing import AttentionWarning, assert_close
    >>> a, b = np.random.default_rng(0).standard_normal((2, 32, 32), np.float32)
    >>> tf32 = [(x.view(np.uint32) & 0xFFFFE000).view(np.float32) for x in (a, b)]  # as tensor cores read float32
    >>> with pytest.warns(AttentionWarning, match="they pass with --contract operands=tf32"):
    ...     assert_close(tf32[0] @ tf32[1], lambda a, b: a @ b, {"a": a, "b": b}).verdict
    'suspicious'
    """

    __module__ = "workbench.testing"


class AttentionError(AssertionError):
    """A judgement that fails. Its text is made when it is asked for: hypothesis drops hundreds of these unread.

    >>> from workbench import Case
    >>> from workbench.testing import AttentionError, assert_attention
    >>> try:
    ...     assert_attention("examples/numpy_attention.py:scale_twice", Case(seqlen=16, head_dim=8))
    ... except AttentionError as error:
    ...     error.diff.verdict, error.diff.origin
    ('bug', 'scores')
    """

    __module__ = "workbench.testing"

    def __init__(self, judged: Diff, text: Callable[[Diff], str]) -> None:
        super().__init__(judged)
        self.diff = judged
        self._text, self._said, self._failed = text, "", current.get().failed

    def __str__(self) -> str:
        if not self._said:
            # what is raised while the text is made, by a kernel on a smaller case, may print this error as its context
            self._said = repr(self.diff)
            try:
                self.diff = by_the_clearest(self.diff, self._failed or {})
                self._said = self._text(self.diff)
            except Exception:  # of which Python would print nothing
                self._said += f": its report failed by a defect of the workbench itself\n{traceback.format_exc()}"
        return self._said

    def beside(self, others: Sequence["AttentionError"]) -> "AttentionError":
        """Itself, saying that others are of the same fault."""
        for other in others:
            command = diff_command(other.diff)
            again = f"\nrepeat: {command}" if command else ""
            self._said = f"{self}\n\nthe same fault: {in_a_line(other.diff)}{again}"
        return self


def assert_attention(
    kernel: str | Callable[..., Any],
    case: Case,
    *,
    fail_on: str | None = None,
    gradients: bool | Mapping[str, Any] = False,
    **options: Unpack[RunOptions],
) -> Diff:
    """The judgement of `kernel` on `case`, which passed.

    `kernel` and `options` are those of `workbench.run`. AttentionError where the verdict is bug or missing, nothing
    could be judged, or a gate failed; `fail_on`: the mildest verdict that fails, bug, biased, evidence (suspicious by
    what no known kernel's arithmetic explains) or suspicious. fail_on and, of kernels of ours, backend are those of
    pytest's marker or option where they are not said here; where neither says it, fail_on is evidence. What passes
    and is suspicious is an AttentionWarning.

    A kernel of which out and lse alone were given is run on the cases `telling`, too, in which the absence of any key
    shows, and fails where it fails there; not in a test of hypothesis, whose `cases` have these inputs among others.

    With `gradients` the kernel, a function in torch, is run through autograd, too, with a dout that is drawn, and each
    gradient of what the case has is judged (`testing.gradients`); a mapping tells the conventions of its backward pass.

    The error's text is the report, the smallest case found that fails alike, and what repeats it. In a test of
    hypothesis, which shrinks by itself, no smaller case is searched; `hypothesis.target` is told log2 of the largest x
    of budget; and an example of which nothing could be judged is rejected: it does not count. Refusal and Unavailable
    as of `workbench.run`: they are no AssertionError, since nothing was judged.

    >>> def attention(q, k, v, *, scale, causal):
    ...     weights = np.exp(q @ k.swapaxes(-1, -2) * np.float32(scale))
    ...     return weights @ v / weights.sum(-1, keepdims=True)
    >>> assert_attention(attention, Case(seqlen=16, head_dim=8)).verdict
    'rounding'
    """
    __tracebackhide__ = True
    settings, fails = current.get(), failing(fail_on or current.get().fail_on)
    if settings.backend is not None and target_of(kernel).kernel is not None:
        options = {"backend": settings.backend, **options}
    trace = run(kernel, case, **options)
    if not isinstance(kernel, str) and (name := name_of(kernel)) is not None:
        trace = _named(trace, name)
    shrinks = not in_hypothesis()

    def text(judged: Diff, case: Case = case) -> str:
        again, named = [], bool(diff_command(judged))
        if not named and settings.node:
            again.append(f"repeat: pytest {shlex.quote(settings.node)}")
        if not named or not shrinks:  # what hypothesis drew stands in no source
            again.append(f"in Python: {python_line(kernel, case, options)}")
        if (seen := judged.explained.elsewhere) is not None:  # a smaller example has many causes
            command = diff_command(seen, "explain") or python_line(kernel, seen.trace.case_run, options)
            again.append(f"find the cause: {command}")
        return of_run(judged, effort=settings.shrink_effort if shrinks else 0.0, again=again)

    held(judged := diff(trace), fails, text)
    # hypothesis draws them among its cases
    for other in on_telling_cases(judged) if shrinks else ():
        if classed(other) in fails:
            raise _error_at(other.origin)(other, partial(text, case=other.trace.case_run))
    if gradients:
        again = [f"repeat: pytest {shlex.quote(settings.node)}"] if settings.node else []
        told = {**options, "gradients": True if gradients is True else dict(gradients)}
        again.append(f"in Python: {python_line(kernel, case, told)}")
        assert_gradients(kernel, case, {} if gradients is True else gradients, options, again)
    return judged


def held(judged: Diff, fails: frozenset[str], text: Callable[[Diff], str]) -> Diff:
    """`judged` itself; AttentionError with this text where its outcome is one of `fails`."""
    __tracebackhide__ = True
    settings, over = current.get(), run_row(judged).over_budget
    if settings.checked is not None:
        settings.checked.append(over)
    if over and in_hypothesis():
        _target(over, judged.trace.target)
    if outcome(judged) == "untestable" and in_hypothesis():
        sys.modules["hypothesis"].reject()
    if classed(judged) in fails:
        if settings.failed is not None and in_hypothesis():
            keep(judged, settings.failed)
        raise _error_at(judged.origin)(judged, text)
    if judged.doubt:
        warnings.warn(in_a_line(judged), AttentionWarning, stacklevel=3)
    return judged


def in_hypothesis() -> bool:
    """Whether a test of hypothesis runs an example."""
    return "hypothesis" in sys.modules and sys.modules["hypothesis"].currently_in_test_context()


def _target(over: float, label: str) -> None:
    """Tell hypothesis how near to its budget a kernel came, so that its search climbs."""
    from hypothesis import target
    from hypothesis.errors import InvalidArgument

    try:
        target(math.log2(min(over, np.finfo(np.float64).max)), label=label)
    except InvalidArgument:
        pass  # the kernel's second check in one example: there is one observation for a label


@cache
def _error_at(origin: str | None) -> type[AttentionError]:
    """The error of a first wrong stage: hypothesis takes failures of one type, raised in one line, for the same, and
    would shrink one fault into another.
    """
    return type(AttentionError.__name__, (AttentionError,), {"__module__": AttentionError.__module__})


def _named(trace: Trace, name: str) -> Trace:
    """The trace by the name that the command line has for its kernel."""
    again = trace.rerun

    def once_more(case: Case, inputs: Mapping[str, np.ndarray] | None = None) -> Trace:
        assert again is not None
        return _named(again(case, inputs), name)

    return replace(trace, target=name, rerun=None if again is None else once_more)
