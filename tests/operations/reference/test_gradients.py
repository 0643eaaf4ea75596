"""Kernels judged by gradients, too: right ones, forgotten terms, and what autograd cannot answer."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from workbench.operations.reference.call import diff_reference, diff_results
from workbench.refusal import Raised, Refusal

torch = pytest.importorskip("torch")

from tests.reference.graph.plain_gradients import (  # noqa: E402
    PLAIN,
    QKV,
    attention,
    drawn,
    layernorm,
    linear_attention,
    rmsnorm,
    softmax,
)

RIGHT = ("exact", "rounding")
STRICT = "operands=float32"


class Attention(torch.autograd.Function):
    """As flash attention: what is kept is its result and the logsumexp."""

    @staticmethod
    def forward(ctx, q, k, v, term):
        scores = (q.float() @ k.float().T * q.shape[-1] ** -0.5).masked_fill(_future(q, k), float("-inf"))
        lse = scores.logsumexp(-1, keepdim=True)
        out = (torch.exp(scores - lse) @ v.float()).to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.term = term
        return out

    @staticmethod
    def backward(ctx, dout):
        q, k, v, out, lse = (x.float() for x in ctx.saved_tensors)
        scale = q.shape[-1] ** -0.5
        probs = torch.exp((q @ k.T * scale).masked_fill(_future(q, k), float("-inf")) - lse)
        delta = (dout.float() * out).sum(-1, keepdim=True) if ctx.term != "delta" else 0.0
        back = probs * (dout.float() @ v.T - delta) * (scale if ctx.term != "scale" else 1.0)
        dv = probs.T @ dout.float()
        if ctx.term == "last row":
            dv[-1] = 0.0
        made = back @ k, back.T @ q, dv
        return (*(x.to(dout.dtype) for x in made), None)


def _future(q, k):
    return torch.ones(len(q), len(k), dtype=torch.bool).triu(1)


def flash(term: str = "") -> Callable[..., Any]:
    return lambda q, k, v: Attention.apply(q, k, v, term)


def cast(inputs: dict[str, Any], dtype: str) -> dict[str, Any]:
    return {name: x.to(getattr(torch, dtype)) for name, x in inputs.items()}


@pytest.mark.parametrize(
    "name", ["online", "layernorm", "cross_entropy", "swiglu", "linear_attention", "decisions", "causal_conv", "routed"]
)
def test_float32_of_the_function_itself_is_right_in_every_element(name: str) -> None:
    f, inputs = PLAIN[name]
    found = diff_reference(f, f, inputs, gradients=True)
    assert found.verdict in RIGHT and [*found.graph.gradients.values()] == [one.name for one in found.stages[1:]]
    assert all(one.decisive is not None and one.decisive.summary.judged == one.dumped.size for one in found.stages)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_kernel_of_another_algorithm_is_right(dtype: str) -> None:
    found = diff_reference(flash(), attention, cast(QKV, dtype), gradients=True)
    assert found.verdict in RIGHT and [one.name for one in found.stages] == ["out", "dq", "dk", "dv"]
    peaked = {name: x * (6 if name != "v" else 1) for name, x in QKV.items()}
    assert diff_reference(flash(), attention, peaked, gradients=True).verdict in RIGHT
    compiled = torch.compile(attention, backend="aot_eager")
    assert dtype != "float32" or diff_reference(compiled, attention, QKV, gradients=True).verdict in RIGHT


def test_a_norm_in_bfloat16_is_right() -> None:
    inputs = {"x": drawn(24, 16), "weight": drawn(16, seed=1)}
    found = diff_reference(rmsnorm, rmsnorm, cast(inputs, "bfloat16"), gradients=True)
    assert found.verdict in RIGHT and len(found.stages) == 3


@pytest.mark.parametrize(
    ("term", "dtype", "wrong"),
    [
        ("delta", "float32", ["dq", "dk"]),
        ("delta", "bfloat16", ["dq", "dk"]),
        ("scale", "bfloat16", ["dq", "dk"]),
        ("last row", "float32", ["dv"]),
    ],
)
def test_a_forgotten_term_is_a_bug_at_its_gradient(term: str, dtype: str, wrong: list[str]) -> None:
    how = f"operands={dtype}"
    found = diff_reference(flash(term), attention, cast(QKV, dtype), contract=how, gradients=True)
    assert found.verdict == "bug" and [*found.origins] == wrong
    assert found.definition(wrong[0]).startswith("the gradient through ") and "backward of" in str(found)


def test_a_gradient_that_does_not_go_through_the_normaliser_is_a_bug() -> None:
    def without(x, weight, bias):
        off = x - x.mean(-1, keepdim=True)
        return off * torch.rsqrt(off.detach().pow(2).mean(-1, keepdim=True) + 1e-5) * weight + bias

    def unnormalised(q, k, v):
        weights = torch.exp(q @ k.T * q.shape[-1] ** -0.5)
        return weights @ v / weights.sum(-1, keepdim=True).detach()

    found = diff_reference(without, layernorm, PLAIN["layernorm"][1], contract=STRICT, gradients=True)
    assert found.verdict == "bug" and found.origins == ("dx",)
    found = diff_reference(unnormalised, softmax, QKV, contract=STRICT, gradients=True)
    assert found.verdict == "bug" and found.origins == ("dq", "dk")


def test_one_turn_of_a_loop_that_lets_no_gradient_through_is_a_bug() -> None:
    def kernel(q, k, v, g):
        state, out = torch.zeros(q.shape[-1], v.shape[-1]), []
        for t in range(len(q)):
            state = state * g[t].exp() + k[t][:, None] * v[t][None]
            state = state.detach() if t == 3 else state
            out.append(q[t] @ state)
        return torch.stack(out)

    inputs = PLAIN["linear_attention"][1]
    found = diff_reference(kernel, linear_attention, inputs, contract=STRICT, gradients=True)
    assert found.verdict == "bug" and found.origins == ("dk", "dv", "dg")


def test_stages_that_a_kernel_gives_take_the_place_of_the_reference_s_in_the_backward_pass() -> None:
    def kernel(q, k, v):
        scores = q @ k.T * q.shape[-1] ** -0.5 * 1.01
        probs = torch.softmax(scores, -1)
        return {"probs": probs, "result": probs @ v}

    found = diff_reference(kernel, softmax, QKV, contract=STRICT, gradients=True)
    assert found.origin == "probs" and {"result", "dv"} <= {*found.victims}


def test_a_gradient_that_does_not_arrive_is_judged_as_0_and_said() -> None:
    found = diff_reference(lambda q, k, v: softmax(q, k.detach(), v), softmax, QKV, contract=STRICT, gradients=True)
    assert found.origins == ("dk",) and any("reached k: judged as 0" in note for note in found.notes)
    found = diff_reference(softmax, lambda q, k, v: softmax(q, k.detach(), v), QKV, gradients=True)
    assert found.verdict in RIGHT and any("k has a gradient, and none in the reference" in note for note in found.notes)


def with_lse(q, k, v):
    scores = q @ k.T
    lse = scores.logsumexp(-1)
    out = torch.softmax(scores, -1) @ v
    return out, lse


def test_several_results_and_gradients_that_are_given() -> None:
    given = QKV | {"dlse": torch.zeros(16)}
    assert diff_reference(with_lse, with_lse, QKV, gradients=True).verdict in RIGHT
    alone = diff_reference(lambda q, k, v: with_lse(q, k, v)[0], with_lse, given, gradients=True)
    assert alone.verdict in RIGHT and alone.others == ("lse",)
    with pytest.raises(Refusal, match="returns no lse, whose gradient dlse the reference goes back from"):
        diff_reference(lambda q, k, v: with_lse(q, k, v)[0], with_lse, QKV, gradients=True)
    twice = diff_reference(
        with_lse, with_lse, QKV | {"dout": torch.ones(16, 8), "dlse": torch.ones(16)}, gradients=True
    )
    assert twice.verdict in RIGHT and np.all(twice.graph.nodes[twice.graph.inputs["dlse"]].value == 1.0)


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (lambda q, k, v: softmax(q, k, v).detach(), "returns result without a gradient: torch.autograd sees no path"),
        (lambda q, k, v: softmax(q, k, v).detach().numpy(), "returns a ndarray as result"),
        (lambda q, k, v: softmax(q, k, v).sum(), r"returns result of shape \[\]; the reference's is \[16, 8\]"),
        (lambda q, k, v: softmax(q, k, v).half(), "in torch.float16, which does not hold dresult"),
        (lambda q, k, v: (softmax(q, k, v), q), "returns 2 arrays; the reference returns 1"),
        (lambda q, k, v: {"result": softmax(q, k, v), "dq": q}, "returns dq, which autograd is to make"),
        (lambda q, k, v: {"probs": q @ k.T}, "returns no result, whose gradient dresult the reference goes back from"),
    ],
    ids=["detached", "numpy", "shape", "dtype", "too many", "by hand", "a stage alone"],
)
def test_what_autograd_cannot_answer_is_refused(kernel: Callable[..., Any], words: str) -> None:
    with pytest.raises(Refusal, match=words):
        diff_reference(kernel, softmax, QKV, gradients=True)


def test_a_reference_in_numpy_is_refused(tmp_path: Any) -> None:
    (tmp_path / "naive.py").write_text("import numpy as np\n\ndef f(x):\n    return np.exp(x)\n")
    with pytest.raises(
        Refusal, match=r"gradients go through torch.autograd: .*naive.py:f is in NumPy; it must be in torch"
    ):
        diff_reference(torch.exp, f"{tmp_path}/naive.py:f", {"x": drawn(4)}, gradients=True)


def test_inputs_in_numpy_become_tensors() -> None:
    found = diff_reference(softmax, softmax, {name: x.numpy() for name, x in QKV.items()}, gradients=True)
    assert found.verdict in RIGHT and len(found.stages) == 4


class Writes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, how):
        ctx.save_for_backward(x)
        ctx.how = how
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        if ctx.how == "unwritten":
            made = torch.empty_like(x)
            made[1:] = 2 * x[1:] * g[1:]
            return made, None
        made = 2 * x * g
        if ctx.how == "in place":
            g.mul_(2.0)
        if ctx.how == "races":
            CALLS.append(ctx.how)
            made[0] *= 1 + 1e-3 * len(CALLS)
        return made, None


CALLS = list[str]()


def test_memory_is_watched_in_the_backward_pass() -> None:
    def of(how: str) -> Any:
        return diff_reference(lambda x: Writes.apply(x, how), lambda x: x * x, {"x": drawn(5, 3)}, gradients=True)

    assert of("").verdict in RIGHT
    assert of("unwritten").verdict == "missing" and of("unwritten").origins == ("dx",)
    assert of("in place").gates and "dresult" in of("in place").gates[0]
    CALLS.clear()
    found = of("races")
    assert found.verdict == "bug" and "different bits: dx by up to" in found.notes[0]


def test_writes_in_place_are_no_reads_of_fresh_memory() -> None:
    """Autograd copies a gradient into fresh memory, and strides over it from where its storage begins."""

    def kernel(x):
        out = torch.zeros_like(x)
        for i in range(len(x)):
            out[i] = x[i].exp()
        return out

    assert diff_reference(kernel, lambda x: x.exp(), {"x": drawn(4, 3)}, gradients=True).verdict in RIGHT


def test_a_kernel_that_raises_in_its_backward_pass_is_told() -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            raise ValueError("no such tile")

    with pytest.raises(Raised, match="no such tile"):
        diff_reference(Fails.apply, lambda x: x * 2, {"x": drawn(4)}, gradients=True)


def test_gradients_that_somebody_made() -> None:
    leaves = {name: x.clone().requires_grad_() for name, x in QKV.items()}
    dout = drawn(16, 8, seed=5)
    out = softmax(**leaves)
    out.backward(dout)
    actual = {"result": out, **{f"d{name}": x.grad for name, x in leaves.items()}}
    found = diff_results(actual, softmax, QKV | {"dresult": dout}, gradients=True)
    assert found.verdict in RIGHT and len(found.stages) == 4
    actual["dk"] = leaves["k"].grad * 1.001
    wrong = diff_results(actual, softmax, QKV | {"dresult": dout}, contract=STRICT, gradients=True)
    assert wrong.origins == ("dk",)
    with pytest.raises(Refusal, match="dresult is missing"):
        diff_results(actual, softmax, QKV, gradients=True)
    for none in (out, {"result": out}):
        with pytest.raises(Refusal, match="a dict that has some of them: dq, dk, dv"):
            diff_results(none, softmax, QKV | {"dresult": dout}, gradients=True)


def test_another_formula_of_a_derivative_is_no_bug() -> None:
    """1 - s loses what is small in s (1 - s); a gradient that is off by more is wrong."""

    def naive(x):
        return 1 / (1 + torch.exp(-x))

    def off(x):
        return torch.sigmoid(x) + (2.0**-18 * x.sum(-1, keepdim=True) if x.requires_grad else 0.0)

    x = 4 * torch.randn(16, 64, generator=torch.Generator().manual_seed(0))
    found = diff_reference(torch.sigmoid, naive, {"x": x}, gradients=True)
    (_, dx) = found.stages
    assert (found.verdict, dx.doubt) == ("suspicious", "evidence") and found.fails
    assert (
        "by a few float32 roundings of the largest gradient. A backward pass by another formula does that" in dx.reason
    )
    assert diff_reference(off, naive, {"x": x}, gradients=True).verdict == "bug"
    assert diff_reference(torch.sigmoid, torch.sigmoid, {"x": x}, gradients=True).verdict in RIGHT


def test_a_masked_maximum_has_a_gradient_in_every_run() -> None:
    """Masked scores are -inf: put apart from each other they were NaN, and nothing behind them was judged."""
    found = diff_reference(flash(), attention, QKV, gradients=True)
    assert all(one.decisive is not None and one.decisive.summary.judged == one.dumped.size for one in found.stages)


def test_a_gradient_that_chance_does_not_explain_keeps_its_reason() -> None:
    """None of its elements is over budget: no other formula is looked for."""

    def naive(x):
        return ((x - x.mean(-1, keepdim=True)) ** 2).sum(-1) / (x.shape[-1] - 1)

    x = 3 + torch.randn(64, 300, generator=torch.Generator().manual_seed(0))
    (_, dx) = diff_reference(lambda x: x.var(-1), naive, {"x": x}, gradients=True).stages
    assert dx.verdict == "suspicious" and "deviations off" in dx.reason and "another formula" not in dx.reason
