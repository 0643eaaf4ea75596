"""Budgets over stages that nobody saw: wide enough for correct kernels, and with a declared cast narrow enough for a
wrong one.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from tests.builds import draw_few_builds
from workbench import Case, Trace, diff, run
from workbench.expectation.elements import State
from workbench.expectation.expectation import Expectation
from workbench.expectation.observed import Observed
from workbench.explore.sample import sample
from workbench.reference.bound import Bound
from workbench.reference.losses import without
from workbench.reference.stage import Bounded, Ref
from workbench.reference.walk import budgets

#: what a run may leave behind
DUMPS = {
    "lean": ("scores", "row_max", "row_sum", "acc", "partial_max", "partial_sum", "partial_O", "out", "lse"),
    "output": ("out", "lse"),
    "partials": ("partial_O", "partial_max", "partial_sum", "out"),
    "ends": ("scores", "out", "lse"),
    "probs": ("probs", "acc", "out"),
}


def only(trace: Trace, names: tuple[str, ...]) -> Trace:
    return replace(trace, stages={name: x for name, x in trace.stages.items() if name in names}, requested=())


@pytest.mark.campaign
@pytest.mark.parametrize("kernel", ["flash", "split_k"])
def test_correct_kernels_are_right_whatever_they_leave_behind(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    draw_few_builds(monkeypatch)
    random = np.random.default_rng(11)
    judged = 0
    for cast in ("float32", "bfloat16") * 3:
        case = sample(random, kernel, dtype=cast).but(probs_dtype=cast)
        trace = run(kernel, case, backend="emulator")
        for dump, names in DUMPS.items():
            found = diff(only(trace, names))
            assert found.verdict in ("exact", "rounding"), (dump, found, case)
            judged += len(found.stages)
    assert judged > 80


@dataclass(frozen=True, eq=False)
class OffBy:
    """Scores that are off by so much, whatever they are made of."""

    of: Ref
    error: np.ndarray

    def bound(self, at: Any) -> Bounded:
        return Bounded(Bound(self.error, 0.0, 0.0))


@pytest.mark.campaign
def test_the_worst_errors_of_scores_fill_the_budgets_of_out_and_lse_but_for_cauchy_and_schwarz() -> None:
    """Every score off by its whole budget, to the side that moves one dim of out, or lse, farthest; nothing else is
    lost. For normal values mean |x| is 0.8 of the root of the mean of x^2.
    """
    case = Case(seqlen=96, head_dim=32, block_q=32, block_k=32)
    trace = run("flash", case, probes="output", backend="emulator")
    expectation = Expectation(Observed(trace), {}, statistics=False)
    problem, computed = expectation.problem, expectation.computed
    scores, v = computed["scores"], problem.inputs["v"]
    error = expectation.budgets(["scores"])["scores"].bound
    off: Any = OffBy("qk", error)
    table = {**problem.table, "scores": replace(problem.table["scores"], step=off)}
    lossless = replace(problem, table=table, losses=without(problem.losses))
    bounds = budgets(lossless, computed, ["out", "lse"])

    def attention(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        weights = np.exp(scores)
        total = weights.sum(axis=-1, keepdims=True)
        return weights / total @ v, np.log(total[..., 0])

    out, lse = attention(scores)
    moved = np.abs(attention(scores + error)[1] - lse)
    assert np.all(moved <= bounds["lse"].bound) and np.all(moved / bounds["lse"].bound > 0.99)
    for dim in (0, 31):
        side = np.sign(v[:, :, None, :, dim] - out[..., dim, None])
        moved = np.abs(attention(scores + error * side)[0] - out)[..., dim]
        ratio = moved / bounds["out"].bound[..., dim]
        assert ratio.size == 96 and np.all(ratio <= 1) and abs(np.median(ratio) - np.sqrt(2 / np.pi)) < 0.05


CASE = Case(seqlen=96, heads=2, head_dim=32, block_q=32, block_k=32, dtype="bfloat16", probs_dtype="bfloat16")


@pytest.mark.campaign
def test_a_declared_cast_of_probs_is_predicted_from_out_and_lse_alone() -> None:
    """Most elements have one value that is right, so that a cast toward zero shows without any other stage."""
    right = diff(run("flash", CASE, probes="output", backend="emulator"))["out"].propagated
    assert right.summary.count(State.EXACT) > 0.98 * right.summary.size
    wrong = run("flash", CASE, faults=["flash-probs-truncated"], probes="output", backend="emulator")
    assert diff(wrong).origins == ("out",)
    # a contract that does not tell the cast has to allow for either
    unknown = replace(wrong.contract, assumed=("probs_dtype", "probs_rounding"), probs_rounding="any")
    assert diff(replace(wrong, contract=unknown, rerun=None)).origins == ()
