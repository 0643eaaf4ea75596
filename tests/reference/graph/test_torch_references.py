"""Naive references of linear attention, norms, losses and mixtures, unchanged: values of torch, budgets that hold."""

import numpy as np
import pytest
import torch

from tests.reference.graph.plain_torch import REFERENCES, inputs
from tests.reference.graph.test_torch_values import on_torch
from tests.reference.graph.wide import flat, wide
from workbench.reference.graph import Contract, budgets, trace


@pytest.mark.parametrize("f", REFERENCES, ids=lambda f: f.__name__)
def test_a_naive_reference_as_it_is(f) -> None:
    """float32, as torch runs it, is a kernel that keeps the strict contract."""
    given = inputs(f)
    graph = trace(f, given)
    found = budgets(graph, Contract(), names=list(graph.results))
    right, float32 = wide(f, given), flat(f(**given))
    assert len(found) == len(right) == len(float32) > 0
    for one, value, actual in zip(found.values(), right, float32, strict=True):
        np.testing.assert_allclose(one.value, value.numpy(), rtol=1e-12, atol=1e-14)
        off = abs(actual.double().numpy() - one.value)
        assert off.size and np.all(off <= one.budget.bound)
        assert np.mean(np.isfinite(one.budget.bound)) >= 0.9


@pytest.mark.parametrize("f", [f for f in REFERENCES if f.__name__ in ("delta_rule", "gla", "gated_norm", "rotary")])
def test_sixteen_bits_are_noted_alone(f) -> None:
    """With inputs in bfloat16 the values are those of the same inputs in float64."""
    given = {name: x.bfloat16() for name, x in inputs(f).items()}
    graph = trace(f, given)
    found = budgets(graph, Contract(), names=list(graph.results))
    for one, value in zip(found.values(), wide(f, given), strict=True):
        np.testing.assert_allclose(one.value, value.numpy(), rtol=1e-12, atol=1e-14)
    assert {str(node.dtype) for node in graph.nodes} >= {"bfloat16", "float32"} or f.__name__ == "rotary"
    assert not any(torch.is_tensor(node.value) for node in graph.nodes)


@pytest.mark.parametrize("f", [f for f in REFERENCES if f.__name__ in ("retention", "layer_norm_backward", "kda")])
def test_passes_run_on_tensors_too(f) -> None:
    graph = trace(f, inputs(f))
    arrays, tensors = budgets(graph, Contract()), budgets(on_torch(graph), Contract())
    for name, one in arrays.items():
        assert torch.is_tensor(tensors[name].value) and one.value.size
        for part in ("bound", "statistical"):
            wanted, found = getattr(one.budget, part), getattr(tensors[name].budget, part)
            np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-9, err_msg=name)
