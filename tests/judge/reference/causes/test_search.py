"""Causes: named where they reproduce a kernel, on fresh inputs too; else none."""

import inspect
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from workbench.judge.reference.causes.search import explain
from workbench.judge.reference.diff import ReferenceDiff
from workbench.operations.reference.call import diff_reference
from workbench.work import Work

f32 = np.float32
#: trials: the likeliest edits
FEW = 60


def naive(x, w):
    mean = x.mean(-1, keepdims=True)
    var = ((x - mean) ** 2).mean(-1, keepdims=True)
    out = (x - mean) / np.sqrt(var + 1e-5) * w
    total = out.sum(0)
    return out, total


def inputs(seed, dtype, rows=12, dim=40):
    rng = np.random.default_rng(seed)
    return {"x": rng.standard_normal((rows, dim)).astype(dtype), "w": rng.standard_normal(dim).astype(dtype)}


def kernel(
    x, w, *, count: int = 0, eps: float = 1e-5, terms: int = 40, rows: int = 12, only: bool = False, fault: Any = None
):
    x = x.astype(f32)
    mean = x.mean(-1, keepdims=True)
    centered = x - mean
    var = (centered[:, :terms] ** 2).sum(-1, keepdims=True) / f32(40 - count)
    out = centered / np.sqrt(var + f32(eps)) * w
    total = out[:rows].sum(0)
    if fault is not None and (not only or x[0, 0] > 0):
        out = fault(out)
    return out, total


def judged(**more: Any) -> ReferenceDiff:
    given = more.pop("inputs", inputs)
    return diff_reference(partial(kernel, **more), naive, given)


@pytest.mark.parametrize(
    ("more", "text", "line"),
    [
        ({"count": 1}, "var is divided by 39 in place of 40", "var = "),
        ({"eps": 1e-3}, "var + 1e-05 has 0.001 added in place of 1e-05", "out = "),
        ({"terms": 39}, "sum of ((x - mean)^2) leaves out its last term", "var = "),
        ({"rows": 8}, "total leaves out its last, partial tile of 8 terms", "total = "),
        ({"fault": np.negative}, "out has the other sign, for out only", "out = "),
        ({"fault": lambda y: np.roll(y, 1, 1)}, "out is read one place back along axis 1, for out only", "out = "),
        ({"count": -24}, "var is divided by 64 in place of 40", "var = "),  # the columns of a block
    ],
)  # fmt: skip
def test_a_fault_is_named_with_the_line_of_the_reference(more: dict[str, Any], text: str, line: str) -> None:
    found = judged(**more)
    explained = explain(found.scene, Work(FEW))
    (cause,) = explained.causes
    assert cause.names[0].text == text
    assert cause.proved
    assert cause.fresh == 2
    assert cause.elements == sum(found[name].decisive.summary.outside for name in cause.stages)  # type: ignore[union-attr]
    assert explained.unexplained == ()
    source = inspect.getsource(naive).splitlines()
    assert source[cause.names[0].line.number - naive.__code__.co_firstlineno].strip().startswith(line)


def seen(q, k):
    scores = np.where(np.tri(len(q), dtype=bool), q @ k.T, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    probs = weights / weights.sum(-1, keepdims=True)
    return probs


def strict(q, k):
    """A row that sees no key is 0, where the reference would be NaN."""
    scores = np.where(np.tri(len(q), k=-1, dtype=bool), q @ k.T, f32(-np.inf))
    weights = np.exp(scores - np.maximum(scores.max(-1, keepdims=True), f32(-1e30)))
    return weights / np.maximum(weights.sum(-1, keepdims=True), f32(1e-30))


def of_tokens(seed, dtype, n=20):
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal((n, 8)).astype(dtype) for name in "qk"}


def test_a_strict_mask_is_named_though_the_reference_with_it_is_nan_in_a_row() -> None:
    (cause,) = explain(diff_reference(strict, seen, of_tokens).scene, Work(FEW)).causes
    assert "has its diagonal at -1 in place of 0" in cause.names[0].text
    assert cause.undefined == 1
    assert cause.proved


def decayed(k, v):
    state = np.zeros(v.shape[1])
    for t in range(len(k)):
        state = 0.5 * state + k[t] * v[t]
    return state


def decayed_late(k, v):
    states = [np.zeros(v.shape[1], f32)]
    for key, value in zip(k, v, strict=True):
        states.append(f32(0.5) * (states[-1] + key * value))
    return {"state": np.stack(states[1:])}


def of_turns(seed, dtype):
    rng = np.random.default_rng(seed)
    return {"k": rng.standard_normal(12).astype(dtype), "v": rng.standard_normal((12, 16)).astype(dtype)}


def test_a_state_that_was_dumped_in_all_turns_has_causes() -> None:
    """Each turn is made of the state of the turn before, which was given."""
    (cause,) = diff_reference(decayed_late, decayed, of_turns).explain().causes
    assert cause.names[0].text == "k * v is multiplied by 1/2"
    assert cause.proved


def normed(x):
    scale = 1 / np.sqrt(np.sum(x * x, axis=-1))
    out = x * scale[:, None]
    return out


def twice(x):
    scale = 1 / np.sqrt(np.sum(x * x, axis=-1))
    return {"scale": scale, "out": x * scale[:, None] ** 2}


def in_half(x):
    y = x.astype(np.float16).astype(f32)
    return x / np.sqrt(np.sum(y * y, axis=-1, keepdims=True))


@pytest.mark.parametrize(
    ("kernel", "text"),
    [(twice, "scale is squared, where it is read"), (in_half, "x is rounded to float16, in x * x only")],
)
def test_what_is_right_may_be_read_wrongly(kernel: Any, text: str) -> None:
    (cause,) = diff_reference(kernel, normed, lambda seed, dtype: {"x": inputs(seed, dtype)["x"]}).explain().causes
    assert cause.names[0].text == text


def double(x):
    out = 2.0 * x
    return out


def with_noise(x):
    out = f32(2) * x
    out[3] *= (1 + 0.01 * np.random.default_rng(3).standard_normal(x.shape[1])).astype(f32)
    return out


def of_rows(seed, dtype):
    """Rows above 0, but for the one of the noise, whose root is NaN."""
    x = abs(np.random.default_rng(seed).standard_normal((20, 30)))
    x[3] *= -1
    return {"x": x.astype(dtype)}


def test_an_edit_that_makes_nan_of_what_is_wrong_is_no_cause() -> None:
    found = diff_reference(with_noise, double, of_rows)
    assert found.origin == "out"
    assert found.explain().causes == ()


def log_sum(x):
    out = np.log(np.exp(x).sum())
    return out


def below_0(seed, dtype):
    """Numbers whose sum has no logarithm."""
    return {"x": -abs(np.random.default_rng(seed).standard_normal(20)).astype(dtype)}


def test_a_few_elements_that_are_nan_fit_what_makes_nan_and_have_no_cause() -> None:
    found = diff_reference(lambda x: f32(np.nan), log_sum, below_0)
    assert found.origin == "out"
    assert found.explain().causes == ()


def test_a_right_kernel_has_none_and_nothing_is_tried() -> None:
    found = judged().explain()
    assert (found.causes, found.unexplained, found.tried) == ((), (), 0)


def test_what_no_edit_does_stays_unknown() -> None:
    def noisy(y):
        return y * (1 + 0.01 * np.random.default_rng(3).standard_normal(y.shape)).astype(f32)

    found = explain(judged(fault=noisy).scene, Work(FEW))
    assert found.causes == ()
    assert found.unexplained == ("out", "total")  # which is judged from out
    assert found.tried > 200


def test_what_fresh_inputs_contradict_is_withdrawn() -> None:
    found = explain(judged(fault=np.negative, only=True, inputs=_with_sign).scene, Work(FEW))
    assert found.causes == ()
    assert "out has the other sign, for out only" in [one.text for one in found.withdrawn]


def _with_sign(seed: int, dtype: str) -> dict[str, np.ndarray]:
    """Inputs of which those of seed 0 alone show the fault."""
    found = inputs(seed, dtype)
    found["x"][0, 0] = 1.0 if seed == 0 else -1.0
    return found


def test_without_fresh_inputs_it_is_a_guess() -> None:
    found = explain(judged(count=1, inputs=inputs(0, "float32")).scene, Work(FEW))
    assert found.causes[0].names[0].text == "var is divided by 39 in place of 40"
    assert not found.causes[0].proved
    assert found.causes[0].fresh == 0


def test_a_family_that_is_left_out_leaves_no_false_name() -> None:
    found = explain(judged(count=1).scene, Work(FEW), {"constant", "factor"})
    assert found.causes == ()


def test_counted_work_ends_a_search_and_says_so() -> None:
    found = judged(count=1).explain(effort=1e-5)
    assert found.ended_by == "effort"
    assert not found.complete


def test_what_is_nan_everywhere_is_no_root_of_a_negative_number_and_no_load_past_the_end() -> None:
    """Either makes NaN of dweight: the one by accident, the other as what nobody writes does."""

    def plain(x, weight, bias):
        return torch.nn.functional.layer_norm(x, (48,), weight, bias, 1e-6)

    class Unwritten(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, bias):
            ctx.save_for_backward(x, weight, bias)
            return plain(x, weight, bias)

        @staticmethod
        def backward(ctx, dout):
            with torch.enable_grad():
                x, weight, bias = (one.detach().requires_grad_() for one in ctx.saved_tensors)
                dx = torch.autograd.grad(plain(x, weight, bias), x, dout)[0]
            return dx, torch.full((48,), torch.nan), torch.full((48,), torch.nan)

    def drawn(seed, dtype):
        g = torch.Generator().manual_seed(seed)
        sizes = {"x": (100, 48), "weight": (48,), "bias": (48,)}
        return {name: torch.randn(*shape, generator=g) for name, shape in sizes.items()}

    found = diff_reference(lambda x, weight, bias: Unwritten.apply(x, weight, bias), plain, drawn, gradients=True)
    assert (found.verdict, found.origin, found.explain().causes) == ("bug", "dweight", ())


def test_a_guard_that_is_left_out_before_a_logarithm_is_named() -> None:
    def guarded(x):
        kept = np.maximum(x, 0.001)
        out = np.log(kept)
        return out

    def drawn(seed, dtype):
        return {"x": np.random.default_rng(seed).standard_normal((16, 16)).astype(dtype)}

    def kernel(x):
        with np.errstate(all="ignore"):
            return np.log(x)

    [cause] = diff_reference(kernel, guarded, drawn).explain().causes
    assert "kept" in cause.names[0].text
