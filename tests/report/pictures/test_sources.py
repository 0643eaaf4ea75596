"""The picture of an element's budget by line of a reference."""

from typing import Any

import numpy as np
import pytest

from tests.refusals import refusal
from tests.report.pictures.figures import texts
from workbench import diff
from workbench.judge.reference.diff import ReferenceDiff
from workbench.report.pictures.sources import MOST, sources


def naive(x: Any) -> Any:
    weights = np.exp(x)
    total = weights.sum(-1, keepdims=True)
    out = weights / total
    return out


def many(x: Any) -> Any:
    # a line each, which is a source each
    x = x * 1.1
    x = x * 1.2
    x = x * 1.3
    x = x * 1.4
    x = x * 1.5
    x = x * 1.6
    x = x * 1.7
    x = x * 1.8
    x = x * 1.9
    x = x * 2.1
    x = x * 2.2
    return x


def judged(reference: Any, dtype: str = "float32", off: float = 0.0) -> ReferenceDiff:
    def kernel(x: Any) -> Any:
        out = np.asarray(reference(x.astype(np.float32)))
        return (out + np.float32(off)).astype(x.dtype)

    x = np.random.default_rng(0).standard_normal((5, 8)).astype(dtype)
    return diff(kernel, reference=reference, inputs={"x": x})


def test_bars_are_shares_of_the_budget_by_line() -> None:
    found = judged(naive)
    figure = sources(found, "out", (2, 3))
    bars = [patch.get_width() for patch in figure.axes[0].patches]
    shares = [one.worst for one in found.sources("out", (2, 3))]
    assert sum(bars) == pytest.approx(1) and bars == pytest.approx([x / sum(shares) for x in shares])
    said = texts(figure)
    assert any("weights = np.exp(x)" in one for one in said)
    assert any(one.startswith("budget of out[2, 3]") for one in said)
    assert any(one.startswith(" error 0.") for one in said) and found.headline in said


def test_the_worst_element_is_drawn_and_what_is_beyond_has_no_mark() -> None:
    found = judged(naive, off=1.0)
    said = texts(sources(found, "out"))
    place = ", ".join(map(str, found["out"].worst(1)[0].place))
    assert any(one.startswith(f"budget of out[{place}]") for one in said)
    assert not any(one.startswith(" error") for one in said)


def test_narrow_results_round_and_many_lines_are_one_bar() -> None:
    assert "its own rounding to bfloat16" in texts(sources(judged(naive, "bfloat16"), "out", (0, 0)))
    figure = sources(judged(many), "x", (0, 0))
    assert len(figure.axes[0].patches) == MOST and "2 more lines" in texts(figure)


def test_refusals() -> None:
    assert refusal(sources, judged(naive), "result").startswith("stage 'result'")
    assert refusal(sources, judged(naive), "out", (0, 9)) == "stage out: axis 1 must be 0 to 7; got 9"
