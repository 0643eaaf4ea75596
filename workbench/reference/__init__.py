"""What attention should give, in float64 NumPy.

`dense` is the referee, in two passes; `online` and `split_k` compute every stage in a kernel's own tile order. Nothing
here imports a kernel: the comparison is worth what the independence of its two sides is worth.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from workbench.reference import online, split_k

_FORWARD: Mapping[str, Callable[..., dict[str, np.ndarray]]] = {"flash": online.forward, "split_k": split_k.forward}


def forward(algorithm: str, q: np.ndarray, k: np.ndarray, v: np.ndarray, **options: Any) -> dict[str, np.ndarray]:
    """Every stage of `algorithm`, "flash" or "split_k"; options as in `online.forward` and `split_k.forward`."""
    return _FORWARD[algorithm](q, k, v, **options)
