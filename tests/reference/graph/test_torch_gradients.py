"""Gradients of references in torch: values of torch.autograd in float64, budgets that float32 keeps, and lines."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.reference.graph.plain_gradients import PLAIN, QKV, attention, drawn, linear_attention, softmax
from tests.reference.graph.test_torch_operations import BINARY, UNARY, X, Y, by_keyword
from tests.reference.graph.wide import wide_gradients
from workbench.reference.graph import Contract, Gradients, Graph, budget_at, budgets, torch_mode, trace
from workbench.refusal import Refusal

#: operations of which autograd asks for something that the forward pass does not have
OPERATIONS = (
    "exp2 expm1 abs tanh sinh relu sigmoid erf reciprocal std var amax amin max min tril flatten cumprod prod"
).split() + [
    "pow 3", "clamp", "masked_fill", "silu", "gelu", "gelu tanh", "softplus beta", "logsigmoid", "leaky_relu", "elu",
    "softmax", "log_softmax", "logsumexp", "softmax infinite", "layer_norm affine", "rms_norm", "group_norm", "normalize",
    "var_mean", "aminmax", "max dim", "reverse cumsum", "norm", "vector norm 1", "expand", "slice", "select", "list index",
    "mask index", "masked_select", "unbind", "split sizes", "repeat", "flip", "diagonal", "unfold", "pad", "sort", "topk",
    "gather computed", "index computed", "index two computed", "scatter_add", "index_add", "embedding", "index_put accumulate",
    "half and float",
]  # fmt: skip
OF_TWO = [
    "div", "lerp", "addcdiv", "logaddexp", "mm", "baddbmm", "einsum batch", "cat", "mse", "l1", "bce", "conv1d",
    "conv1d bias stride", "conv1d depthwise", "sdpa", "maximum", "where",
]  # fmt: skip


def of_results(graph: Graph) -> list[torch.Tensor]:
    return [torch.from_numpy(graph.nodes[graph.inputs[name]].value.copy()) for name in graph.cotangents.values()]


def check(f: Callable[..., Any], inputs: dict[str, torch.Tensor]) -> Graph:
    """The graph; its gradients are those of autograd in float64, and those of autograd in float32 within budget."""
    graph = trace(f, inputs, gradients=Gradients(0))
    right = wide_gradients(f, inputs, of_results(graph))
    assert graph.gradients and {*graph.gradients} == {name for name, x in right.items() if x is not None}
    found = budgets(graph, Contract(), names=[*graph.gradients.values()])
    for name, gradient in graph.gradients.items():
        one = found[gradient]
        np.testing.assert_allclose(one.value, right[name].numpy(), rtol=1e-12, atol=1e-13)
        assert one.value.size and np.all(one.budget.bound >= 0) and np.all(np.isfinite(one.budget.bound))
        assert graph.nodes[graph.results[gradient]].line.number
    # torch's float32 erf of a CPU is Abramowitz and Stegun's 7.1.26, off by up to 1.5e-7: 24 ulps near 0
    narrow = any(str(node.dtype) in ("float16", "bfloat16") or node.op == "erf" for node in graph.nodes)
    for name, off, budget in [] if narrow else plain_errors(f, inputs, graph):
        assert np.all(off <= budget), name
    return graph


def plain_errors(f: Callable[..., Any], inputs: dict[str, torch.Tensor], graph: Graph) -> Any:
    """Errors of float32's own autograd, and the budgets."""
    leaves = {name: x.clone().requires_grad_() for name, x in inputs.items() if x.is_floating_point()}
    made = f(**{**inputs, **leaves})
    several = [x for x in (made if isinstance(made, tuple | list) else [made]) if x.requires_grad]
    heads = [g.to(x.dtype) for g, x in zip(of_results(graph), several, strict=True)]
    found = torch.autograd.grad(several, [*leaves.values()], heads, allow_unused=True)
    expected = budgets(graph, Contract(), names=[*graph.gradients.values()])
    for name, g in zip(leaves, found, strict=True):
        if name in graph.gradients:
            one = expected[graph.gradients[name]]
            yield name, abs(g.double().numpy() - one.value), one.budget.bound


@pytest.mark.parametrize("name", OPERATIONS)
def test_of_an_operation_as_torch(name: str) -> None:
    check(by_keyword(UNARY[name]), {"x": X})


@pytest.mark.parametrize("name", OF_TWO)
def test_of_two_as_torch(name: str) -> None:
    check(by_keyword(BINARY[name]), {"x": X, "y": Y})


@pytest.mark.parametrize("name", PLAIN)
def test_of_plain_functions_as_torch_and_float32_is_within_budget(name: str) -> None:
    graph = check(*PLAIN[name])
    lines = {graph.nodes[graph.results[gradient]].line for gradient in graph.gradients.values()}
    assert all(line.backward and line.file == PLAIN[name][0].__code__.co_filename for line in lines)


def test_lines_are_those_of_the_forward_pass() -> None:
    graph = trace(softmax, QKV, gradients=Gradients(0))
    first = softmax.__code__.co_firstlineno
    lines = {name: graph.nodes[graph.results[name]].line for name in ("dq", "dk", "dv")}
    assert [line.number - first for line in lines.values()] == [1, 1, 2]
    assert str(lines["dv"]) == f"backward of {lines['dv'].file}:{first + 2}"


def test_a_function_with_a_backward_of_its_own_has_its_lines() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 2 * x * g

    graph = check(lambda x: Twice.apply(x.exp()), {"x": X})
    lines = {(node.line.number, node.line.backward) for node in graph.nodes if node.op == "multiply"}
    first = Twice.backward.__code__.co_firstlineno
    assert (first + 3, False) in lines and any(backward for _, backward in lines)


def test_what_the_forward_pass_keeps_is_marked() -> None:
    graph = trace(softmax, QKV, gradients=Gradients(0))
    assert {(graph.nodes[i].op, graph.nodes[i].shape) for i in graph.saved} == {
        ("named", (16, 16)),
        ("matmul", (16, 8)),
    }
    # inputs are what they are, and what a maximum compares is no other choice
    assert not trace(lambda x: x.exp().amax(-1), {"x": X}, gradients=Gradients(0)).saved & {
        i for i, node in enumerate(graph.nodes) if node.op == "equal"
    }
    of_max = trace(lambda x: (x * x).amax(-1), {"x": X}, gradients=Gradients(0))
    assert not of_max.saved


def test_a_loop_costs_a_part_a_turn() -> None:
    """torch adds n arrays of all turns; here each part has its place, and 0 + x is no rounding."""
    sizes = []
    for n in (8, 16):
        inputs = {name: drawn(n, 4, seed=i) for i, name in enumerate("qkv")} | {"g": -drawn(n, 1).abs()}
        graph = check(linear_attention, inputs)
        whole = [node for node in graph.nodes if node.op == "add" and node.shape == (n, 4)]
        assert not whole
        sizes.append(len(graph.nodes))
    assert sizes[1] < 2.1 * sizes[0]


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x[0] * x[0] + x[1] * x[-1] + x[3],
        lambda x: x[0:2].sum(0) * x[1:3].exp().sum(0) + x[1],
        lambda x: sum(x[i : i + 2, ::2].square().sum() for i in range(3)),
        lambda x: (x.sum() + x[1].exp().sum()) * x[:, 2].sum(),
        lambda x: torch.stack([x[None][0, i] * x[i, :] for i in range(4)]),
        lambda x: x.unbind(0)[1] + x.split([1, 3])[1].sum(0),
    ],
    ids=["rows", "slices", "windows", "with the whole", "of axes", "of all"],
)
def test_parts_that_overlap_add_up(f: Callable[..., Any]) -> None:
    check(f, {"x": X})


def test_a_maximum_s_gradient_has_a_budget_where_elements_come_near() -> None:
    x = drawn(3, 8)
    x[0, :2] = 3.0  # as large
    x[1, 4] = x[1].max() * (1 + 2**-20)
    for f in (lambda x: (x * 1.1).amax(-1), lambda x: (x * 1.1).max(), lambda x: (0.7 * x).amin(-1)):
        graph = trace(f, {"x": x}, gradients=Gradients(0))
        found = budgets(graph, Contract(), names=["dx"])["dx"]
        assert np.isfinite(found.budget.bound).all()
    graph = trace(lambda x: (x * 1.1).amax(-1), {"x": x}, gradients=Gradients(0))
    found = budgets(graph, Contract(), names=["dx"])["dx"]
    g = graph.nodes[graph.inputs["dresult"]].value
    assert found.budget.bound[0, 0] >= 0.5 * abs(1.1 * g[0]) and np.all(found.budget.bound[2] <= 1e-6)


def in_einsum(q, k, v):
    probs = torch.softmax(torch.einsum("bthd,bshd->bhts", q, k), -1)
    return torch.einsum("bhts,bshd->bthd", probs, v)


def test_delta_is_that_of_flash_attention_too() -> None:
    """A kernel in bfloat16 reads its own out, rounded, in the sum of dout out."""
    wide = {name: x.reshape(2, 8, 1, 8).expand(2, 8, 3, 8).clone() for name, x in QKV.items()}
    batched = {name: x.reshape(2, 1, 8, 8) for name, x in QKV.items()}
    for f, inputs in (
        (attention, QKV),
        (softmax, QKV),
        (in_einsum, wide),
        (lambda q, k, v: (q @ k.mT).softmax(-1) @ v, batched),
    ):
        graph = check(f, inputs)
        kept = [i for i in graph.saved if graph.nodes[i].op == "matmul"]
        assert len(kept) == 1 and any(node.op == "either" for node in graph.nodes if node.line.backward)


def test_the_sum_of_a_softmax_s_backward_pass_does_not_cancel() -> None:
    """Flash attention sums dout out in its place: in the first row of a causal mask dq is exactly 0, and not in float32."""
    for f in (attention, lambda q, k, v: torch.softmax((q @ k.T).tril() + torch.full((16, 16), -1e4).triu(1), -1) @ v):
        graph = trace(f, QKV, gradients=Gradients(0))
        assert np.all(budget_at(graph, Contract(), "dq", [(0, 0), (0, 5)]).bound > 1e-8)


@pytest.mark.parametrize(
    ("f", "words"),
    [
        (lambda x: x.detach() * 2, "no result of .* has a gradient"),
        (lambda x: x // 0.3, "test_torch_gradients.py.*: derivative for aten::floor_divide is not implemented"),
        (lambda x: (x.exp().mul_(2.0) * x.exp_()).sum(), "leaf Variable that requires grad"),
        (lambda x: _written(x * 1.0), "written in place since"),
    ],
    ids=["detached", "no derivative", "a leaf", "written"],
)
def test_what_has_no_gradients_is_refused(f: Callable[..., Any], words: str) -> None:
    with pytest.raises((Refusal, RuntimeError), match=words):
        trace(f, {"x": X}, gradients=Gradients(0))


def test_an_operation_without_a_rule_is_refused_with_the_line_of_the_forward_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch_mode, "OPERATIONS", {**torch_mode.OPERATIONS, "convolution_backward": None})
    f, inputs = PLAIN["causal_conv"]
    line = f.__code__.co_firstlineno + 1
    words = f"backward of .*plain_gradients.py:{line}: no rule for torch.ops.aten.convolution_backward.default"
    with pytest.raises(Refusal, match=words):
        trace(f, inputs, gradients=Gradients(0))


def _written(x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    z = y * 2
    y.add_(1)
    return z


def test_gradients_of_results_are_given_or_drawn() -> None:
    graph = trace(softmax, QKV, gradients=Gradients(1))
    again = trace(softmax, QKV, gradients=Gradients(1))
    other = trace(softmax, QKV, gradients=Gradients(2))
    first, same, apart = (one.nodes[one.inputs["dresult"]].value for one in (graph, again, other))
    assert np.array_equal(first, same) and not np.any(first == apart)
    given = torch.ones(16, 8)
    graph = trace(softmax, QKV | {"dresult": given}, gradients=Gradients())
    assert np.all(graph.nodes[graph.inputs["dresult"]].value == 1.0)
    narrow = trace(softmax, QKV, gradients=Gradients(0, "bfloat16"))
    assert narrow.nodes[narrow.inputs["dresult"]].bits <= 8
    for inputs, words in (
        ({}, "dresult is missing"),
        ({"dresult": given[:3]}, r"shape \[3, 8\]; its result has \[16, 8\]"),
        ({"dresult": given, "dlse": given}, "takes no dlse, and gradients of its results are dresult"),
        ({"dresult": given.double() / 3}, "which float32, the dtype of its result, does not hold"),
    ):
        with pytest.raises(Refusal, match=words.replace("which ", "")):
            trace(softmax, QKV | inputs, gradients=Gradients())


def test_gradients_have_names_that_nobody_has() -> None:
    def f(x, dx, y):
        dy = x * dx
        return dy * y

    graph = trace(f, {"x": X, "dx": X, "y": Y}, gradients=Gradients(0))
    assert graph.gradients == {"x": "grad_x", "dx": "ddx", "y": "grad_y"}
    with pytest.raises(Refusal, match=r"params\[0\] is in a list or a dict"):
        trace(lambda params: params[0] * 2, {"params": [X]}, gradients=Gradients(0))
    with pytest.raises(Refusal, match="must be in torch, and its inputs tensors"):
        trace(lambda x: x * 2, {"x": X.numpy()}, gradients=Gradients(0))
