"""Naive functions of ten operations, unchanged: right float32 kernels are within their budgets, wrong ones are not."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from tests.reference.graph import plain_operations as plain
from workbench.floats import ulp
from workbench.reference.graph import Contract, Expected, budgets, trace

RNG = np.random.default_rng(5)
Arrays = Mapping[str, Any]


def float32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def uniform(low: float, high: float, *shape: int) -> np.ndarray:
    return RNG.uniform(low, high, shape).astype(np.float32)


_GLA = {
    "q": float32(2, 48, 16),
    "k": float32(2, 48, 16),
    "v": float32(2, 48, 8),
    "log_decay": -uniform(0, 0.2, 2, 48, 16),
}
INPUTS: dict[str, dict[str, Any]] = {
    "rmsnorm": {"x": float32(16, 500), "weight": 1 + float32(500) / 8},
    "rope": {"x": float32(2, 32, 16)},
    "cross_entropy": {"logits": 3 * float32(20, 100), "labels": RNG.integers(0, 100, 20)},
    "layer_norm_backward": {"x": float32(16, 64), "dy": float32(16, 64), "weight": 1 + float32(64) / 8},
    "linear_attention": _GLA,
    "chunked_linear_attention": _GLA,
    "gated_delta_rule": {
        "q": float32(2, 24, 16), "k": float32(2, 24, 16) / 4, "v": float32(2, 24, 16), "gate": uniform(0.95, 1, 2, 24),
        "beta": uniform(0, 1, 2, 24), "state": float32(2, 16, 16) / 8,
    },
    "experts": {"x": float32(64, 32), "gate": float32(32, 8)},
    "scaled_gemm": {"a": float32(16, 128), "b": float32(128, 10)},
    "gelu": {"x": float32(16, 64), "w": float32(64, 32) / 8},
}  # fmt: skip


def swapped(name: str, change: Callable[[Arrays], Arrays]) -> Callable[[], Any]:
    """The operation on inputs that are read wrongly."""
    return lambda: run(name, change(INPUTS[name]))


def forgets_a_term(name: str, key: str, place: Any) -> Callable[[], Any]:
    def change(inputs: Arrays) -> Arrays:
        x = inputs[key].copy()
        x[place] = 0
        return {**inputs, key: x}

    return swapped(name, change)


#: operation -> a kernel with something wrong in it
WRONG: dict[str, Callable[[], Any]] = {
    "rmsnorm": lambda: run("rmsnorm", INPUTS["rmsnorm"] | {"eps": np.float32(1e-3)}),
    "rope": lambda: run("rope", INPUTS["rope"] | {"theta": 10001.0}),
    "cross_entropy": lambda: run("cross_entropy", INPUTS["cross_entropy"] | {"smoothing": 0.10001}),
    "layer_norm_backward": forgets_a_term("layer_norm_backward", "dy", (5, 7)),
    "linear_attention": forgets_a_term("linear_attention", "k", (0, 0, 3)),
    "chunked_linear_attention": forgets_a_term("chunked_linear_attention", "log_decay", (1, 17, 2)),
    "gated_delta_rule": forgets_a_term("gated_delta_rule", "beta", (1, 20)),
    "experts": forgets_a_term("experts", "gate", (30, 2)),
    "scaled_gemm": forgets_a_term("scaled_gemm", "b", (127, 3)),
    "gelu": swapped("gelu", lambda inputs: {**inputs, "w": inputs["w"] * np.float32(1 + 2**-16)}),
}


def run(name: str, inputs: Arrays) -> list[np.ndarray]:
    """The float32 run."""
    with np.errstate(all="ignore"):
        made = getattr(plain, name)(**{key: x.copy() if isinstance(x, np.ndarray) else x for key, x in inputs.items()})
    return list(made) if isinstance(made, tuple) else [made]


def expected(name: str, dumps: list[np.ndarray]) -> list[Expected]:
    """Results, of which whole numbers are the kernel's own choice for what follows."""
    graph = trace(getattr(plain, name), INPUTS[name])
    names = [*graph.results]
    chosen = {one: x for one, x in zip(names, dumps, strict=True) if x.dtype.kind in "iu"}
    made = budgets(graph, Contract(), chosen)
    return [made[one] for one in names]


def shares(name: str, made: list[np.ndarray]) -> tuple[float, float, float]:
    """The largest error by the worst case and by the statistical budget, and the share of elements without one."""
    worst, likely, untestable = 0.0, 0.0, []
    for actual, one in zip(made, expected(name, made), strict=True):
        off = abs(np.asarray(actual, np.float64) - one.value)
        held = np.isfinite(one.budget.bound)
        untestable.append(1 - held.mean())
        for bound in (one.budget.bound, one.budget.statistical):
            assert np.all(bound[held] >= 0)
        floor = ulp(one.value, "float32") / 2  # what every comparison allows
        ratios = [(off / np.maximum(b, floor))[held] for b in (one.budget.bound, one.budget.statistical)]
        worst, likely = max(worst, ratios[0].max()), max(likely, ratios[1].max())
    return worst, likely, max(untestable)


@pytest.mark.parametrize("name", sorted(INPUTS))
def test_a_right_kernel_is_within_and_a_wrong_one_is_not(name: str) -> None:
    worst, likely, untestable = shares(name, run(name, INPUTS[name]))
    assert worst <= 1 and likely <= 1 and untestable <= 0.01
    wrong, _, _ = shares(name, WRONG[name]())
    assert wrong > 1


def test_chunks_and_tokens_are_within_each_others_budgets() -> None:
    for one, other in (
        ("linear_attention", "chunked_linear_attention"),
        ("chunked_linear_attention", "linear_attention"),
    ):
        _, likely, untestable = shares(one, run(other, _GLA))
        assert 0 < likely <= 1 and untestable == 0


def drawn(name: str, rng: np.random.Generator) -> dict[str, Any]:
    """The inputs in another order, size and place; what has a range of its own as it is."""
    found = dict(INPUTS[name])
    for key, x in found.items():
        if x.dtype != np.float32 or key in ("gate", "beta", "log_decay"):
            continue
        y = rng.permutation(x.ravel()).reshape(x.shape) * np.float32(rng.choice([0.03, 1, 1, 5]))
        y = y + np.float32(rng.choice([0, 0, 0, -1, 3]))
        found[key] = x if name == "gated_delta_rule" and key == "k" else y.astype(np.float32)
    return found


@pytest.mark.campaign(but=10)
@pytest.mark.parametrize("number", range(600))
def test_right_kernels_are_within_on_drawn_inputs(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    name = sorted(INPUTS)[number % len(INPUTS)]
    monkeypatch.setitem(INPUTS, name, drawn(name, np.random.default_rng([number, 55])))
    worst, likely, untestable = shares(name, run(name, INPUTS[name]))
    assert worst <= 1 and likely <= 1 and untestable <= 0.01
