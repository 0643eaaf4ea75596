"""Shapes of a call and the tiles that it is cut into."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Stages = dict[str, Any]
NO_KEY = np.float32(-np.inf)
LN2 = np.float32(0.6931471805599453)
LOG2E = np.float32(1.4426950408889634)


def cdiv(n: int, by: int) -> int:
    return -(-n // by)


def blocks(n: int, size: int) -> Iterator[Array]:
    """Indices 0 to n - 1, `size` at a time; the last block may be shorter."""
    return (np.arange(start, min(start + size, n)) for start in range(0, n, size))


@dataclass(frozen=True)
class Shape:
    """Sizes of q, k and v, and whether a query sees only the keys up to its own position."""

    batch: int
    heads: int
    kv_heads: int
    seqlen_q: int
    seqlen_k: int
    head_dim: int
    causal: bool

    @classmethod
    def of(cls, q: Array, k: Array, causal: bool) -> "Shape":
        batch, heads, seqlen_q, head_dim = q.shape
        return cls(batch, heads, k.shape[1], seqlen_q, k.shape[2], head_dim, causal)

    @property
    def group(self) -> int:
        """Query heads that share a kv head."""
        return self.heads // self.kv_heads

    @property
    def offset(self) -> int:
        """Position of query 0 among the keys: the last query stands at the last key."""
        return self.seqlen_k - self.seqlen_q

    def visible(self, i: Array, j: Array) -> Array:
        """Whether queries i see keys j."""
        if self.causal:
            return np.asarray(j[None, :] <= i[:, None] + self.offset)
        return np.ones((len(i), len(j)), dtype=bool)


@dataclass(frozen=True)
class Tile:
    """Queries i and keys j, which are tile t of the keys."""

    shape: Shape
    t: int
    i: Array
    j: Array


def float32(*arrays: Array) -> tuple[Array, ...]:
    return tuple(a.astype(np.float32) for a in arrays)


def unwritten(*dims: int) -> Array:
    """An array whose elements show that nobody wrote them."""
    return np.full(dims, np.nan, dtype=np.float32)


def divided(acc: Array, row_sum: Array, dtype: Any) -> Array:
    """Rows of acc over their sums in `dtype`; 0 where a row saw no key."""
    seen = row_sum[..., None] > 0
    return np.where(seen, acc / np.where(seen, row_sum[..., None], np.float32(1)), np.float32(0)).astype(dtype)


def log_sum(row_max: Array, row_sum: Array) -> Array:
    """Logarithm of a row's sum of exponentials; -inf where it saw no key."""
    return np.where(row_sum > 0, row_max + np.log(np.where(row_sum > 0, row_sum, np.float32(1))), NO_KEY)


def shifted(scores: Array, row_max: Array) -> Array:
    """Scores less their row's maximum, where a row that has seen no key yet has 0 for one."""
    return np.asarray(scores - np.where(row_max == NO_KEY, np.float32(0), row_max)[..., None])
