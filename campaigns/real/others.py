"""What tolerances say of results: `torch.testing.assert_close`, and a project's own tests."""

from collections.abc import Mapping
from typing import Any

import torch

from campaigns.real.project import Tolerance


def others(actual: Mapping[Any, torch.Tensor], naive: Mapping[Any, torch.Tensor], allowed: Tolerance) -> dict[str, Any]:
    """What tolerances say of a kernel beside the naive reference run in its own dtype: whether assert_close and the
    project's own test pass, and the largest relative error. None for each where the two share no result.
    """
    pairs = [(actual[name].cpu(), y.detach().cpu()) for name, y in naive.items() if name in actual]
    pairs = [(x, y) for x, y in pairs if x.shape == y.shape]
    if not pairs:
        return {"assert_close": None, "rms": None, "own_test": None}
    return {
        "assert_close": all(close(x, y) for x, y in pairs),
        "rms": max((relative(x, y) for x, y in pairs), key=lambda x: (x != x, x)),
        "own_test": all(within(x, y, allowed) for x, y in pairs),
    }


def tolerance(of: Mapping[str, Tolerance], dtype: str) -> Tolerance:
    """What is allowed in a dtype."""
    return of[dtype] if dtype in of else of[""]


def within(actual: torch.Tensor, expected: torch.Tensor, allowed: Tolerance) -> bool:
    """Whether a project's own tests let a result pass."""
    if allowed.rms is not None:
        return relative(actual, expected) < allowed.rms
    return close(actual, expected, rtol=allowed.rtol, atol=allowed.atol)


def close(actual: torch.Tensor, expected: torch.Tensor, rtol: float | None = None, atol: float | None = None) -> bool:
    """With the tolerances of the kernel's dtype, unless others are given."""
    try:
        torch.testing.assert_close(actual, expected.to(actual.dtype), rtol=rtol, atol=atol)
    except AssertionError:
        return False
    return True


def relative(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Root mean square of the errors over that of the expected."""
    off, size = (x.double().square().mean().sqrt() for x in (actual.double() - expected.double(), expected))
    return float(off / (size + 1e-8))


def tensors(x: Any) -> list[torch.Tensor]:
    """In order."""
    if isinstance(x, torch.Tensor):
        return [x]
    some = x.values() if isinstance(x, Mapping) else x if isinstance(x, tuple | list) else ()
    return [y for one in some for y in tensors(one)]
