"""Functions that can be called are measured before the library is asked."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from workbench import Case, diff, run
from workbench.judge.explain import cover
from workbench.judge.explain import explain as explaining
from workbench.report.causes import lines

CASE = Case(heads=2, seqlen_q=40, seqlen_k=48, head_dim=16)


def _with(rows: Callable[[np.ndarray], np.ndarray]) -> Callable[..., np.ndarray]:
    """Attention whose rows of K are those that `rows` makes of them."""

    def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> np.ndarray:
        scores = q @ rows(k).swapaxes(-1, -2) * np.float32(scale)
        probs = np.exp(scores - scores.max(-1, keepdims=True))
        return probs / probs.sum(-1, keepdims=True) @ v

    return attention


def _scattered(k: np.ndarray) -> np.ndarray:
    """Rows of K in an order of no rule, of which the library has no name."""
    return k[:, :, np.random.default_rng(3).permutation(k.shape[2])]


def _of_batch_0(k: np.ndarray) -> np.ndarray:
    return k[:, [0, 0]]


def test_what_is_measured_is_not_searched_in_pairs_and_other_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    def pairs(*_: object, **__: object) -> None:
        raise AssertionError("pairs of hypotheses are tried of what was measured")

    monkeypatch.setattr(cover, "pairs", pairs)
    judged = diff(run(_with(_scattered), CASE))
    found = judged.explain(0.2)
    (cause,) = found.causes
    assert cause.id == "measured.elements" and cause.text.startswith("K is read wrong") and cause.proved
    assert cause.fit.stages == ("out",) and found.unexplained == ()
    (proof,) = [line for line in lines(judged, found) if "confirmed on 2 fresh cases" in line]
    assert re.search(
        r"with --seed \d+: RMS error \d\.\de-?\d+ against the reference; \d\.\de-\d+ with the cause injected into it$",
        proof,
    )


def test_what_has_a_name_is_told_by_its_name() -> None:
    (cause,) = diff(run(_with(_of_batch_0), CASE)).explain().causes
    assert cause.id == "layout.head-zero-k" and cause.stands and not cause.measured


def test_what_is_known_of_a_part_is_no_second_name_of_the_whole() -> None:
    found = explaining._with_measured([_Named("out")], [_Named("out", "lse")], ["out", "lse"])  # type: ignore[list-item]
    assert [cause.fit.stages for cause in found] == [("out", "lse")]
    found = explaining._with_measured([_Named("out", "lse")], [_Named("out"), _Named("lse")], ["out", "lse"])  # type: ignore[list-item]
    assert [cause.fit.stages for cause in found] == [("out", "lse")]
    found = explaining._with_measured([_Named("lse")], [_Named("out")], ["out", "lse"])  # type: ignore[list-item]
    assert [cause.fit.stages for cause in found] == [("lse",), ("out",)]


class _Named:
    """What a cause is here: the stages that it reproduces."""

    def __init__(self, *stages: str) -> None:
        self.fit = self
        self.stages = stages


def eager(
    q: Any, k: Any, v: Any, *, scale: float, causal: bool, change: Callable[..., Any], of: str = "v"
) -> np.ndarray:
    """Attention that reads v, or sums, otherwise than it should."""
    q, k, v = (x.astype(np.float32) for x in (q, k, v))
    v = change(v) if of == "v" else v
    scores = q @ k.swapaxes(-1, -2) * np.float32(scale)
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, np.float32(-np.inf))
    probs = np.exp(scores - scores.max(-1, keepdims=True))
    total = probs.sum(-1, keepdims=True)
    found: np.ndarray = probs @ v / (change(total) if of == "sum" else total)
    return found


def _page_before(v: np.ndarray) -> np.ndarray:
    rows = np.arange(v.shape[2])
    return v[:, :, np.where(rows // 12 % 2 == 1, rows - 12, rows)]


#: what is wrong, no fault of the library -> the function, and words of the cause
WRONG = {
    "a page": (partial(eager, change=_page_before), "rows 12-23, 36-47 come from row i - 12"),
    "dims": (partial(eager, change=lambda v: v[..., [5, *range(1, 5), 0, *range(6, 16)]]), "V is read wrong"),
    "sum": (
        partial(eager, of="sum", change=lambda x: x + np.float32(3)),
        "the denominator is the sum of e^(s - max) plus 3",
    ),
    "rows": (partial(eager, change=lambda v: np.roll(v, 8, 2)), "row i is row i + 8 (mod 48)"),
}


@pytest.mark.campaign(but=2)
@pytest.mark.parametrize("what", WRONG)
def test_a_report_names_what_measuring_finds(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the work of a report, and no more where its effort is 0."""
    monkeypatch.setattr("workbench.judge.diff.QUICK", 200.0)
    function, words = WRONG[what]
    trace = run(function, Case(heads=2, seqlen_q=48, seqlen_k=48, head_dim=16))
    judged = diff(trace)
    (cause,) = judged.explained.causes
    assert words in cause.text and cause.measured and cause.proved
    assert f"cause: {cause.text}" in str(judged) and "no cause" not in str(judged)
    assert not diff(trace, effort=0.0).explained.causes


def test_a_report_measures_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.judge.diff.QUICK", 0.0)
    calls = 0

    def function(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> np.ndarray:
        nonlocal calls
        calls += 1
        return WRONG["a page"][0](q, k, v, scale=scale, causal=causal)

    trace = run(function, Case(heads=2, seqlen_q=48, seqlen_k=48, head_dim=16))
    before = calls
    assert not diff(trace, effort=0.01).explained.causes
    assert 0 < calls - before < 8
    assert diff(trace, effort=1.0).explained.causes
