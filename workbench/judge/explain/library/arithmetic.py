"""Numbers and quotients that several families take, and how wide tiles of keys are."""

import math
from typing import Any

import numpy as np

LN2, LOG2E = math.log(2), 1 / math.log(2)


def over(x: Any, y: np.ndarray) -> np.ndarray:
    """x / y, and 0 where y is 0, as a kernel guards it."""
    with np.errstate(all="ignore"):
        return np.where(y == 0, 0.0, x / np.where(y == 0, 1.0, y))


def tile_width(at: Any) -> int:
    """Keys of a full tile: block_k, or the length of the first tile where nobody declared it."""
    first = at.tiling.keys[0]
    return int(at.contract.block_k or first.stop - first.start)
