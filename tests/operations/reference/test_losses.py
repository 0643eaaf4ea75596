"""Losses whose forward pass makes their gradient, for a gradient of 1, and stores it in the dtype of the inputs."""

from typing import Any

import pytest

from workbench.operations.reference.call import diff_reference

torch = pytest.importorskip("torch")

LABELS = torch.arange(24) * 7 % 20


def drawn(dtype: str, by: float = 2.0) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(3)
    return {"x": (by * torch.randn(24, 20, generator=generator)).to(getattr(torch, dtype)), "labels": LABELS}


def cross_entropy(x, labels):
    x = x.float()
    return torch.logsumexp(x, -1) - x.gather(-1, labels[:, None])[:, 0]


class Stored(torch.autograd.Function):
    """The gradient of the logits is stored, and multiplied in the backward pass."""

    @staticmethod
    def forward(ctx, x, labels, fault):
        probs = x.float().softmax(-1)
        one = torch.nn.functional.one_hot(labels, x.shape[-1])
        back = probs.to(x.dtype) - one if fault == "rounded before" else probs - one
        ctx.save_for_backward((back * (1.01 if fault == "factor" else 1.0)).to(x.dtype))
        ctx.fault = fault
        return cross_entropy(x, labels).to(x.dtype)

    @staticmethod
    def backward(ctx, dout):
        (back,) = ctx.saved_tensors
        return back * (dout[0] if ctx.fault == "first token" else dout[:, None]), None, None


def judged(dtype: str, fault: str = "", contract: str | None = None, by: float = 2.0) -> Any:
    def kernel(x, labels):
        return Stored.apply(x, labels, fault)

    return diff_reference(kernel, cross_entropy, drawn(dtype, by), gradients=True, contract=contract)


def test_a_gradient_that_was_stored_before_it_was_multiplied_is_no_bug() -> None:
    found = judged("bfloat16")
    assert (found.verdict, found.doubt) == ("suspicious", "assumption") and not found.fails
    assert "they pass with --contract round=gradients: declare" in found["dx"].reason
    assert judged("bfloat16", contract="round=gradients").verdict == "rounding"


def test_one_that_float16_has_no_normal_numbers_for_loses_as_much_as_it_is_multiplied_by() -> None:
    assert judged("float16", contract="round=gradients", by=4.0).verdict == "rounding"


@pytest.mark.parametrize("fault", ["factor", "first token"])
def test_what_is_no_rounding_of_it_is_a_bug(fault: str) -> None:
    found = judged("bfloat16", fault, "round=gradients")
    assert (found.verdict, found.origin) == ("bug", "dx")


def test_a_rounding_before_1_is_subtracted_is_a_bug() -> None:
    """Of a token whose label has a probability of almost 1."""
    assert judged("bfloat16", "rounded before", "round=gradients", by=6.0).verdict == "bug"


def layer(x, weight):
    logits = x @ weight.T
    loss = torch.logsumexp(logits.float(), -1).sum()
    return loss


class Layer(torch.autograd.Function):
    """Products as torch stores them, in bfloat16, around a loss in float32."""

    @staticmethod
    def forward(ctx, x, weight):
        logits = (x @ weight.T).float()
        back = logits.softmax(-1).to(x.dtype)
        ctx.save_for_backward(back @ weight, back.T @ x)
        return torch.logsumexp(logits, -1).sum()

    @staticmethod
    def backward(ctx, dout):
        return tuple((made * dout).to(made.dtype) for made in ctx.saved_tensors)


def test_products_that_torch_stores_around_such_a_loss() -> None:
    generator = torch.Generator().manual_seed(4)
    given = {name: torch.randn(n, 32, generator=generator).bfloat16() for name, n in (("x", 24), ("weight", 40))}
    found = diff_reference(lambda x, weight: Layer.apply(x, weight), layer, given, gradients=True)
    assert (found.verdict, found.doubt) == ("suspicious", "assumption")
    assert "--contract stored=logits:bfloat16,round=gradients" in found["dx"].reason


def distance(x, y):
    return (x - y.detach()).abs().sum()


@pytest.mark.parametrize(("at_ties", "verdict"), [(-1.0, "rounding"), (0.0, "exact"), (0.5, "rounding"), (2.0, "bug")])
def test_at_0_any_slope_of_the_absolute_value_is_right(at_ties: float, verdict: str) -> None:
    class Distance(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(torch.where(x == y, at_ties, torch.sign(x - y)))
            return distance(x, y)

        @staticmethod
        def backward(ctx, dout):
            return ctx.saved_tensors[0] * dout, None

    generator = torch.Generator().manual_seed(5)
    x, y = (torch.randint(0, 4, (8, 8), generator=generator).float() for _ in range(2))
    for contract in (None, "round=eager:bfloat16"):
        found = diff_reference(lambda x, y: Distance.apply(x, y), distance, {"x": x, "y": y}, gradients=True,
                               contract=contract)  # fmt: skip
        assert found["dx"].verdict == verdict
