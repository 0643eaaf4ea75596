"""RoPE in plain code: on plain arrays it is right within the budgets of its own graph, in every convention."""

from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from workbench.floats import to_float64, ulp
from workbench.reference.graph import Contract, budgets, trace
from workbench.reference.rope import rope

RNG = np.random.default_rng(12)
FORMS = ["halves", "interleaved"]


def drawn(dtype: Any) -> dict[str, Any]:
    positions = RNG.integers(0, 500, (2, 7)).astype(np.float32)
    return {"x": RNG.standard_normal((2, 3, 7, 12)).astype(dtype), "positions": positions}


def turned(x: np.ndarray, positions: np.ndarray, base: float, pairs: str) -> np.ndarray:
    """By complex numbers."""
    dim = x.shape[-1]
    first, second = (x[..., ::2], x[..., 1::2]) if pairs == "interleaved" else np.split(x, 2, axis=-1)
    angles = positions[:, None, :, None] * base ** (-2 * np.arange(dim // 2) / dim)
    z = (first + 1j * second) * np.exp(1j * angles)
    if pairs == "halves":
        return np.concatenate([z.real, z.imag], axis=-1)
    return np.stack([z.real, z.imag], axis=-1).reshape(x.shape)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("pairs", FORMS)
def test_on_plain_arrays_it_is_within_its_own_budgets(dtype: Any, pairs: str) -> None:
    inputs, name = drawn(dtype), np.dtype(dtype).name
    for tables, products in product(("float32", "inputs"), repeat=2):
        told: dict[str, Any] = {"base": 500.0, "pairs": pairs, "table_dtype": tables, "product_dtype": products}
        out = rope(**inputs, **told)
        assert out.dtype == dtype and out.shape == inputs["x"].shape
        stored = dict.fromkeys(("cos_cast", "sin_cast") if tables == "inputs" else (), name)
        stored |= dict.fromkeys(("kept_cast", "turned_cast") if products == "inputs" else (), name)
        one = budgets(trace(rope, inputs | told), Contract(stored=stored, exp_ulps=4.5))["out"]
        allowed = one.budget.bound
        if out.dtype.itemsize < 4:
            allowed = allowed + ulp(abs(one.value) + allowed, out.dtype) / 2
        assert np.all(abs(to_float64(out) - one.value) <= allowed)


@pytest.mark.parametrize("pairs", FORMS)
@pytest.mark.parametrize("base", [1.0, 10000.0])
def test_its_graph_has_the_values_of_complex_numbers(pairs: str, base: float) -> None:
    inputs = drawn(np.float32)
    graph = trace(rope, inputs | {"base": base, "pairs": pairs})
    wanted = turned(to_float64(inputs["x"]), to_float64(inputs["positions"]), base, pairs)
    np.testing.assert_allclose(budgets(graph, Contract())["result"].value, wanted, rtol=0, atol=1e-12)


def test_special_values_stay_in_their_pair_and_token() -> None:
    inputs = drawn(np.float32)
    inputs["x"][0, 0, 1, 3], inputs["positions"][1, 2] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        out = rope(**inputs)
    wanted = np.zeros(out.shape, bool)
    wanted[0, 0, 1, [3, 9]], wanted[1, :, 2] = True, True
    np.testing.assert_array_equal(np.isnan(out), wanted)
