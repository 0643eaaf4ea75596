"""What attention takes for granted, as steps: which rows a head reads, which keys a query sees, the scale.

No kernel dumps them; but a fault may be in any of them, and is then an edit of its step.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.floats import array_namespace
from workbench.reference.bound import EXACT, Bound
from workbench.reference.stage import Bounded, Ref


@dataclass(frozen=True)
class Rows:
    """The rows of an input as query heads read them: query head h reads kv head h // (heads // kv_heads)."""

    of: Ref

    def value(self, at: Any) -> np.ndarray:
        """[b, heads, rows, d] of an input [b, heads or kv_heads, rows, d]."""
        return by_query_head(at(self.of), at.heads)

    def bound(self, at: Any) -> Bounded:
        """That of the input: nothing is computed."""
        bound = at.error(self.of)
        if bound is EXACT:
            return Bounded(EXACT)
        return Bounded(Bound(*(x if isinstance(x, float) else by_query_head(x, at.heads) for x in bound)))

    words = "{of}"


@dataclass(frozen=True)
class Visible:
    """Which keys a query sees, bool [q, k] or [b, h, q, k]: causal, within a window, or as put in."""

    of: Ref

    def value(self, at: Any) -> np.ndarray:
        """True where a key is seen."""
        return at(self.of)

    words = "mask"


@dataclass(frozen=True)
class Number:
    """A number of the case."""

    name: str

    def value(self, at: Any) -> Any:
        """The number."""
        return at.p.numbers[self.name]

    @property
    def words(self) -> str:
        return self.name


def by_query_head(x: np.ndarray, heads: int) -> np.ndarray:
    """Keys or values [b, kv_heads, k, d] repeated for every query head of their group, [b, heads, k, d]."""
    return x if x.shape[1] == heads else array_namespace(x).repeat(x, heads // x.shape[1], axis=1)
