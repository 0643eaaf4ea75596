"""Stages given in part by a foreign function: only what was given is judged, and wrong ways to give it are refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from workbench import Case, Refusal, diff, run
from workbench.case.box import parse
from workbench.case.stages import STAGES
from workbench.expectation.elements import State
from workbench.expectation.observed import Observed
from workbench.judge.blocks import comparisons
from workbench.trace.narrow import narrowed

CASE = Case(seqlen=24, heads=2, head_dim=16)
INDICES = np.array([[0, 0, 3, 5], [0, 1, 23, 0], [0, 1, 4, 4]])


def kernel(returned: Callable[[dict[str, np.ndarray]], dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """A function that returns some of plain attention's stages."""

    def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> dict[str, Any]:
        qk = q @ k.swapaxes(-1, -2)
        scores = qk * np.float32(scale)
        probs = np.exp(scores - scores.max(-1, keepdims=True))
        return returned({"qk": qk, "scores": scores, "out": probs @ v / probs.sum(-1, keepdims=True)})

    return attention


def part(stage: np.ndarray, indices: np.ndarray = INDICES, by: float = 1.0) -> dict[str, np.ndarray]:
    return {"indices": indices, "values": stage[tuple(indices.T)] * np.float32(by)}


def test_only_the_elements_that_were_given_are_judged() -> None:
    for by, verdict, outside in ((1.0, "exact", 0), (1.01, "bug", 3)):
        found = diff(run(kernel(lambda s: {"qk": s["qk"], "scores": part(s["scores"], by=by), "out": s["out"]}), CASE))  # noqa: B023
        comparison = found["scores"].isolated
        # it is judged from qk, which was given whole; out is judged from qk too, since scores are not whole
        assert comparison is not None and found["scores"].verdict == verdict
        assert (comparison.summary.size, comparison.summary.outside) == (3, outside)
        assert np.argwhere(comparison.state != State.ABSENT).tolist() == sorted(INDICES.tolist())
        assert found["out"].judged_from == ("qk",) and found["out"].verdict == "rounding"
        assert "upstream" not in found["out"].reason and "scores" not in found["out"].upstream


def test_tiles_come_from_the_contract() -> None:
    values = {"indices": np.array([[0, 0, 3, 1]]), "values": np.array([7.0], np.float32)}
    found = diff(run(kernel(lambda s: {"row_max": values, "contract": {"block_k": 16}}), CASE))
    assert found["row_max"].verdict == "bug" and found["row_max"].judged.actual.shape == (1, 2, 24, 2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"qk": {"index": [], "values": []}},
            'attention: qk: a stage given in part must be a dict of "indices" and "values"; got [\'index\', '
            "'values']",
        ),
        (
            {"qk": {"indices": INDICES[:, :3], "values": np.zeros(3)}},
            "attention: qk: indices must be whole numbers of shape [n, 4] and values [n]; got [3, 3] of int64 and [3]",
        ),
        (
            {"qk": {"indices": INDICES * 1.0, "values": np.zeros(3)}},
            "attention: qk: indices must be whole numbers of shape [n, 4] and values [n]; got [3, 4] of float64 and [3]",
        ),
        (
            {"qk": {"indices": INDICES, "values": np.zeros(3, int)}},
            "attention: qk: values must be an array of float32, float16, bfloat16 or float64; got int64",
        ),
        (
            {"qk": {"indices": INDICES + [[0, 0, 0, 20]], "values": np.zeros(3)}},
            "attention: qk: stage qk: key k must be 0 to 23; got 25",
        ),
        (
            {"qk": {"indices": INDICES[[0, 1, 0]], "values": np.zeros(3)}},
            "attention: qk: indices name an element twice",
        ),
        (
            {"row_max": {"indices": INDICES, "values": np.zeros(3)}},
            "attention: row_max: stage row_max has the axis t (tile), which needs block_k: pass --block-k for a log, or return "
            'block_k in the "contract"',
        ),
        (
            {"kq": {"indices": INDICES, "values": np.zeros(3)}},
            f"attention returned unknown stages kq; stages are: {', '.join(STAGES)}",
        ),
    ],
)
def test_what_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(Refusal) as refused:
        run(kernel(lambda stages: given), CASE)
    assert str(refused.value) == message


def test_a_kernel_on_codes_gives_whole_stages() -> None:
    given = {"indices": np.array([[0, 0, 0, 0]]), "values": np.zeros(1)}
    with pytest.raises(Refusal) as refused:
        run(kernel(lambda stages: {"dequant_q": given}), CASE.but(codes="e4m3"))
    assert str(refused.value) == "attention: a quantised kernel must return whole stages; dequant_q is in part"


def test_a_window_on_a_stage_given_in_part() -> None:
    trace = run(kernel(lambda s: {"scores": part(s["scores"])}), CASE)
    found = diff(narrowed(trace, parse("h=1", trace.case)))["scores"].decisive
    assert found is not None and found.summary.size == 2 and found.summary.outside == 0


def test_torch_judges_them_alike() -> None:
    """Where a trace is judged by torch; "cpu:0" is torch's name of the processor, "cpu" that of NumPy here."""
    pytest.importorskip("torch")
    trace = run(kernel(lambda s: {"qk": part(s["qk"], by=1.01), "scores": part(s["scores"]), "out": s["out"]}), CASE)
    by_numpy, by_torch = (comparisons(Observed(trace), [*trace.stages], device) for device in ("cpu", "cpu:0"))
    for name in trace.stages:
        for one, other in zip(by_numpy[name], by_torch[name], strict=True):
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                assert np.array_equal(one.state, other.state) and one.summary.size == other.summary.size > 0
                assert np.allclose(one.over_budget, other.over_budget, rtol=1e-5, equal_nan=True)
