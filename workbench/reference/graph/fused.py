"""Sums of products in one pass over arrays of torch. Of arrays as large as scores a pass is what costs."""

import sys
from typing import Any


def product_sum(x: Any, y: Any, z: Any, alike: Any) -> Any:
    """x y + (1 + alike) z, in the place of x: in one pass over arrays of torch, where nothing is alike."""
    if all(hasattr(one, "addcmul") for one in (x, y, z)) and isinstance(alike, float) and not alike:
        return sys.modules["torch"].addcmul(z, x, y, out=x)
    x *= y
    return add_scaled(x, z, 1.0 + alike)


def add_scaled(x: Any, y: Any, factor: Any) -> Any:
    """x + factor y, in the place of x, whose shape may be larger."""
    if isinstance(factor, float) and hasattr(x, "add_"):
        return x.add_(y, alpha=factor)
    x += y if isinstance(factor, float) and factor == 1.0 else factor * y
    return x
