"""Backward passes of watched calls: of PyTorch's attention and of functions whose gradients are wrong."""

import gc
import json
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.refusals import invoked, refused
from workbench import capture
from workbench.explore.capturing.judging import BACKWARD
from workbench.operations.judge import judged
from workbench.operations.stored import load

torch = pytest.importorskip("torch", reason="torch is not installed")
from tests.explore.capturing import toy  # noqa: E402 - needs torch

sdpa = torch.nn.functional.scaled_dot_product_attention


def drawn(rows: int = 24, keys: int = 24, dtype: Any = torch.float32, heads: int = 4, kv_heads: int = 2) -> list[Any]:
    made = torch.Generator().manual_seed(0)
    shapes = [(2, heads, rows, 16), (2, kv_heads, keys, 16), (2, kv_heads, keys, 16)]
    return [torch.randn(shape, generator=made).to(dtype).requires_grad_() for shape in shapes]


class Wrong(torch.autograd.Function):
    """Right attention whose dK lacks the scale."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any) -> Any:
        ctx.save_for_backward(q, k, v)
        return sdpa(q, k, v, is_causal=True, enable_gqa=True)

    @staticmethod
    def backward(ctx: Any, dout: Any) -> Any:  # type: ignore[override]
        leaves = [x.detach().requires_grad_() for x in ctx.saved_tensors]
        with torch.enable_grad():
            out = sdpa(*leaves, is_causal=True, enable_gqa=True)
        dq, dk, dv = torch.autograd.grad(out, leaves, dout)
        return dq, 4 * dk, dv


def told(q: Any, k: Any, v: Any) -> dict[str, Any]:
    return {"q": q, "k": k, "v": v, "causal": True}


@pytest.mark.campaign(but=2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_right_gradients_are_judged_and_not_kept(dtype: Any, tmp_path: Path) -> None:
    q, k, v = drawn(dtype=dtype)
    plain = torch.autograd.grad(sdpa(q, k, v, is_causal=True, enable_gqa=True).square().sum(), (q, k, v))
    with capture(torch.nn.functional.scaled_dot_product_attention, tmp_path) as c:
        made = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        assert c.report.awaited == 1 and "1 have not run" in str(c.report)
        made.square().sum().backward()
    found = c.report
    assert (found.judged, found.gradients, found.awaited, found.wrong_gradients) == (1, 1, 0, 0) and not found.unread
    assert found.verdict == "rounding" and not (tmp_path / BACKWARD).exists()
    assert all(torch.equal(x.grad, y) for x, y in zip((q, k, v), plain, strict=True)), "watched or not, the same bits"


def test_a_wrong_gradient_is_kept_and_judged_again(tmp_path: Path) -> None:
    with capture(Wrong.apply, tmp_path, spec=told) as c:
        for _ in range(2):
            c.function(*drawn()).sum().backward()
    found = c.report
    assert (found.judged, found.wrong, found.gradients, found.wrong_gradients) == (2, 0, 2, 2)
    assert (found.verdict, found.kept_gradients.stage, found.kept_gradients.call) == ("bug", "dk", 0)
    assert "first wrong backward pass: of call 0, bug at dk" in str(found)
    again = judged(load(tmp_path / BACKWARD))
    assert (again.verdict, again.origins) == ("bug", ("dk",))
    shown = invoked("diff", tmp_path / "backward")
    assert shown.exit_code == 1 and "dk" in shown.stdout
    document = json.loads(invoked("diff", tmp_path / BACKWARD, "--json").stdout)
    assert document["verdict"] == "bug"
    assert "brings its own case; it takes no --causal" in refused("diff", tmp_path / "backward", "--causal")
    why = invoked("explain", tmp_path / "backward", "--seconds", "2")
    assert why.exit_code == 1 and "cause: perhaps dk is multiplied by 1/scale" in why.stdout
    assert "it takes no --script" in refused("explain", tmp_path / "backward", "--script", tmp_path / "x.py")


def test_the_gradient_of_the_call_alone_is_judged_whatever_else_reads_its_inputs(tmp_path: Path) -> None:
    q, k, v = drawn()
    with capture(torch.nn.functional.scaled_dot_product_attention, tmp_path) as c:
        one = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        two = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True, is_causal=True)
        (one.sum() + 3 * two.square().sum() + q.exp().sum() + (k * k).sum()).backward()
    assert (c.report.gradients, c.report.wrong_gradients) == (2, 0)


def test_of_a_large_call_dq_of_some_queries_is_judged(tmp_path: Path) -> None:
    class WrongQ(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, q: Any, k: Any, v: Any) -> Any:
            ctx.save_for_backward(q, k, v)
            return sdpa(q, k, v, enable_gqa=True)

        @staticmethod
        def backward(ctx: Any, dout: Any) -> Any:  # type: ignore[override]
            leaves = [x.detach().requires_grad_() for x in ctx.saved_tensors]
            with torch.enable_grad():
                out = sdpa(*leaves, enable_gqa=True)
            dq, dk, dv = torch.autograd.grad(out, leaves, dout)
            return 1.01 * dq, dk, dv

    spec = lambda q, k, v: {"q": q, "k": k, "v": v}  # noqa: E731
    for function, wrong in ((lambda q, k, v: sdpa(q, k, v, enable_gqa=True), 0), (WrongQ.apply, 1)):
        folder = tmp_path / str(wrong)
        with capture(function, folder, spec=spec) as c:
            c.function(*drawn(rows=300, keys=400)).square().sum().backward()
        assert (c.report.gradients, c.report.wrong_gradients) == (1, wrong), str(c.report)
    kept = load(folder / BACKWARD)
    assert [*kept.stages] == ["dq"] and kept.case.sizes["q"] == 2**16 // 800


def test_what_is_frozen_has_no_gradient_and_the_others_are_judged(tmp_path: Path) -> None:
    q, k, v = drawn()
    with capture(Wrong.apply, tmp_path, spec=told) as c:
        c.function(q.detach(), k, v.detach()).sum().backward()
    assert c.report.wrong_gradients == 1 and [*load(tmp_path / BACKWARD).stages] == ["dk"]


def test_autocast_and_masks(tmp_path: Path) -> None:
    q, k, v = drawn(kv_heads=4)
    mask = torch.rand(24, 24) < 0.6
    with (
        capture(torch.nn.functional.scaled_dot_product_attention, tmp_path) as c,
        torch.autocast("cpu", torch.bfloat16),
    ):
        torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).float().square().sum().backward()
    assert (c.report.gradients, c.report.wrong_gradients) == (1, 0) and not c.report.unread, str(c.report)


def test_no_graph_is_kept_alive_and_nothing_is_waited_for_without_gradients(tmp_path: Path) -> None:
    q, k, v = drawn()
    with capture(torch.nn.functional.scaled_dot_product_attention, tmp_path) as c:
        with torch.no_grad():
            torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        assert c.report.awaited == 0
        hidden = q * 1
        alive = weakref.ref(hidden)
        made = torch.nn.functional.scaled_dot_product_attention(hidden, k, v, enable_gqa=True)
        del hidden, made
        gc.collect()
        assert alive() is None, "a graph that nobody runs backward is freed"


def test_the_gradients_of_a_model(tmp_path: Path) -> None:
    layers = [{name: x.requires_grad_() for name, x in layer.items()} for layer in toy.weights()]
    with capture(torch.nn.functional.scaled_dot_product_attention, tmp_path) as c:
        toy.forward(toy.tokens(), layers, toy.causal).square().sum().backward()
    assert (c.report.gradients, c.report.wrong_gradients, c.report.awaited) == (toy.LAYERS, 0, 0)
    assert np.isfinite([float(x.grad.sum()) for layer in layers for x in layer.values()]).all()


def test_a_tensor_that_cannot_be_followed_fails_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("no view of it")

    monkeypatch.setattr("workbench.explore.capturing.capture.Followed.__init__", broken)
    q, k, v = drawn()
    with capture(torch.nn.functional.scaled_dot_product_attention, tmp_path) as c:
        made = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    assert torch.equal(made, sdpa(q, k, v, enable_gqa=True))
    assert c.report.unread == {"RuntimeError: no view of it": 1} and c.report.judged == 0
