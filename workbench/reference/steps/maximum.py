"""Maxima, which are exact: what the scores lost is what they are off by."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.floats import array_namespace
from workbench.reference.bound import EXACT, Bound
from workbench.reference.stage import Bounded, Ref


@dataclass(frozen=True)
class RunningMax:
    """max(previous, of the tile's keys), [b, h, q, t]: -inf as long as no key was seen.

    Milakov & Gimelshein, "Online normalizer calculation for softmax" (2018, arXiv 1805.02867), algorithm 3.
    """

    previous: Ref
    of: Ref
    chosen: bool = False  #: whether a kernel may have subtracted another number before: what it chose then is its own

    def value(self, at: Any) -> np.ndarray:
        """In float64; np.maximum keeps a NaN, where np.fmax would lose it."""
        previous, x = at.computed_before() if self.chosen else at(self.previous), _seen(at, at(self.of))
        xp = array_namespace(x)
        return xp.maximum(_seen(at, previous), xp.max(x, axis=-1))

    def control(self, at: Any) -> np.ndarray:
        return np.maximum(at(self.previous), at(self.of).max(axis=-1))

    def bound(self, at: Any) -> Bounded:
        """What one score lost, all later uses of the maximum lose alike: it is common."""
        before, of_before = at(self.previous), at.error(self.previous)
        if self.chosen:
            before, of_before = at.computed_before(), at.found_before()
        s, of_s = at(self.of), at.error(self.of)
        if of_before is EXACT and of_s is EXACT:
            return Bounded(EXACT)
        xp = array_namespace(s)
        x = xp.concat([before[..., None], s], axis=-1)

        def end(previous: np.ndarray | float, scores: np.ndarray | float) -> np.ndarray:
            ends = [xp.zeros_like(before) + previous, xp.zeros_like(s) + scores]
            return bound_of_max(at.own, x, xp.concat([ends[0][..., None], ends[1]], axis=-1), axis=-1)

        likely = end(at.likely(of_before), at.likely(of_s)) if at.statistics else 0.0
        return Bounded(Bound(end(of_before.worst, of_s.worst), 0.0, likely))

    words = "running max after tile t"


@dataclass(frozen=True)
class MaxOver:
    """Maximum over the splits, [b, h, q], of one for each [b, h, s, q]; -inf in a row without keys."""

    of: Ref

    def value(self, at: Any) -> np.ndarray:
        x = _seen(at, at(self.of))
        return array_namespace(x).max(x, axis=-2)

    def bound(self, at: Any) -> Bounded:
        """As of a running maximum."""
        m, of = at(self.of), at.error(self.of)
        if of is EXACT:
            return Bounded(EXACT)
        likely = bound_of_max(at.own, m, at.likely(of), axis=-2) if at.statistics else 0.0
        return Bounded(Bound(bound_of_max(at.own, m, of.worst, axis=-2), 0.0, likely))

    words = "max over splits"


def _seen(at: Any, x: np.ndarray) -> np.ndarray:
    """What a maximum sees of x."""
    xp = array_namespace(x)
    return xp.where(xp.isnan(x), -np.inf, x) if at.p.passes_over_nan else x


def bound_of_max(value: np.ndarray, x: np.ndarray, dx: np.ndarray | float, axis: int) -> np.ndarray:
    """Bound of max(x) for x known to dx: max itself is exact, and monotone, so the ends of the intervals bound it."""
    xp = array_namespace(x)
    upper, lower = xp.max(x + dx, axis=axis), xp.max(x - dx, axis=axis)
    return xp.where(upper == lower, 0.0, xp.maximum(upper - value, value - lower))
