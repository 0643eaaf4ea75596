"""References whose tensors are on a device: the same graph, the same budgets. The device of these tests is the CPU."""

import resource
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.reference.graph.plain_torch import REFERENCES, inputs
from workbench.reference.graph import Contract, Graph, budgets, trace
from workbench.reference.graph import blocks as blocks_of
from workbench.reference.graph import drawn as drawn_of
from workbench.reference.graph.blank import blank
from workbench.reference.graph.device import off_device
from workbench.reference.graph.drawn import drawn
from workbench.refusal import Refusal

torch = pytest.importorskip("torch")

CONTRACT = Contract(operands="bfloat16", exp="base2")
SOME = [f for f in REFERENCES if f.__name__ in ("gated_delta_rule", "forgetting_attention", "mixture_of_experts")]


def on_both(f: Callable[..., Any], given: dict[str, Any]) -> tuple[Graph, Graph]:
    return trace(f, given), trace(f, given, device="cpu")


def shown(graph: Graph) -> list[Any]:
    return [(one.op, one.reads, one.shape, str(one.dtype), one.bits) for one in graph.nodes]


@pytest.mark.parametrize("f", SOME, ids=lambda f: f.__name__)
def test_a_graph_on_a_device_is_the_same(f: Callable[..., Any]) -> None:
    arrays, tensors = on_both(f, inputs(f))
    assert shown(arrays) == shown(tensors)
    assert all(torch.is_tensor(one.value) for one in tensors.nodes if one.value is not None)
    wanted, found = budgets(arrays, CONTRACT), budgets(tensors, CONTRACT)
    assert wanted.keys() == found.keys() and len(wanted) > 2
    for name, one in wanted.items():
        np.testing.assert_allclose(np.asarray(found[name].value), one.value, rtol=1e-12, atol=1e-14, err_msg=name)
        for part in ("bound", "statistical"):  # what is beyond first order is a difference of nearly equal numbers
            got, right = (getattr(x.budget, part) for x in (found[name], one))
            np.testing.assert_allclose(np.asarray(got), right, rtol=1e-8, err_msg=name)
    back = off_device(tensors)
    assert all(isinstance(one.value, np.ndarray) for one in back.nodes if one.value is not None)


def test_a_trace_on_a_device_computes_nothing() -> None:
    """Scores of 2^14 times 2^14 elements, 2 GB, have a shape, and memory that nobody touches."""
    seen = []

    def attention(q, k):
        scores = q @ k.t()
        probs = torch.softmax(scores.masked_fill(scores < 0, float("-inf")), -1)
        seen.append(probs.shape)
        return probs.sum(-1)

    x = torch.zeros(2**14, 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    graph = trace(attention, {"q": x, "k": x}, device="cpu")
    assert seen == [(2**14, 2**14)] and graph.nodes[graph.results["result"]].shape == (2**14,)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**17  # KB


def test_decisions_on_a_device_go_by_values() -> None:
    def decides(x):
        y = x * 2
        for _ in range(3):
            if y.sum() > 10:
                break
            y = y + x
        return y * float(x.max())

    arrays, tensors = on_both(decides, {"x": torch.tensor([1.0, 2.0])})
    assert shown(arrays) == shown(tensors)
    pairs = zip(arrays.decisions, tensors.decisions, strict=True)
    assert len(arrays.decisions) == 4 and all(np.array_equal(a.value, b.value) for a, b in pairs)


def test_random_numbers_on_a_device_are_looked_at_twice() -> None:
    with pytest.raises(Refusal, match="draws other random numbers in a second run"):
        trace(lambda x: x * torch.rand(3), {"x": torch.ones(3)}, device="cpu")
    seeded = trace(lambda x: (torch.manual_seed(0), x * torch.rand(3))[1], {"x": torch.ones(3)}, device="cpu")
    assert seeded.nodes[-1].op == "multiply"


X = np.ones((3, 4, 5)).transpose(2, 0, 1)


MADE = [
        lambda x: x + np.ones(4), lambda x: x != 0, lambda x: np.sum(x, 1), lambda x: np.sum(x > 0, (0, 2)),
        lambda x: np.max(x, axis=(1,), keepdims=True), lambda x: x @ np.ones((4, 2)), lambda x: np.ones(3) @ x,
        lambda x: np.where(x > 0, x, 0.0), lambda x: np.concatenate([x, x], 1), lambda x: np.sort(x, 1),
        lambda x: np.argmax(x, 0), lambda x: np.argsort(x, -1), lambda x: np.cumsum(x, 1), lambda x: np.repeat(x, 2, 1),
        lambda x: np.take_along_axis(x, np.zeros((5, 1, 4), int), 1), lambda x: np.tril(x), lambda x: np.roll(x, 1, 0),
        lambda x: x[:, ::2], lambda x: x.reshape(15, 4), lambda x: x.astype(np.int64), lambda x: x.copy(),
        lambda x: x[np.array([0, 2])], lambda x: np.flip(x, 1),
]  # fmt: skip


def test_blank_arrays_have_the_shape_and_order_of_numpys() -> None:
    for i, f in enumerate(MADE):
        found, right = f(blank(X)), f(X)
        steps = [[step for step, n in zip(one.strides, one.shape, strict=True) if n > 1] for one in (found, right)]
        assert (found.shape, found.dtype, steps[0]) == (right.shape, right.dtype, steps[1]), i


def test_what_does_not_fit_is_refused_of_blank_arrays() -> None:
    x = blank(X)
    for wrong in (lambda: x + np.ones(3), lambda: x @ np.ones((3, 2)), lambda: x.__setitem__(0, np.ones(7)),
                  lambda: np.concatenate([x, x[:, :2]], 0)):  # fmt: skip
        with pytest.raises(ValueError, match="broadcast|mismatch|match"):
            wrong()


@pytest.mark.parametrize("device", [None, "cpu"])
def test_bounds_part_by_part_are_those_of_the_whole(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    f = SOME[1]
    graph = trace(f, inputs(f), device=device)
    asked = set(graph.results.values())
    whole, together = budgets(graph, CONTRACT), drawn(graph, CONTRACT, asked, {}, 32)
    monkeypatch.setattr(blocks_of, "PART", 8)
    monkeypatch.setattr(drawn_of, "ALIVE", 0)
    parts, apart = budgets(graph, CONTRACT), drawn(graph, CONTRACT, asked, {}, 32)
    for name, one in whole.items():
        for part in ("bound", "statistical"):
            a, b = (np.asarray(getattr(x.budget, part)) for x in (parts[name], one))
            np.testing.assert_allclose(a, b, rtol=1e-14, err_msg=name)
    for i in asked:
        ratio = np.asarray(apart[i].deviation) / np.asarray(together[i].deviation)
        assert 0.9 < np.nanmedian(ratio) < 1.1
