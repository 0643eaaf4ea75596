"""A differentiable forward pass as a backward pass: through autograd, with a gradient of out that is ours."""

from collections.abc import Callable
from typing import Any

from workbench.operations.run import OWN, READ
from workbench.refusal import Refusal


def through_autograd(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """dq, dk and dv of `function(q, k, v, *, scale, causal)` in torch, which returns out, or out first of several.

    Raises Refusal where out does not depend on q, k and v as autograd sees it.
    """

    def backward(q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, *, scale: float, causal: bool) -> Any:
        inputs = [x.detach().requires_grad_() for x in (q, k, v)]
        made = function(*inputs, scale=scale, causal=causal)
        made = made["out"] if isinstance(made, dict) else made[0] if isinstance(made, tuple | list) else made
        if not getattr(made, "requires_grad", False):
            raise Refusal(
                f"{name} --gradients: its out has no gradient: autograd saw none of its operations on q, k, v"
            )
        made.backward(dout.reshape(made.shape))
        if missing := [one for one, x in zip("qkv", inputs, strict=True) if x.grad is None]:
            raise Refusal(f"{name} --gradients: no gradient reached {', '.join(missing)}")
        # what the backward pass read is what the forward pass made, in its arithmetic
        return {f"d{one}": x.grad for one, x in zip("qkv", inputs, strict=True)} | {READ: {"out": made}, OWN: ["lse"]}

    return backward
