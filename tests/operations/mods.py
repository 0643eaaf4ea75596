"""score_mods, and their derivatives by hand."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


def squashed(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    """Turns at 0, and is another in each head."""
    return score / (1 + (h + 1) * abs(score) / 4)


def weighed(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    """What ALiBi makes of scores, which every second batch has twice."""
    return score * (1 + b % 2) - 0.25 * abs(q - k)


def bent(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    """Of torch alone."""
    import torch

    return 3 * torch.tanh(score) + 0.125 * score * score


def hiding(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    """A mask, which hides all keys of some rows."""
    import torch

    return torch.where(k + 2 <= q + h, 0.5 * score, -float("inf"))


#: function -> its derivative, of arrays in NumPy
SLOPES: Mapping[Callable[..., Any], Callable[..., Any]] = {
    squashed: lambda s, b, h, q, k: (1 + (h + 1) * abs(s) / 4) ** -2,
    weighed: lambda s, b, h, q, k: 1 + b % 2 + 0 * s,
    bent: lambda s, b, h, q, k: 3 * (1 - np.tanh(s) ** 2) + 0.25 * s,
    hiding: lambda s, b, h, q, k: 0.5 * (k + 2 <= q + h) + 0 * s,
}
