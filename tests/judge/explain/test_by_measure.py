"""Functions that can be called are measured before the library is asked."""

import re
from collections.abc import Callable

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
    (proof,) = [line for line in lines(judged, found) if "tried on 2 fresh cases" in line]
    assert re.search(r"with --seed \d+: RMS error \d\.\de-?\d+; the hypothesis leaves \d\.\de-\d+$", proof)


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
