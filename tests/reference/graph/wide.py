"""Plain torch in float64 throughout: casts to other floats, which a run notes, are kept from it."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

NARROW = (torch.float16, torch.bfloat16, torch.float32)


def wide(f: Callable[..., Any], inputs: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """Results of f(**inputs) in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Wide():
            made = f(**{name: x.double() if x.is_floating_point() else x for name, x in inputs.items()})
    finally:
        torch.set_default_dtype(before)
    return [x.double() if torch.is_tensor(x) else x for x in flat(made)]


def wide_gradients(
    f: Callable[..., Any], inputs: Mapping[str, torch.Tensor], of_results: list[torch.Tensor]
) -> dict[str, torch.Tensor | None]:
    """Gradients of float inputs in float64, from those of the results that have any."""
    leaves = {name: x.double().requires_grad_() for name, x in inputs.items() if x.is_floating_point()}
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Wide():
            made = [x for x in flat(f(**{**inputs, **leaves})) if x.requires_grad]
            heads = [g.to(x.dtype) for g, x in zip(of_results, made, strict=True)]
            found = torch.autograd.grad(made, [*leaves.values()], heads, allow_unused=True)
    finally:
        torch.set_default_dtype(before)
    return dict(zip(leaves, found, strict=True))


def flat(x: Any) -> list[torch.Tensor]:
    """Tensors of nested tuples."""
    return [y for one in x for y in flat(one)] if isinstance(x, list | tuple) else [x]


class _Wide(TorchDispatchMode):
    _should_skip_dynamo = classmethod(lambda cls: False)  # 3 s of imports less

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("dtype") in NARROW:
            kwargs["dtype"] = torch.float64
        made = func(*args, **kwargs)
        fresh = func is torch.ops.aten.lift_fresh.default and made.dtype in NARROW  # of torch.tensor and new_tensor
        return made.double() if fresh else made
