"""Casts: of probs to what meets the values, of a split's state to what is stored."""

from dataclasses import dataclass
from math import exp
from typing import Any

import numpy as np

from workbench.floats import array_namespace
from workbench.reference.bound import EXACT, Bound, root_of_squares
from workbench.reference.stage import Bounded, Near, Ref


@dataclass(frozen=True)
class Cast:
    """Probs rounded as the contract declares."""

    of: Ref
    site: str  #: one of `sites.Sites`

    def value(self, at: Any) -> np.ndarray:
        """In float64, rounded where it is known how."""
        return at.cast(at(self.of), self.site)

    def control(self, at: Any) -> np.ndarray:
        """Divided by the row's sum before the cast where the contract says so, which takes the whole row in a tile."""
        probs, site = at(self.of), getattr(at.sites, self.site)
        if at.contract.probs_normalised is not True or len(at.tiling.keys) != 1:
            return at.cast_control(probs, site)
        total = probs.sum(axis=-1, keepdims=True)
        total = np.where(total == 0, np.float32(1), total)
        return at.cast_control(probs / total, site) * total

    def bound(self, at: Any) -> Bounded:
        """Exact where dumped probs are rounded as declared, else a flip to the next value where an error takes probs
        over a rounding boundary; where the cast is not declared, one more rounding that may happen or not.
        """
        probs = at(self.of)
        # what was lost before a normalisation is then as many times larger as row_sum is, a key 1 at most
        grown = at.p.keys if at.p.casts_normalised else 1
        size = array_namespace(probs).maximum(probs, exp(at.contract.lag) - probs)
        return Bounded(cast_error(at, probs, at.error(self.of), self.site, grown), size)

    words = "{of} rounded as the contract declares"


@dataclass(frozen=True)
class Last:
    """The state after the last tile of each split, [b, h, s, q, ...]; `initial` in a split without tiles."""

    of: Ref
    initial: float
    stored: bool = False  #: whether it is stored in the dtype of partial results

    def value(self, at: Any) -> np.ndarray:
        """In float64, rounded where it is known how."""
        state = last_states(at.whole(self.of), at.tiling.splits, self.initial)
        return at.cast(state, "partials") if self.stored else state

    def control(self, at: Any) -> np.ndarray:
        """Rounded where it is stored."""
        state = last_states(at.whole(self.of), at.tiling.splits, self.initial)
        return at.cast_control(state, at.sites.partials) if self.stored else state

    def bound(self, at: Any) -> Bounded:
        """That of the state, and of a cast where it is stored in fewer bits."""
        of = at.whole_error(self.of)
        if of is not EXACT:
            of = Bound(*(x if isinstance(x, float) else last_states(x, at.tiling.splits, 0.0) for x in of))
        if not self.stored or at.contract.partials_dtype == "float32":
            return Bounded(of)
        return Bounded(cast_error(at, last_states(at.whole(self.of), at.tiling.splits, 0.0), of, "partials"))

    @property
    def words(self) -> str:
        stored = ", as stored" if self.stored else ""
        return f"{{of}} after the split's last tile{stored}; {self.initial:g} for a split without tiles"


@dataclass(frozen=True)
class Either:
    """A stage as it is read where nobody knows whether it is read before or after its cast."""

    of: Ref
    cast: Near

    def value(self, at: Any) -> np.ndarray:
        return at(self.of)

    def bound(self, at: Any) -> Bounded:
        """As far as either may be off."""
        x, of, of_cast = at(self.of), at.error(self.of), at.error(self.cast)
        xp = array_namespace(x)
        worst = xp.maximum(xp.zeros_like(x) + of.worst, abs(at(self.cast) - x) + of_cast.worst)
        return Bounded(Bound(worst, of.random, of.common))

    words = "{of}"


def cast_error(at: Any, value: np.ndarray, of: Bound, cast: str, grown: int = 1) -> Bound:
    """The bound of a value after the cast of `probs` or `partials`: of one that is predicted, 0 unless an error takes
    the value over a rounding boundary; of another, one rounding more, where what is lost to underflow may have `grown`.
    """
    if cast in at.predicted:
        if of is EXACT:
            return EXACT
        site = getattr(at.sites, cast)
        return Bound(site.flips(value, of.worst), site.flips(value, at.likely(of)) if at.statistics else 0.0, 0.0)
    if (site := getattr(at.losses.sites, cast)).wide:
        return of
    relative, absolute = site.cast()
    size = abs(value) + of.worst
    own = array_namespace(value).where(size > 0, relative * size + absolute * grown, 0.0)
    return Bound(of.worst + own, root_of_squares(of.random, own), of.common + 0.0 * own)


def last_states(state: np.ndarray, splits: tuple[tuple[int, ...], ...], initial: float) -> np.ndarray:
    """State [b, h, q, t, ...] after the last tile of every split, [b, h, s, q, ...]; `initial` in an empty split.

    `splits`: the tiles of each, in the order in which they are visited.
    """
    xp = array_namespace(state)
    empty = xp.full_like(state[:, :, :, 0], initial)
    return xp.stack([state[:, :, :, tiles[-1]] if len(tiles) else empty for tiles in splits], axis=2)
