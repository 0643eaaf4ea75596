"""Formulas that are causes, since they are found again."""

from typing import Any

import numpy as np
import pytest

from workbench import Case, diff, run
from workbench.judge.explain.explain import Explained

CASE = Case(heads=2, seqlen=48, head_dim=16)


def explained(fault: str, case: Case = CASE, **options: Any) -> Explained:
    def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> dict[str, np.ndarray]:
        scores = (q @ k.swapaxes(-1, -2)) * np.float32(scale)
        probs = np.exp(scores - scores.max(-1, keepdims=True))
        out = probs @ v / probs.sum(-1, keepdims=True)
        if fault == "halves of odd rows":
            out[:, :, 1::2] = out[:, :, 1::2, np.arange(16) ^ 8]
        if fault == "noise":
            out = out * (1 + np.random.default_rng(q.shape[2]).random(out.shape, np.float32))
        if fault == "head alone":
            factors = np.random.default_rng(int(abs(q).sum())).random((q.shape[0], q.shape[1], 1, 1), np.float32)
            out = out * factors
        return {"scores": scores, "out": out}

    return diff(run(attention, case)).explain(0.2)


def test_a_formula_that_is_found_again_is_a_cause() -> None:
    found = explained("halves of odd rows")
    (cause,) = found.causes
    assert cause.id == "formula.out" and cause.text == "where out is wrong, actual at d = expected at d ^ 8"
    assert cause.trial is not None and cause.trial.held and cause.trial.of == 3
    assert cause.fit.values == cause.fit.of == 2 * 24 * 16 and cause.fit.off == 0
    assert found.unexplained == () and found.unknown() == {"stages": [], "patterns": [], "formulas": []}


@pytest.mark.campaign
@pytest.mark.parametrize("fault", ["noise", "head alone"])
def test_what_is_another_in_each_run_is_none(fault: str) -> None:
    found = explained(fault)
    assert found.causes == () and found.unexplained == ("out",)
