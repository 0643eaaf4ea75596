"""The torch front end: views, writes, creation, casts, decisions and refusals mean what they mean in torch."""

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from workbench.floats import round_to
from workbench.reference.graph import Contract, Expected, budgets, stage, trace
from workbench.refusal import Refusal

torch.manual_seed(1)
X = torch.randn(4, 6)
GLOBAL, FEW = torch.randn(4, 6), torch.tensor([0.5, 0.25])
LAYER = torch.nn.Linear(6, 6)
FILE = __file__


def results(f: Callable[..., Any], **inputs: Any) -> list[Expected]:
    graph = trace(f, inputs)
    return list(budgets(graph, Contract(), names=list(graph.results)).values())


def flat(x: Any) -> list[torch.Tensor]:
    return [y for one in x for y in flat(one)] if isinstance(x, list | tuple) else [x]


def agree(f: Callable[..., Any], x: torch.Tensor = X) -> None:
    """Values of a run are those of torch in float64, and the input stays as it was."""
    before = x.clone()
    found = results(f, x=x)
    right = flat(f(x.double().clone()))
    assert torch.equal(x, before)
    assert len(found) == len(right) > 0
    for one, wide in zip(found, right, strict=True):
        np.testing.assert_allclose(np.asarray(one.value, float), wide.double().numpy(), rtol=1e-14, atol=0)
        assert one.value.size and np.all(np.isfinite(one.budget.bound))


# views and writes


def columns(x):
    o = torch.zeros_like(x)
    for t in range(x.shape[1]):
        o[:, t] = x[:, t] * (t + 1)
    return o


def augmented(x):
    y = x
    y += 1
    return x * y


def through_views(x):
    o = torch.zeros(6, 4, dtype=x.dtype)
    row, turned = o[2], o.t()
    turned.copy_(x)
    row *= 2
    block = o.view(3, 2, 4)[1]
    block[0, ::2] -= row[:2]
    return o, row, turned[1], block


def copies(x):
    y, z, rows = x.clone(), x.t().contiguous(), x[[0, 2]]
    y[0] = 0
    z.fill_(5)
    rows += 7
    flat = x.t().reshape(-1)
    flat[3] = 7
    return x + 0, y, z, rows, flat


def a_clone_keeps_its_order(x):
    y = x.t().clone()
    flat = y.reshape(-1)  # a copy, since y has the strides of x.t()
    flat += 1
    return y, flat


def flat_view(x):
    flat = x.reshape(-1)
    flat[3:5] = 0
    return x * 1


def by_masks(x):
    y = x.clone()
    y.masked_fill_(y < 0, -2.0)
    y[y > 1] = 1.0
    y[torch.tensor([0, 3]), torch.tensor([1, 5])] = 9
    y.index_put_((torch.tensor([1, 1]),), torch.ones(6, dtype=x.dtype), accumulate=True)
    return y


def by_places(x):
    y = torch.zeros(3, 6, dtype=x.dtype)
    y.scatter_add_(0, torch.tensor([[0, 1, 2, 0, 1, 2], [0, 0, 0, 0, 0, 0]]), x[:2])
    y.scatter_(1, torch.tensor([[5], [4], [3]]), x[:3, :1])
    y.index_add_(0, torch.tensor([2, 2]), x[:2])
    y.index_copy_(0, torch.tensor([1]), x[3:])
    return y


def swapped(x):
    x[[0, 1]] = x[[1, 0]]
    a, b = x[2], x[3].clone()
    x[3] = a
    x[2] = b
    return x * 1


def parts(x):
    left, right = x.chunk(2, dim=-1)
    left *= 2
    for row in right.unbind(0):
        row -= 1
    first, *_ = x.split([1, 3])
    first.zero_()
    return x + 0, left, right


def in_place(x):
    y = x.exp_().sub_(1).div_(2).clamp_(max=1).mul_(x)
    y.add_(x, alpha=3).neg_()
    y[1:].sqrt_().nan_to_num_(0.0)
    return y, x


def into(x):
    o, p = torch.empty(4, 6, dtype=x.dtype), torch.zeros(4, 4, dtype=x.dtype)
    torch.exp(x, out=o)
    torch.mul(o, 2, out=o)
    torch.matmul(x, x.t(), out=p)
    return o, p


def other_axes(x):
    y = x.clone()
    y.unsqueeze_(0)
    y += 1
    z = y.squeeze(0)
    z[0] = 0
    return y, z.data, z.detach(), z.unflatten(-1, (2, 3)), z.flatten()


def triangles(x):
    y = x.clone()
    y.tril_()
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask.triu_(1)
    mask[0, 0] = True
    return y, (x @ x.t()).masked_fill(mask, 0.0)


def state(x):
    s = x.new_zeros(6, 6)
    outs = []
    for t in range(4):
        s = s * 0.9 + x[t][:, None] * x[t][None, :]
        outs.append(x[t] @ s)
    return torch.stack(outs), s


def deep(x):
    y = copy.deepcopy(x)
    y += 1
    return x * 1, y


def random_views_and_writes(seed):
    """A program of forty steps on tensors that share memory in all ways."""

    def program(x):
        steps, pool = random.Random(seed), [x, x.new_zeros(6, 4), x.clone().t()]
        for _ in range(40):
            a = steps.choice(pool)
            flat, n, kind = a.numel(), a.dim(), steps.randrange(12)
            if kind == 0:
                new = a.transpose(0, n - 1)
            elif kind == 1:
                new = a.unsqueeze(steps.randrange(n + 1)) if n < 3 else a.squeeze()
            elif kind == 2 and n > 1:
                new = a.select(dim := steps.randrange(n), steps.randrange(a.shape[dim]))
            elif kind == 3 and n:
                new = a.narrow(dim := steps.randrange(n), 0, max(1, a.shape[dim] - 1))
            elif kind == 4:
                new = a.reshape(-1)
            elif kind == 5:
                new = a[..., ::2]
            elif kind == 6:
                new = a.contiguous()
            elif kind == 7:
                new = steps.choice([a.clone(), a * 0.5, a.flip(0)])
            elif kind == 8:
                new = a.add_(steps.random()) if steps.random() < 0.5 else a.mul_(-0.5)
            elif kind == 9 and flat > 1:
                a[0] = steps.random()
                new = a.view(a.shape)
            elif kind == 10:
                new = a.masked_fill_(a > 0.5, 0.25)
            else:
                others = [b for b in pool if b.shape == a.shape]
                new = a.copy_(steps.choice(others) * 0.5)
            pool.append(new)
        return pool

    program.__qualname__ = f"program {seed}"
    return program


WRITES = [*(random_views_and_writes(seed) for seed in range(40)), deep, columns, augmented, through_views, copies, a_clone_keeps_its_order, flat_view, by_masks, by_places, swapped,
          parts, in_place, into, other_axes, triangles, state]  # fmt: skip


@pytest.mark.parametrize("f", WRITES, ids=lambda f: f.__qualname__)
def test_views_and_writes_are_torchs(f: Any) -> None:
    agree(f)


def test_a_write_of_computed_values_is_no_constant() -> None:
    def places(x):
        found = torch.zeros(2, dtype=torch.long)
        found[0] = x[0].argmax()
        return x[0, found[0].item()], found

    graph = trace(places, {"x": X})
    assert [one.words for one in graph.decisions] == ["item()"]
    agree(places)


# creation


def test_what_a_reference_makes_is_float64_with_its_dtype_noted() -> None:
    def made(x):
        filled = torch.zeros_like(x)
        filled[:] = 0.1
        filled[filled > 0.2] = 0.3
        return (
            torch.zeros(3, dtype=torch.float) + 0.1, torch.full((2,), 0.1), torch.eye(3, dtype=torch.half) / 3,
            torch.ones_like(x, dtype=torch.bfloat16) / 3, torch.arange(0, 1, 0.1), torch.linspace(0, 1, 7),
            x.new_full((2,), 1 / 3), torch.full_like(x, 1 / 3), torch.zeros_like(x) + 1 / 3, torch.tensor(0.1),
            torch.tensor([[0.1] * 20], dtype=torch.half), x.new_tensor(0.1), torch.as_tensor(0.1), filled,
        )  # fmt: skip

    graph = trace(made, {"x": X.bfloat16()})
    found = budgets(graph, Contract())
    wide = [0.1, 0.1, np.eye(3) / 3, 1 / 3, np.arange(0, 1, 0.1), np.linspace(0, 1, 7), 1 / 3, 1 / 3, 1 / 3, *[0.1] * 5]
    names = "float32 float32 float16 bfloat16 float32 float32 bfloat16 bfloat16 bfloat16 float32 float16 bfloat16 float32 bfloat16".split()
    for i, (right, name) in enumerate(zip(wide, names, strict=True)):
        one = found[f"result[{i}]"].value
        assert one.size
        np.testing.assert_allclose(one, np.broadcast_to(right, one.shape), rtol=1e-15)
        assert graph.nodes[graph.results[f"result[{i}]"]].dtype.name == name


def test_memory_that_was_not_written_is_not_read() -> None:
    def never(x):
        return torch.empty(4, 6) + x

    def partly(x):
        o = torch.empty_like(x)
        o[1:] = x[1:]
        return o

    def some(x):
        o = x.new_empty(4, 6)
        o.t()[2].copy_(x[:, 2])
        return o[:, 2] + o[:, 3]

    def all_of_it(x):
        o = torch.empty_like(x)
        a, b = o.view(2, 2, 6)
        a.copy_(x[:2])
        b[...] = x[2:]
        o[torch.tensor([0, 1])] = 0.0
        return o

    for f, words in ((never, "24 of 24"), (partly, "6 of 24"), (some, "4 of 4")):
        with pytest.raises(Refusal, match=words + " elements of a torch.empty are read before they are written"):
            trace(f, {"x": X})
    agree(all_of_it)


# dtypes


def test_casts_among_floats_are_noted_and_not_executed() -> None:
    def cast(x):
        y = (x.half().float() / 3).to(torch.bfloat16).type_as(x)
        return y * torch.ones((), dtype=torch.float16).to(y.dtype)

    graph = trace(cast, {"x": X})
    assert [node.dtype.name for node in graph.nodes if node.op == "cast" and node.reads[0] != 9][:4] == [
        "float16", "float32", "bfloat16", "float32"]  # fmt: skip
    np.testing.assert_allclose(budgets(graph, Contract())["result"].value, X.double().numpy() / 3, rtol=1e-15)


def test_casts_to_8_bits_and_to_whole_numbers_are_executed() -> None:
    def cast(x):
        return x.to(torch.float8_e4m3fn).float() + 0, (x * 10).to(torch.int8), (x * 3).long() * 2, x.round() + 0

    found = results(cast, x=X)
    wide = X.double().numpy()
    right = [round_to(wide, "float8_e4m3fn"), np.trunc(wide * 10), np.trunc(wide * 3) * 2, np.rint(wide)]
    for one, value in zip(found, right, strict=True):
        assert one.value.size and np.array_equal(one.value, value)


def test_branches_on_dtypes_see_the_users() -> None:
    def branch(x):
        assert x.dtype == torch.bfloat16 and x.float().dtype is torch.float32 and x.element_size() == 2
        assert (x * torch.ones(6)).dtype == torch.float32 and (x * 2.0).dtype == torch.bfloat16
        eps = torch.finfo(x.dtype).eps if x.dtype == torch.bfloat16 else 0.0
        return x + eps + torch.finfo(torch.float32).eps

    one = results(branch, x=X.bfloat16())[0]
    np.testing.assert_allclose(one.value, X.bfloat16().double().numpy() + 2.0**-7 + 2.0**-23, rtol=1e-15)
    graph = trace(lambda x: x * (x.dtype == torch.float16), {"x": X}, dtype="float16")
    assert np.any(budgets(graph, Contract())["result"].value)


# decisions


def test_decisions_are_noted_with_their_lines() -> None:
    def decide(x):
        top = x.max().item()
        if x[0, 0] > 0:
            x = x * 2
        assert torch.allclose(x, x * 1.0) and not torch.isnan(x).any() and f"{x[0, 0]:.3f}"
        for n in torch.arange(2):
            x = x + int(n)
        scale = float(x.abs().mean()) + len(x) + x[1, x[0].argmax()].tolist()
        return x * top * scale

    graph = trace(decide, {"x": X})
    first = decide.__code__.co_firstlineno
    assert [(one.words, one.line.number - first) for one in graph.decisions] == [
        ("item()", 1), ("if", 2), ("torch.allclose", 4), ("torch.allclose", 4), ("if", 4), ("item()", 4),
        ("float()", 7), ("a number of Python", 7), ("tolist()", 7)]  # fmt: skip
    assert {one.line.file for one in graph.decisions} == {FILE}
    agree(decide)


def test_a_mask_of_computed_values_is_no_decision_of_the_run() -> None:
    def capped(x):
        y = x @ x.t()
        y[y > y[0, 0]] = 0.0
        y.masked_fill_(y < y[1, 1], -1.0)
        return torch.where(y == 0.5, 1.0, y)

    graph = trace(capped, {"x": X})
    assert graph.decisions == ()
    bound = budgets(graph, Contract())["result"].budget.bound
    assert bound[0, 0] > 1  # as large as what it is compared with: it may be capped
    assert np.mean(bound < 1e-5) > 0.5
    with pytest.raises(RuntimeError, match="if of a tensor with 24 elements"):
        trace(lambda x: 1 if x > 0 else 2, {"x": X})


def test_a_choice_that_budgets_leave_open_may_be_the_other() -> None:
    """The value, off by little, is at one place or another; what stands at the open place has no bound."""

    def gate(x):
        values, places = torch.topk(x @ x.t() / 3, 1, dim=-1)
        return torch.zeros(4, 4).scatter(-1, places, values), values, torch.arange(4.0)[places]

    x = X.clone()
    x[1] = x[0] * (1 + 2.0**-22)
    gates, values, rows = (one.budget.bound for one in results(gate, x=x))
    assert np.all(gates[:2, :2] >= 2) and np.all(gates[2:] < 1e-5) and np.all(values < 1e-5)
    assert np.all(np.isinf(rows[:2])) and np.all(rows[2:] == 0)


# random numbers


def test_numbers_drawn_without_a_seed_are_refused() -> None:
    def dropped(x):
        return F.dropout(x, 0.5)

    def seeded(x):
        torch.manual_seed(3)
        return F.dropout(x, 0.5) + torch.randn(6) + torch.rand_like(x) + torch.randint(3, (6,))

    def generated(x):
        return x + torch.randn(6, generator=torch.Generator().manual_seed(2))

    before = torch.get_rng_state()
    with pytest.raises(Refusal, match="dropped draws other random numbers in a second run"):
        trace(dropped, {"x": X})
    found = [results(f, x=X)[0] for f in (seeded, generated)]
    assert torch.equal(before, torch.get_rng_state())
    np.testing.assert_allclose(found[1].value, generated(X).numpy(), rtol=1e-6)
    with torch.random.fork_rng():
        np.testing.assert_allclose(found[0].value, seeded(X).numpy(), rtol=1e-6)


# refusals: f, what is said, how many lines below `def` (or `lambda`)

REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "global": (lambda x: x + GLOBAL, "a tensor of 24 floats that was not made in this run .a global, a parameter, NumPy."),
    "made of a global": (lambda x: x @ (GLOBAL * 2).t(), "a tensor of 24 floats"),
    "parameter": (lambda x: LAYER(x), "a tensor of 36 floats that was not made in this run"),
    "from numpy": (lambda x: x + torch.from_numpy(np.ones((4, 6))), "a tensor of 24 floats"),
    "cumulative maximum": (lambda x: x.cummax(0)[0], "no rule for torch.ops.aten.cummax.default"),
    "tan": (lambda x: x.tan(), "no rule for torch.ops.aten.tan.default"),
    "qr": (lambda x: torch.linalg.qr(x)[1], "no rule for torch.ops.aten.linalg_qr.default"),
    "fft": (lambda x: torch.fft.rfft(x).abs(), "no rule for torch.ops.aten._fft_r2c.default"),
    "median": (lambda x: x.median(), "no rule for torch.ops.aten.median.default"),
    "conv2d": (lambda x: F.conv2d(x[None, None], x[None, None]), "only conv1d has one"),
    "norm 3": (lambda x: x.norm(p=3), "no rule for a norm of order 3"),
    "bits": (lambda x: x.view(torch.int32), "no rule for the bits of a tensor"),
    "complex": (lambda x: torch.polar(x, x), "no rule for a tensor of torch.complex64"),
    "numpy": (lambda x: x.numpy() * 2, "would become a plain array here"),
    "asarray": (lambda x: np.asarray(x), "would become a plain array here"),
    "ufunc": (lambda x: np.exp(x), "would become a plain array here"),
    "gradients": (lambda x: x.requires_grad_(), "a reference does without torch.autograd"),
    "backward": (lambda x: x.sum().backward(), "a reference does without torch.autograd"),
    "autograd.grad": (lambda x: torch.autograd.grad(x.sum(), x)[0], "a reference does without torch.autograd"),
    "autograd.backward": (lambda x: torch.autograd.backward(x.sum()), "a reference does without torch.autograd"),
    "expanded": (lambda x: x[:1].expand(4, 6).add_(1), "elements stand in several places"),
    "diagonal": (lambda x: x.diagonal().zero_(), "a view that a run copies"),
    "into a global": (lambda x: GLOBAL.add_(x), "torch.add_ writes into a tensor that was not made in this run"),
    "own result": (lambda x: GLOBAL, "returns Tensor as result, which was not computed from its inputs"),
    "into two": (lambda x: torch.max(x, 1, out=(torch.zeros(4), torch.zeros(4, dtype=torch.long))),
                 "no rule for torch.ops.aten.max.dim_max, which writes into several tensors"),
    "overload": (lambda x: torch.ops.aten.expand_copy(x, [4, 6], implicit=True),
                 "no rule for torch.ops.aten.expand_copy.default with these arguments"),
    "resized": (lambda x: x.resize_(3, 2), "no rule for torch.ops.aten.resize_.default"),
    "scatter of several": (lambda x: x.scatter_reduce(0, torch.zeros(1, 6, dtype=torch.long), x[:1], "amax"),
                           "no rule for scatter_reduce with 'amax'"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_rule_is_refused_with_its_line(name: str) -> None:
    f, words = REFUSED[name]
    with pytest.raises(Refusal, match=words) as refused:
        trace(f, {"x": X})
    if name != "own result":
        assert str(refused.value).startswith(f"{FILE}:{f.__code__.co_firstlineno}: ")


def test_gradients_by_torch_func_are_followed() -> None:
    graph = trace(lambda x: torch.func.grad(lambda x: (x * x).sum())(x), {"x": X})
    assert np.array_equal(budgets(graph, Contract())["result"].value, 2 * X.double().numpy())


def test_few_constants_may_come_from_anywhere() -> None:
    agree(lambda x: x[:, :2] * FEW.to(x.dtype) + np.float32(0.5) + np.sqrt(2.0))


def test_a_run_keeps_nothing() -> None:
    kept = []

    def keeping(x):
        kept.append(x)
        return x + kept[0]

    trace(keeping, {"x": X})
    with pytest.raises(Refusal, match="a tensor of another run"):
        trace(keeping, {"x": X})
    with pytest.raises(Refusal, match="of a tensor of a run that has ended"):
        kept[0] + 1


def test_inputs_may_be_in_lists_and_dicts() -> None:
    def nested(parts, weights, scale):
        return weights["a"] * parts[0] + parts[1] * scale

    for library in (torch.from_numpy, np.array):
        x = library(X.numpy())
        graph = trace(nested, {"parts": [x, x], "weights": {"a": x}, "scale": 2.0})
        assert set(graph.inputs) == {"parts[0]", "parts[1]", "weights.a"}
        wide = X.double().numpy()
        np.testing.assert_allclose(budgets(graph, Contract())["result"].value, wide * wide + 2 * wide)


def test_inputs_are_of_one_library() -> None:
    with pytest.raises(Refusal, match="input y is an array of NumPy, and others are tensors"):
        trace(lambda x, y: x + y, {"x": X, "y": X.numpy()})
    with pytest.raises(Refusal, match="input x is a tensor of torch.complex64"):
        trace(lambda x: x, {"x": X.to(torch.complex64)})


def test_places_out_of_range_are_torchs_errors() -> None:
    for f in (
        lambda x: x.gather(1, torch.tensor([[-1]])),
        lambda x: x.index_select(0, torch.tensor([4])),
        lambda x: x.scatter(1, torch.tensor([[6]]), 1.0),
        lambda x: F.embedding(torch.tensor([-2]), x),
        lambda x: F.cross_entropy(x, torch.tensor([0, 1, 6, 2])),
        lambda x: x[torch.tensor([4])],
    ):
        for run in (lambda f=f: f(X), lambda f=f: trace(f, {"x": X})):
            with pytest.raises((IndexError, RuntimeError)):
                run()


# names


class Scaled(torch.nn.Module):
    def forward(self, x):
        y = x * FEW.exp()[0]
        return y.to(x.device) + torch.ones(6, device=x.device)


@torch.no_grad()
def decorated(x):
    z = x * 2
    return z + 1


def test_modules_and_decorated_functions_are_references() -> None:
    for f, name in ((Scaled(), "y"), (decorated, "z")):
        graph = trace(f, {"x": X})
        assert set(graph.stages) == {name}
        assert {node.line.file for node in graph.nodes if node.op != "input"} == {FILE}
    exp = budgets(trace(Scaled(), {"x": X}), Contract())["y"]
    np.testing.assert_allclose(exp.value, X.double().numpy() * np.exp(0.5), rtol=1e-15)  # not of torch.exp in float32


def test_local_variables_and_stage_name_tensors() -> None:
    def helper(x):
        inner = x * 3
        return inner + 1

    def named(x):
        a, b = x.chunk(2, -1)
        total = torch.zeros_like(a)
        for i in range(2):
            total += a * i
            part = stage("product", total * b)
        n = x.shape[0]
        filled = torch.zeros_like(x)
        filled[:, 1:3] = b[:, :2]
        filled[filled > 0.5] = 0.5
        filled.masked_fill_(filled < 0, 0.0)
        filled.index_add_(0, torch.tensor([0]), x[:1])
        y = helper(part) / n
        return stage("last", y), stage("again", y)

    graph = trace(named, {"x": X})
    assert {name: len(turns) for name, turns in graph.stages.items()} == {
        "a": 1, "b": 1, "total": 3, "product": 2, "part": 2, "helper.inner": 1, "filled": 1, "y": 1, "last": 1, "again": 1,
    }  # fmt: skip
    found = budgets(graph, Contract(), {"product[1]": np.ones((4, 3))})
    assert found["y"].value.size and np.all(found["y"].value == 1)
    tensors = budgets(graph, Contract(), {"product[1]": torch.ones(4, 3, dtype=torch.bfloat16), "b": X[:, 3:]})
    assert type(tensors["y"].value) is np.ndarray and np.array_equal(tensors["y"].value, found["y"].value)
