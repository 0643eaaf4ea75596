"""Formulas that are causes, since they are found again."""

from typing import Any

import numpy as np
import pytest

from workbench import Case, diff, run
from workbench.judge.explain.explain import Explained

CASE = Case(heads=2, seqlen=48, head_dim=16)
#: of no family: each row's sum has in it a share of its output's first dims
SHARE = np.float32(0.3)


def explained(fault: str, case: Case = CASE, **options: Any) -> Explained:
    def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> dict[str, np.ndarray]:
        scores = (q @ k.swapaxes(-1, -2)) * np.float32(scale)
        if fault == "scores of a third":
            scores = scores * np.float32(0.37)
        probs = np.exp(scores - scores.max(-1, keepdims=True))
        out = probs @ v / probs.sum(-1, keepdims=True)
        if fault == "other dims":
            out = out[..., (np.arange(16) * 5 + 3) % 16]
        if fault == "noise":
            out = out * (1 + np.random.default_rng(q.shape[2]).random(out.shape, np.float32))
        if fault == "head alone":
            factors = np.random.default_rng(int(abs(q).sum())).random((q.shape[0], q.shape[1], 1, 1), np.float32)
            out = out * factors
        return {"scores": scores, "out": out}

    return diff(run(attention, case)).explain(2)


@pytest.mark.parametrize(("fault", "stage", "words"), [("scores of a third", "scores", "actual = expected * 0.37")])
def test_a_formula_that_is_found_again_is_a_cause(fault: str, stage: str, words: str) -> None:
    found = explained(fault)
    (cause,) = found.causes
    assert cause.id == f"formula.{stage}" and cause.text == f"{stage}: {words}"
    assert cause.trial is not None and cause.trial.held and cause.trial.of == 3
    assert cause.fit.values == cause.fit.of == CASE.score_count and cause.fit.off == 0
    assert found.unexplained == () and found.unknown() == {"stages": [], "patterns": [], "formulas": []}


@pytest.mark.parametrize("fault", ["noise", "head alone"])
def test_what_is_another_in_each_run_is_none(fault: str) -> None:
    found = explained(fault)
    assert found.causes == () and found.unexplained == ("out",)
