"""What attention should give, in float64 NumPy.

`dense` is the referee, in two passes; `online`, `split_k` and `fp8` compute every stage in a kernel's own tile order.
Nothing here imports a kernel: the comparison is worth what the independence of its two sides is worth.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from workbench.reference import fp8, online, split_k

_FORWARD: Mapping[str, Callable[..., dict[str, np.ndarray]]] = {
    "flash": online.forward,
    "split_k": split_k.forward,
    "fp8": fp8.forward,
}


def forward(algorithm: str, q: np.ndarray, k: np.ndarray, v: np.ndarray, **options: Any) -> dict[str, np.ndarray]:
    """Every stage of `algorithm`, "flash", "split_k" or "fp8"; options as in the `forward` of its module."""
    return _FORWARD[algorithm](q, k, v, **options)
