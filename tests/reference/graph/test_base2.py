"""exp as 2^(x log2(e)): what right kernels lose by it is allowed where the contract says so, and what is more is not."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from workbench.floats import ulp
from workbench.reference.graph import Contract, budgets, parse, trace

LOG2E = np.float32(np.log2(np.e))
WRONG = np.float32(1.4427)


def softmax(qk, scale):
    scores = qk * scale
    top = scores.max(axis=-1, keepdims=True)
    weights = np.exp(np.where(qk < 1e9, scores - top, -np.inf))
    return weights


def once(x: np.ndarray) -> np.ndarray:
    """What an FMA rounds."""
    return np.asarray(x, np.float64).astype(np.float32)


def of_difference(qk: np.ndarray, scale: np.float32, c: np.float32) -> np.ndarray:
    scores = qk * scale
    return np.exp2(c * (scores - scores.max(-1, keepdims=True)))


def of_products(qk: np.ndarray, scale: np.float32, c: np.float32) -> np.ndarray:
    scores = qk * scale * c
    return np.exp2(scores - scores.max(-1, keepdims=True))


def fused(qk: np.ndarray, scale: np.float32, c: np.float32) -> np.ndarray:
    scores = qk * scale
    top = scores.max(-1, keepdims=True) * c
    return np.exp2(once(scores.astype(np.float64) * np.float64(c) - top))


def fused_with_the_scale(qk: np.ndarray, scale: np.float32, c: np.float32) -> np.ndarray:
    folded = scale * c
    top = qk.max(-1, keepdims=True) * folded
    return np.exp2(once(qk.astype(np.float64) * np.float64(folded) - top))


STYLES: list[Callable[..., np.ndarray]] = [of_difference, of_products, fused, fused_with_the_scale]


def shares(f: Callable[..., np.ndarray], c: np.float32, contract: Contract) -> Iterator[tuple[float, float]]:
    """Errors by both budgets, given the scores, given these and the maximum, and from the inputs."""
    for seed in range(12):
        rng = np.random.default_rng([seed, 56])
        qk = (rng.standard_normal((8, 64)) * rng.choice([3, 20, 60])).astype(np.float32)
        scale = np.float32(rng.choice([0.1, 1 / 3, 0.125]))
        graph, actual = trace(softmax, {"qk": qk, "scale": float(scale)}), f(qk, scale, c)
        scores = qk * scale
        top = scores.max(-1, keepdims=True)
        some: list[dict[str, Any]] = [{}, {"scores": scores}, {"scores": scores, "top": top}]
        for dumps in some:
            made = budgets(graph, contract, dumps, ["weights"])["weights"]
            off, floor = abs(actual - made.value), ulp(made.value, "float32") / 2
            bounds = made.budget.bound, made.budget.statistical
            assert all(np.isfinite(bound).all() for bound in bounds)
            yield tuple((off / np.maximum(bound, floor)).max() for bound in bounds)  # type: ignore[misc]


@pytest.mark.parametrize("f", STYLES)
def test_right_kernels_in_base_2_are_within_and_a_rounder_constant_is_not(f: Callable[..., np.ndarray]) -> None:
    right = [*shares(f, LOG2E, parse(""))]
    assert right and all(worst <= 1 and likely <= 1 for worst, likely in right)
    assert all(worst > 1 for worst, _ in shares(f, WRONG, parse("")))
    strict = [*shares(f, LOG2E, parse("exp=natural"))]
    assert max(likely for _, likely in strict) > 1, "no such kernel needs base 2, and the test shows nothing"


def test_what_a_kernel_gave_is_fused_no_more() -> None:
    def f(a, b):
        x = a - b
        return np.exp(x)

    a, b = np.float32([100.0]), np.float32([99.0])
    graph = trace(f, {"a": a, "b": b})
    fused_, given = (budgets(graph, parse(""), dumps)["result"].budget.bound for dumps in ({}, {"x": a - b}))
    assert np.all(given < fused_ / 20)
    assert np.array_equal(budgets(graph, Contract(), {"x": a - b})["result"].budget.bound < given, [True])


def test_exp_of_0_is_exact_but_where_products_are_fused() -> None:
    x = np.float32([0.0, 1.0])
    alone = budgets(trace(lambda x: np.exp(x), {"x": x}), parse(""))["result"].budget.bound
    assert alone[0] == 0 < alone[1]
    fused_ = budgets(trace(lambda x: np.exp(x - x.max()), {"x": x}), parse(""))["result"].budget.bound
    assert 0 < fused_[1] < 1e-6
