"""What a kernel has at hand: what is measured of its inputs, before its own arithmetic."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Protocol

import numpy as np


@dataclass(frozen=True, eq=False)
class Parts:
    """Operands of a run as they are read, and what becomes of scaled dot products."""

    q: np.ndarray  #: [b, h, q, d]
    k: np.ndarray  #: [b, h, k, d]
    values: np.ndarray  #: [b, h, k, d]
    scale: float
    factor: np.ndarray | float  #: of scores
    respond: Callable[[np.ndarray], np.ndarray]  #: of scaled dot products
    start: np.ndarray  #: [b, h, q, k]: what keys weigh by themselves, -inf where hidden
    fixed: np.ndarray | None  #: bool [b, h, q, k]: keys whose score is `start`
    sinks: np.ndarray | None  #: [1, h, 1]
    kv_heads: int
    dtype: str

    def finished(self, raw: np.ndarray) -> np.ndarray:
        """Scores of scaled dot products."""
        found = self.respond(raw * self.factor)
        if self.fixed is not None:
            found = np.where(self.fixed, 0.0, found)
        return np.where(self.start == -np.inf, -np.inf, found + self.start)

    @cached_property
    def raw(self) -> np.ndarray:
        """Scaled dot products."""
        return self.q @ self.k.swapaxes(-1, -2) * self.scale

    @cached_property
    def scores(self) -> np.ndarray:
        """[b, h, q, k], -inf where hidden."""
        return self.finished(self.raw)

    @cached_property
    def top(self) -> np.ndarray:
        """The maximum of each row, [b, h, q]; 0 of a row that sees nothing."""
        found = self.scores.max(-1)
        return np.where(np.isfinite(found), found, 0.0)

    def of_rows(self, rows: slice) -> "Parts":
        """Of some queries alone."""
        return replace(
            self, q=self.q[:, :, rows], start=self.start[:, :, rows],
            fixed=None if self.fixed is None else self.fixed[:, :, rows],
            factor=self.factor[:, :, rows] if isinstance(self.factor, np.ndarray) and self.factor.ndim == 4
            and self.factor.shape[2] > 1 else self.factor,
        )  # fmt: skip

    def but(self, **changes: Any) -> "Parts":
        """With other parts."""
        return replace(self, **changes)


def plain(of: Parts) -> tuple[np.ndarray, np.ndarray]:
    """out and lse of the formula."""
    with np.errstate(all="ignore"):
        p = np.exp(of.scores - of.top[..., None])
        total = p.sum(-1)
        if of.sinks is not None:
            total = total + np.exp(of.sinks - of.top)
        return divided(p @ of.values, total), of.top + np.log(total)


@lru_cache(maxsize=128)
def partials(of: Parts, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of tiles of keys the maximum (-inf where nothing is seen), the sum of e^(score - it) [b, h, q, tile], and values
    weighted with these [b, h, q, tile, d].
    """
    keys = of.scores.shape[-1]
    edges = list(range(0, keys, size))
    with np.errstate(all="ignore"):
        top = np.maximum.reduceat(of.scores, edges, axis=-1)
        p = np.exp(of.scores - np.repeat(finite(top), np.diff([*edges, keys]), -1))
        acc = np.stack([p[..., e : e + size] @ of.values[:, :, e : e + size] for e in edges], -2)
        return top, np.add.reduceat(p, edges, axis=-1), acc


class Kernel(Protocol):
    """The arithmetic of a kernel in place of the formula: out [b, h, q, d] and lse [b, h, q] of its parts."""

    def __call__(self, of: Parts, /) -> tuple[np.ndarray, np.ndarray]: ...  # noqa: D102


def divided(acc: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Values over their sums, 0 where a sum is 0."""
    return np.where(total[..., None] == 0, 0.0, acc / np.where(total == 0, 1.0, total)[..., None])


def finite(x: np.ndarray) -> np.ndarray:
    """It, and 0 where it is infinite."""
    return np.where(np.isfinite(x), x, 0.0)
