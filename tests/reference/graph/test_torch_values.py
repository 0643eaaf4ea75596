"""Passes on values that are torch tensors give what they give on NumPy arrays: no rule is NumPy's own."""

from typing import Any

import numpy as np
import pytest

from tests.reference.graph import plain_attention
from tests.reference.graph.test_rules import EXAMPLES, example
from workbench.reference.graph import Contract, Graph, budget_at, budgets, trace
from workbench.reference.graph.device import on_device

torch = pytest.importorskip("torch")


def on_torch(graph: Graph) -> Graph:
    return on_device(graph, "cpu")


def same(a: Any, b: Any) -> bool:
    return np.allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=1e-7, atol=1e-300, equal_nan=True)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_every_rule_takes_tensors(name: str) -> None:
    f, given = example(name)

    def off(**x: Any) -> Any:
        return f(**{key: one * 1.1 for key, one in x.items()})

    graph = trace(off, given)
    tensors, arrays = (budgets(one, Contract(operands="bfloat16"))["result"] for one in (on_torch(graph), graph))
    assert type(tensors.value) is torch.Tensor and type(tensors.budget.bound) is torch.Tensor
    assert same(tensors.value, arrays.value)
    assert same(tensors.budget.bound, arrays.budget.bound)
    assert same(tensors.budget.statistical, arrays.budget.statistical)
    element = (0,) * arrays.value.ndim
    if arrays.value.dtype.kind == "f":
        reverse = [budget_at(one, Contract(), "result", [element]) for one in (on_torch(graph), graph)]
        assert same(reverse[0].bound, reverse[1].bound) and same(reverse[0].statistical, reverse[1].statistical)


def test_so_does_attention_with_dumps_and_casts() -> None:
    rng = np.random.default_rng(0)
    arrays = {x: rng.standard_normal((1, 2, 40, 16)).astype(np.float16) for x in "qkv"}
    graph = trace(plain_attention.flash, {**arrays, "scale": 0.1, "mask": np.tri(40, dtype=bool), "block": 16})
    contract = Contract(operands="float16", stored={"probs": "float16", "out": "bfloat16"}, accumulate="tensor-core")
    dumps = {"qk[1]": (graph, rng.standard_normal((1, 2, 40, 16)).astype(np.float32))[1]}
    tensors = budgets(on_torch(graph), contract, {name: torch.asarray(x) for name, x in dumps.items()})
    wanted = budgets(graph, contract, dumps)
    assert tensors.keys() == wanted.keys() and len(wanted) > 20
    for name, one in wanted.items():
        assert same(tensors[name].value, one.value), name
        assert same(tensors[name].budget.bound, one.budget.bound), name
        assert same(tensors[name].budget.statistical, one.budget.statistical), name
