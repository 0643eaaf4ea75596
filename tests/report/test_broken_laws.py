"""What is said of the laws that a kernel breaks whose fault nothing reproduces."""

from dataclasses import replace
from typing import Any

import numpy as np

from workbench import Case, run
from workbench.explore.laws.every import of_trace
from workbench.report.broken_laws import document, lines
from workbench.trace.narrow import narrowed
from workbench.trace.trace import Trace

CASE = Case(heads=2, seqlen=20, head_dim=16)


def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool, leak: float = 0.0) -> Any:
    scores = q @ np.swapaxes(k, -1, -2) * np.float32(scale)
    top = scores.max(-1)
    probs = np.exp(scores - top[..., None])
    total = probs.sum(-1) + np.float32(leak)
    return probs @ v / total[..., None], top + np.log(total)


def phantom(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    """A key that does not exist, whose score is the largest."""
    return attention(q, k, v, scale=scale, causal=causal, leak=1.0)


def said(trace: Trace) -> tuple[list[str], dict[str, Any]]:
    found = of_trace(trace)
    assert found is not None
    return lines(found, "workbench laws mine.py:f"), document(found)


def test_broken_laws_are_named() -> None:
    text, told = said(run(phantom, CASE))
    assert told["broken"] == ["exact-inputs"] and "rows-alone" in told["held"]
    assert text == [f"laws: 1 of {1 + len(told['held'])} broken: exact-inputs; `workbench laws mine.py:f` shows how"]


def test_a_right_kernel_breaks_none() -> None:
    text, told = said(run(attention, CASE))
    assert told["broken"] == [] and len(told["held"]) > 8
    assert text == [f"laws: all {len(told['held'])} hold"]


def test_a_trace_that_cannot_be_run_again_is_not_asked() -> None:
    trace = run(phantom, CASE)
    assert of_trace(replace(trace, rerun=None)) is None and of_trace(narrowed(trace, "h=1")) is None
