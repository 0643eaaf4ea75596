"""Weights exp(x - maximum)."""

from dataclasses import dataclass
from math import exp
from typing import Any

import numpy as np

from workbench.case.contract import FAST_EXP_ULPS
from workbench.floats import array_namespace
from workbench.reference.bound import EXACT, Bound, added, part, root_of_squares, where
from workbench.reference.stage import Bounded, Ref


@dataclass(frozen=True)
class Weight:
    """exp(of - top): exactly 0 where `of` is -inf, whatever `top` is (-inf - -inf would be NaN)."""

    of: Ref
    top: Ref
    axis: int | None = None  #: along which top is spread, counted from the last one
    scores: str = ""  #: of whose maximum the difference of two maxima is made

    def value(self, at: Any) -> np.ndarray:
        x, top = at(self.of), self._top(at)
        xp = array_namespace(x)
        return xp.where((x == -np.inf) & ~xp.isnan(top), 0.0, xp.exp(x - top))

    def control(self, at: Any) -> np.ndarray:
        """Larger by all that exp and its argument may lose in a biased mode; 0 is exact, and 1 but for fma."""
        x, top, losses = at(self.of), self._top(at), at.losses
        weight = self.value(at)
        x = x - top
        length = np.where(np.isfinite(x), abs(x), 0.0)
        of_max = losses.argument_of_max * np.where(np.isfinite(top), abs(top), 0.0)
        longer, _ = self._of_probs(losses)
        off = losses.argument * (length + longer) + losses.exp(length + longer) + of_max
        exact = (x == 0) & (of_max + longer == 0)
        return np.where(exact, weight, weight * (1 + off)).astype(np.float32)

    def bound(self, at: Any) -> Bounded:
        """Error of exp(x) for x = of - top known to dx: exp(x) expm1(dx + u|x| + eE), the subtraction rounded, eE = 2u
        ulps of exp.

        exp(0) = 1 and exp(-inf) = 0 are exact, but for fma, where 0 is max c - fl(max c). It is a weight in [0, 1], or
        up to what a maximum that lags leaves, so that a bound that reaches the farther end says nothing; where the
        dumped inputs themselves give x > 0, the range is what exp gives. A polynomial errs alike for weights that are
        alike.
        """
        top, losses = self._top(at), at.losses
        dx = added(at.error(self.of), part(at.error(self.top), _spread(self.axis)))
        if self.scores and dx is not EXACT and not at.given(self.top):
            # no score can reach the previous maximum: both maxima are one number, unless one of the two was dumped
            s, of_s = at(self.scores), at.error(self.scores)
            unchanged = array_namespace(s).max(s + of_s.worst, axis=-1) < at(self.of) - at.error(self.of).worst
            dx = where(~unchanged, dx)
        x = difference(at(self.of), top)
        xp = array_namespace(x)
        hidden = x == -np.inf
        length = abs(xp.where(hidden, 0.0, x))
        value = xp.exp(x)
        longer, polynomial = self._of_probs(losses)
        own = losses.argument * (length + longer) + losses.exp(length + longer)
        off_at_0, of_max = self._of_max(at, length, top)
        of_max = of_max + polynomial
        own = own + of_max
        random: np.ndarray | float = 0.0
        common: np.ndarray | float = 0.0
        worst = value * xp.expm1(own + dx.worst) + losses.floor
        # exp(0) = 1 in hardware and in libraries; a polynomial of few terms need not hit it
        at_0 = not off_at_0 and losses.exp_ulps <= FAST_EXP_ULPS and not longer and not polynomial
        exact = hidden | ((x == 0) & (dx.worst == 0)) if at_0 else hidden
        if dx is EXACT and not polynomial:
            random = worst
        elif at.statistics:
            # first order, with a margin for the second; where that is not enough the worst case is smaller
            random = 1.05 * value * root_of_squares(dx.random, own - of_max) + losses.floor
            common = 1.05 * value * (dx.common + of_max)
        size = xp.maximum(value, (exp(at.contract.lag) if self.axis == -1 else 1.0) - value)
        # what is less than the clamp gives may be as much
        clamped = xp.where(value <= 2 * losses.clamped, losses.clamped, 0.0) if losses.clamped else 0.0
        worst = xp.where(exact, 0.0, xp.minimum(worst, size)) + clamped
        if not at.statistics:
            return Bounded(Bound(worst, 0.0, 0.0), size)
        random, common = xp.where(exact, 0.0, random) + 0.0 * clamped, xp.where(exact, 0.0, common) + clamped
        return Bounded(Bound(worst, random, common), size)

    @property
    def words(self) -> str:
        own_tile = " of the key's own tile" if self.axis == -1 else ""
        return f"exp({{of}} - {{top}}{own_tile}); 0 where {{of}} is -inf"

    def _top(self, at: Any) -> np.ndarray:
        top = at(self.top)
        return top if self.axis is None else top[_spread(self.axis)]

    def _of_probs(self, losses: Any) -> tuple[float, float]:
        """What is added to the argument of exp, and its error, of probs alone."""
        return (losses.offset, losses.polynomial) if self.axis == -1 else (0.0, 0.0)

    def _of_max(self, at: Any, length: np.ndarray, top: np.ndarray) -> tuple[bool, np.ndarray | float]:
        """Whether the argument of exp may be off by more than its own size, and by how much: for the rounding of
        max_scaled, and of each dumped stage that is read, of at most |top| + `length` and |top|. Dumped maxima in units
        of log2 are max_scaled itself.
        """
        losses, contract = at.losses, at.contract
        size = abs(array_namespace(length).where(abs(top) < np.inf, top, 0.0))
        seen, seen_top = at.given(self.of), at.given(self.top)
        of_keys = "k" in at.axes(self.of)
        rounded = losses.argument_of_max if of_keys else losses.rescaling_of_max
        if of_keys and seen_top and contract.base2 and contract.scores_scaled:
            rounded, seen_top = 0.0, False
        times = rounded + losses.fused * (seen + seen_top)
        # of probs, max_scaled less their offset
        size = size + (losses.offset if of_keys else 0.0)
        return times > 0, times * size + losses.fused * seen * length if times else 0.0


def _spread(axis: int | None) -> tuple:
    return (...,) if axis is None else (..., None, *[slice(None)] * (-1 - axis))


def difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a - b as the argument of exp: -inf where a is, even if b is too."""
    return array_namespace(a).where(a == -np.inf, -np.inf, a - b)
