"""RMSNorm in plain code: on plain arrays it is right within the budgets of its own graph, in every convention."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from workbench.floats import to_float64, ulp
from workbench.reference.graph import Contract, budgets, trace
from workbench.reference.rmsnorm import rmsnorm

RNG = np.random.default_rng(11)
DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]


def drawn(dtype: Any) -> dict[str, Any]:
    x, weight = RNG.standard_normal((9, 40)), 1 + 0.2 * RNG.standard_normal(40)
    return {"x": x.astype(dtype), "weight": weight.astype(dtype)}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weight_offset", [0, 1])
@pytest.mark.parametrize("cast", ["after weight", "before weight"])
def test_on_plain_arrays_it_is_within_its_own_budgets(dtype: Any, weight_offset: int, cast: str) -> None:
    inputs = drawn(dtype)
    told: dict[str, Any] = {"eps": 1e-3, "weight_offset": weight_offset, "cast": cast}
    out, rstd = rmsnorm(**inputs, **told)
    assert out.dtype == dtype and rstd.dtype == np.float32 and rstd.shape == (9,)
    stored = {"normed_cast": np.dtype(dtype).name} if cast == "before weight" else {}
    expected = budgets(trace(rmsnorm, inputs | told), Contract(stored=stored))
    for made, one in ((out, expected["out"]), (rstd, expected["rstd"])):
        allowed = one.budget.bound
        if made.dtype.itemsize < 4:
            allowed = allowed + ulp(abs(one.value) + allowed, made.dtype) / 2
        assert np.all(abs(to_float64(made) - one.value) <= allowed)


@pytest.mark.parametrize("weight_offset", [0, 1])
def test_its_graph_has_the_formula_s_values(weight_offset: int) -> None:
    inputs = drawn(np.float32)
    x, weight = (to_float64(one) for one in inputs.values())
    graph = trace(rmsnorm, inputs | {"eps": 1e-3, "weight_offset": weight_offset})
    found = budgets(graph, Contract(), names=["out", "squares", "rstd", "normed", "result[0]", "result[1]"])
    rms = np.sqrt(np.mean(x * x, axis=1) + 1e-3)
    wanted = {"rstd": 1 / rms, "normed": x / rms[:, None], "squares": (x * x).sum(1)}
    wanted |= {"result[0]": x / rms[:, None] * (weight + weight_offset), "result[1]": 1 / rms}
    for name, y in wanted.items():
        np.testing.assert_allclose(found[name].value, y, rtol=1e-13)


def test_special_values_are_as_it_says() -> None:
    x = np.ones((4, 5), np.float32)
    x[0, 1], x[1, 2], x[2] = np.nan, np.inf, 0
    with np.errstate(all="ignore"):
        out, rstd = rmsnorm(x, np.ones(5, np.float32), eps=0.0)
    assert np.isnan(out[0]).all() and np.isnan(out[2]).all() and rstd[2] == np.inf
    assert rstd[1] == 0 and np.isnan(out[1, 2]) and np.all(np.delete(out[1], 2) == 0)
    np.testing.assert_array_equal(out[3], 1)
