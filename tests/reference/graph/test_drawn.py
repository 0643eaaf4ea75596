"""Drawn deviations against the variance that bounds carry, and against what float32 does."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.plain_kernels import inputs, naive, naive_scan, scan_inputs
from tests.reference.graph.test_rules import EXAMPLES, example
from workbench.reference.bound import deviations
from workbench.reference.graph import Contract, Graph, budgets, parse, trace
from workbench.reference.graph import drawn as of_drawn
from workbench.reference.graph.drawn import drawn

SAMPLES = 64


def result(graph: Graph, contract: Contract | None = None, samples: int = SAMPLES, seed: int = 0) -> Any:
    node = graph.results["result"]
    return drawn(graph, contract or Contract(), {node}, {}, samples, seed)[node]


def total(x):  # type: ignore[no-untyped-def]
    return x.sum()


def exps(x):  # type: ignore[no-untyped-def]
    return np.exp(x).sum(-1)


def product(a, b):  # type: ignore[no-untyped-def]
    return a @ b


def softmax(x):  # type: ignore[no-untyped-def]
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def figure(actual: Any, found: Any) -> float:
    """How many deviations the farthest element is off."""
    return float(np.max(abs(np.asarray(actual, np.float64) - found.value) / found.deviation))


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_every_rule_is_drawn_alike_together_and_one_by_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    f, given = example(name)

    def off(**x: Any) -> Any:
        return f(**{key: one * 1.1 for key, one in x.items()})

    graph = trace(off, given)
    together = result(graph)
    monkeypatch.setattr(of_drawn, "ALIVE", 1)
    apart = result(graph)
    assert np.array_equal(together.value, apart.value, equal_nan=True)
    if together.value.dtype.kind == "f":
        a, b = together.deviation, apart.deviation
        assert a.shape == b.shape == together.value.shape
        assert np.allclose(a, b, rtol=0.9, atol=1e-12, equal_nan=True), (a, b)


def test_a_deviation_is_that_of_bounds_and_of_float32() -> None:
    a, b = normal(32, 64), normal(64, 32, seed=1)
    graph = trace(product, {"a": a, "b": b})
    found = result(graph)
    bound = budgets(graph, Contract())["result"].budget.statistical / deviations(found.value.size)
    assert 0.9 < np.median(found.deviation * 3**0.5 / bound) < 1.1  # uniform within bounds
    errors = []
    for seed in range(20):  # in another order each
        order = np.random.default_rng(seed).permutation(64)
        made = np.zeros((32, 32), np.float32)
        for k in order:
            made += a[:, k, None] * b[None, k]
        errors.append(made - found.value)
    spread = np.sqrt(np.mean(np.square(errors), axis=0))
    assert 0.5 < np.median(spread / found.deviation) < 1.0


def test_an_exact_run_has_none_and_two_seeds_differ() -> None:
    graph = trace(lambda x: (x * 2.0).T, {"x": normal(4, 3)})
    assert not result(graph).deviation.any()
    graph = trace(softmax, {"x": normal(4, 30)})
    first, again, other = result(graph), result(graph), result(graph, seed=1)
    assert np.array_equal(first.deviation, again.deviation) and not np.array_equal(first.deviation, other.deviation)
    assert np.allclose(first.deviation, other.deviation, rtol=0.6)


def test_a_long_sum_in_sequence_is_no_outlier() -> None:
    x = np.random.default_rng(0).uniform(0, 1, 16384).astype(np.float32)
    found = result(trace(total, {"x": x}))
    assert figure(np.cumsum(x)[-1], found) < 8  # NumPy's own sum is pairwise
    assert figure(np.cumsum(x.astype(np.float16).astype(np.float32))[-1] * np.float32(1 + 1e-4), found) > 16


def test_a_biased_exp_is_never_averaged_away() -> None:
    x = normal(4, 8192)
    biased = (np.exp(x.astype(np.float64)) * (1 + 2.0**-23)).sum(-1)
    assert figure(biased, result(trace(exps, {"x": x}))) < 8
    each = result(trace(lambda x: np.exp(x), {"x": x}))
    assert 2.0**-25 < each.common[0] < 2.0**-22  # of 32,768 errors of their own it is 2^-31


def test_tf32_errs_to_one_side_and_is_within() -> None:
    a, b = abs(normal(16, 512)), abs(normal(512, 16, seed=1))
    cut = (x.view(np.int32) & ~0x1FFF for x in (a, b))
    made = np.matmul(*(x.view(np.float32).astype(np.float64) for x in cut))
    graph = trace(product, {"a": a, "b": b})
    assert figure(made, result(graph, Contract(operands="tf32"))) < 3
    assert figure(made, result(graph)) > 100


def test_what_a_kernel_scales_first_it_rounds_though_the_dtype_holds_it() -> None:
    given = {"a": normal(8, 64, dtype=ml_dtypes.bfloat16), "b": normal(64, 8, seed=1, dtype=ml_dtypes.bfloat16)}
    graph = trace(product, given)
    held, scaled = (result(graph, parse(f"operands={one}bfloat16")).deviation for one in ("", "scaled-"))
    assert (scaled > 100 * held).all()


def scan(x, k, decay):  # type: ignore[no-untyped-def]
    state = np.zeros((k.shape[1], x.shape[1]), x.dtype)
    for t in range(x.shape[0]):
        state = decay[t] * state + k[t][:, None] * x[t][None, :]
    return state


def scanned(x: Any, k: Any, decay: Any, keep: Any) -> Any:
    state = np.zeros((k.shape[1], x.shape[1]), np.float32)
    for t in range(x.shape[0]):
        state = keep(decay[t] * state + k[t][:, None] * x[t][None, :])
    return state


def test_a_state_in_16_bits_is_beyond_what_operands_excuse() -> None:
    given = {"x": normal(64, 8), "k": normal(64, 8, seed=1)}
    given = {name: x.astype(ml_dtypes.bfloat16) for name, x in given.items()}
    given["decay"] = np.random.default_rng(2).uniform(0.9, 1, 64).astype(np.float32)
    found = result(trace(scan, given), parse("", "bfloat16"))
    plain = {name: x.astype(np.float32) for name, x in given.items()}
    assert figure(scanned(**plain, keep=lambda x: x), found) < 8
    assert figure(scanned(**plain, keep=lambda x: x.astype(ml_dtypes.bfloat16).astype(np.float32)), found) > 16
    eager = result(trace(scan, given), parse("round=eager", "bfloat16"))
    assert figure(scanned(**plain, keep=lambda x: x.astype(ml_dtypes.bfloat16).astype(np.float32)), eager) < 8


def chosen(a, b, v):  # type: ignore[no-untyped-def]
    scores = a @ b
    places = np.argmax(scores, axis=-1)
    return np.take_along_axis(v, places[:, None], axis=-1)


def test_a_choice_that_a_rounding_may_turn_is_in_the_deviation() -> None:
    a, b = normal(200, 64), normal(64, 8, seed=1)
    b[:, 1] = b[:, 0] * np.float32(1 + 2.0**-20)  # closer than eight deviations
    v = normal(200, 8, seed=2)
    graph = trace(chosen, {"a": a, "b": b, "v": v})
    found = result(graph, samples=16)
    close = np.isin(np.argmax((a.astype(np.float64) @ b)[:, :8], -1), (0, 1))
    assert close.any() and not close.all()
    assert (found.deviation[close] > 0).mean() > 0.9 and (found.deviation[~close] == 0).mean() > 0.9
    swapped = np.take_along_axis(v, np.argmax(a @ b, -1)[:, None], -1)  # in float32
    off = abs(swapped - found.value)
    assert (off <= 16 * found.deviation).all()


def test_comparisons_of_the_same_two_agree() -> None:
    def both(x, y):  # type: ignore[no-untyped-def]
        a, b = np.exp(x), np.exp(y)
        return np.where(a < b, 1.0, 0.0) + np.where(a > b, 1.0, 0.0)

    x = normal(500)
    found = result(trace(both, {"x": x, "y": np.nextafter(x, np.float32(9))}))
    assert (found.deviation < 1e-6).all() and (found.value == 1).all()


def test_dumps_take_the_place_of_nodes_and_casts_are_made() -> None:
    graph = trace(naive, inputs(0, "float32"))
    node, probs = graph.results["result"], graph.places()["probs"]
    isolated = drawn(graph, Contract(), {node}, {probs: normal(48, 48)}, 16)[node]
    whole = drawn(graph, Contract(), {node}, {}, 16)[node]
    assert not np.allclose(isolated.value, whole.value)
    stored = drawn(graph, Contract(stored={"probs": "float16"}), {node, probs}, {}, 16)
    assert np.array_equal(stored[probs].value, stored[probs].value.astype(np.float16))
    assert np.median(stored[node].deviation / whole.deviation) < 30  # it flips, and is no half ulp


def test_infinities_are_no_error_and_one_that_explodes_excuses_no_other() -> None:
    def masked(x, mask):  # type: ignore[no-untyped-def]
        return np.exp(np.where(mask, x, -np.inf)) / np.where(mask, 1.0, np.inf)

    x = normal(4, 5)
    found = result(trace(masked, {"x": x, "mask": np.tri(4, 5, dtype=bool)}))
    assert (found.deviation[~np.tri(4, 5, dtype=bool)] == 0).all() and np.isfinite(found.deviation).all()

    def unstable(x, y):  # type: ignore[no-untyped-def]
        return 1 / (np.exp(x) - np.exp(y))

    y = x.copy()
    y[1:] += 1
    found = result(trace(unstable, {"x": x, "y": np.nextafter(y, np.float32(99))}))
    assert (found.deviation[0] > 1e-2 * abs(found.value[0])).all()
    assert (found.deviation[1:] < 1e-4 * abs(found.value[1:])).all()


def test_tensors_are_drawn_as_arrays() -> None:
    torch = pytest.importorskip("torch")
    from tests.reference.graph.test_torch_values import on_torch

    graph = trace(naive_scan, scan_inputs())
    arrays, tensors = result(graph), result(on_torch(graph))
    assert type(tensors.value) is torch.Tensor and type(tensors.deviation) is torch.Tensor
    assert np.allclose(tensors.value, arrays.value) and np.allclose(tensors.deviation, arrays.deviation, rtol=0.6)


def test_an_index_of_nothing_takes_all() -> None:
    found = result(trace(lambda x: (x * 1.1)[()].sum(-1), {"x": normal(4, 8)}))
    assert found.deviation.shape == (4,) and np.all(found.deviation > 0)
