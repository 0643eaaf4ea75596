"""Statistical budgets: below the worst case, rarely exceeded by independent roundings, exceeded by what is not."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from workbench import Case, Trace, diff, run
from workbench.case.presets import fields_of
from workbench.expectation.elements import State
from workbench.floats import to_float64
from workbench.reference.bound import EXACT, Bound, deviations, root_of_squares, statistical

CASE = Case(seqlen=96, heads=2, head_dim=128, block_q=32, block_k=32)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return run("flash", CASE, backend="emulator")


def test_lambda_is_that_of_a_family_of_errors() -> None:
    assert deviations(10**6) == pytest.approx(np.sqrt(2 * np.log(2e12)))
    assert deviations(1) < deviations(10**6) < 8


def test_a_statistical_bound_is_never_beyond_the_worst_case() -> None:
    assert statistical(EXACT, 100) == 0
    assert statistical(Bound(1.0, 0.5, 0.2), 100) == 1.0
    assert statistical(Bound(1.0, 0.01, 0.2), 100) == pytest.approx(0.2 + 0.01 * deviations(100))
    assert root_of_squares(3.0, 4.0) == 5.0


def test_sums_of_many_terms_have_tighter_statistical_budgets(trace: Trace) -> None:
    judged = diff(trace)
    for name in ("qk", "acc"):
        share = judged[name].isolated.statistical
        assert share.size and np.all((share > 0) & (share <= 1)) and np.median(share) < 0.7, name
    # single roundings have no statistics
    assert np.all(judged["row_max"].isolated.statistical == 1)


def test_an_error_between_both_budgets_is_suspicious(trace: Trace) -> None:
    isolated = diff(trace)["qk"].isolated
    share = isolated.statistical.astype(np.float64)
    place = np.unravel_index(np.argmin(share), share.shape)
    changed = trace.stages["qk"].copy()
    changed[place] = isolated.expected[place] + isolated.budget[place] * (1 + share[place]) / 2
    found = diff(replace(trace, stages={"qk": changed}, requested=()))
    assert found["qk"].isolated.state[place] == State.SUSPICIOUS
    assert found["qk"].verdict == "suspicious" and found.verdict == "suspicious" and found.origins == ()


@pytest.mark.parametrize("seed", range(5))
def test_roundings_in_any_order_keep_within_statistical_budgets(trace: Trace, seed: int) -> None:
    """qk again in float32, its terms in random orders: no element of 18 000 beyond the statistical budget."""
    q, k, _ = (x.astype(np.float32) for x in trace.inputs.values())
    order = np.random.default_rng(seed).permutation(CASE.head_dim)
    products = q[..., :, None, order] * k[..., None, :, order]
    qk = np.cumsum(products, axis=-1, dtype=np.float32)[..., -1]
    found = diff(replace(trace, stages={"qk": qk}, requested=()))["qk"].isolated
    assert found.summary.judged == qk.size and found.summary.count(State.EXACT, State.ROUNDING) == qk.size


def test_errors_that_are_not_independent_exceed_them(trace: Trace) -> None:
    """Every term of the sum truncated by an ulp in the same direction: within the worst case, beyond chance."""
    isolated = diff(trace)["qk"].isolated
    q, k, _ = (to_float64(x) for x in trace.inputs.values())
    terms = np.abs(q) @ np.abs(k).swapaxes(-1, -2)
    shifted = (isolated.expected + 0.8 * CASE.head_dim * 2.0**-24 * terms).astype(np.float32)
    found = diff(replace(trace, stages={"qk": shifted}, requested=()))["qk"]
    assert found.verdict == "suspicious" and found.isolated.summary.count(State.SUSPICIOUS) > shifted.size / 2


@pytest.mark.parametrize("head_dim", [16, 64, 128])
@pytest.mark.parametrize("seed", range(3))
def test_a_rounding_to_either_side_of_a_tie_is_not_suspicious(head_dim: int, seed: int) -> None:
    """softmax(q @ k^T * scale) @ v in float16, as Hugging Face's eager attention: products and scores are rounded."""
    case = Case(seqlen=96, heads=2, head_dim=head_dim, dtype="float16", seed=seed)
    assert diff(run(_eager(1.0), case)).verdict == "rounding"
    assert diff(run(_eager(1.002), case)).verdict == "bug"


def _eager(factor: float) -> Callable[..., dict[str, Any]]:
    def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> dict[str, Any]:
        q, k, v = (x.astype(np.float32) for x in (q, k, v))
        products = (q @ k.swapaxes(-1, -2)).astype(np.float16)
        scores = (products.astype(np.float32) * np.float32(scale * factor)).astype(np.float16)
        shifted = scores.astype(np.float32)
        probs = np.exp(shifted - shifted.max(axis=-1, keepdims=True))
        probs = (probs / probs.sum(axis=-1, keepdims=True)).astype(np.float16)
        out = (probs.astype(np.float32) @ v).astype(np.float16)
        # NumPy has no tensor cores, and its exp 4 ulps
        said = fields_of("torch-eager", CASE.but(dtype="float16")) | {"accumulation": "nearest", "exp_ulps": 4.0}
        return {"scores": scores.astype(np.float32), "out": out, "contract": said}

    return attention
