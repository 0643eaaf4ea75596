"""Numbers and quotients that several families take, and how wide tiles of keys are."""

import math
from typing import Any

import numpy as np

LN2, LOG2E = math.log(2), 1 / math.log(2)
#: a merge of splits that overflows
MERGED_BY_EXP_LSE = (
    "splits are merged with weights e^lse without subtracting the largest lse: they overflow or underflow"
)


def over(x: Any, y: np.ndarray) -> np.ndarray:
    """x / y, and 0 where y is 0, as a kernel guards it."""
    with np.errstate(all="ignore"):
        return np.where(y == 0, 0.0, x / np.where(y == 0, 1.0, y))


def attended(scores: np.ndarray, v: np.ndarray) -> np.ndarray:
    """softmax(scores) @ v, and 0 in a row that sees no key."""
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0.0))
    return over(weights @ v, weights.sum(-1, keepdims=True))


def tile_width(at: Any) -> int:
    """Keys of a full tile: block_k, or the length of the first tile where nobody declared it."""
    first = at.tiling.keys[0]
    return int(at.contract.block_k or first.stop - first.start)
