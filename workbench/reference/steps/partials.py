"""Results of splits that are normalised, as FlashDecoding (Dao et al. 2023) and FlashInfer (Ye et al. 2025, arXiv
2501.01005) store them: out of the keys of each split, and its lse; or, as vLLM's paged attention does, the maximum and
the sum beside it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.floats import array_namespace
from workbench.reference.bound import Bound, part, root_of_squares
from workbench.reference.losses import U
from workbench.reference.normaliser import Normaliser, normaliser
from workbench.reference.stage import Bounded, Ref
from workbench.reference.steps.cast import Last, cast_error
from workbench.reference.steps.output import LogSum, Quotient, largest_value, quotient


@dataclass(frozen=True)
class OfSplit(Last):
    """A state after the last tile of each split, before anything is made of it."""

    @property
    def words(self) -> str:
        return "{of} of the split"


@dataclass(frozen=True)
class Normalised(Quotient):
    """of / over, [b, h, s, q, d], as partial_O is stored; 0 where `over` [b, h, s, q] is 0."""

    def value(self, at: Any) -> np.ndarray:
        """In float64, rounded where it is known how."""
        return at.cast(quotient(at(self.of), at(self.over)), "partials")

    def control(self, at: Any) -> np.ndarray:
        made = quotient(at(self.of), at(self.over)) * (1 + at.losses.division)
        return at.cast_control(made.astype(np.float32), at.sites.partials)

    def bound(self, at: Any) -> Bounded:
        """That of a quotient, and of its cast."""
        of, l = at(self.of), at(self.over)[..., None]
        value, largest_v = quotient(of, at(self.over)), largest_value(at, self.values)[:, :, None]
        own: np.ndarray | float = 0.0
        if (by_lse := _normaliser(at, self.scores, self.lse)) is not None:
            own = by_lse.weight[:, :, None, :, None] * abs(of) / l + by_lse.largest * largest_v
        bound = self.divided(at, value, own)
        if at.contract.partials_dtype != "float32":
            bound = cast_error(at, value, bound, "partials")
        return Bounded(bound, array_namespace(value).broadcast_to(largest_v, value.shape))

    @property
    def words(self) -> str:
        return "{of} / {over}, as stored; 0 where {over} is 0"


@dataclass(frozen=True)
class SplitLse(LogSum):
    """Natural log of the sum of exp(scores) of each split, [b, h, s, q]; -inf where a row sees none of its keys."""

    lse: str = ""  #: that of whole rows

    def merged(self, at: Any, lse: np.ndarray) -> np.ndarray | float:
        by_lse = _normaliser(at, self.scores, self.lse)
        return 0.0 if by_lse is None else by_lse.lse[:, :, None]

    @property
    def words(self) -> str:
        return "{top} + log({total}); -inf where {total} is 0"


@dataclass(frozen=True)
class OneWhereFinite:
    """What the weights of a merge by lse are summed with: 1, and 0 of a split in which a row sees no key."""

    of: Ref

    def value(self, at: Any) -> np.ndarray:
        x = at(self.of)
        xp = array_namespace(x)
        return xp.where(xp.isnan(x), x, xp.where(x == -np.inf, 0.0, 1.0))

    words = "1"


@dataclass(frozen=True)
class Scaled:
    """of * by, [b, h, s, q, d]: a result of a split that is not normalised any more."""

    of: Ref
    by: Ref

    def value(self, at: Any) -> np.ndarray:
        return at(self.of) * at(self.by)[..., None]

    def bound(self, at: Any) -> Bounded:
        """The errors of both, and a product that is rounded."""
        of, by, x, y = at.error(self.of), part(at.error(self.by), (..., None)), abs(at(self.of)), at(self.by)[..., None]
        own = U * x * y
        worst = of.worst * (y + by.worst) + x * by.worst + own
        random = root_of_squares(of.random * y, x * by.random)
        return Bounded(Bound(worst, random + 0.0 * own, of.common * y + x * by.common + own))

    words = "{of} * {by}"


def _normaliser(at: Any, scores: Ref, lse: Ref) -> Normaliser | None:
    """That of whole rows, of which no split loses more: its lse lies between theirs and their smallest score."""
    return normaliser(at.p, at(scores), at.computed[lse])
