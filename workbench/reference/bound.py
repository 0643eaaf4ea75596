"""Forward error bounds of an array: how large |computed - exact| may be, and how large it is all but surely.

The worst case adds up the bounds of all roundings. The statistical one takes roundings as independent with mean 0, so
that their bounds add up as squares: |error| <= common + lambda sqrt(sum of squared bounds) but for one array in a
million (Azuma's inequality; Ipsen and Zhou 2020, arXiv 1906.10465). Independence is a model, not a fact: equal terms
round alike, and tensor cores truncate. What is not independent goes into `common`, which adds up like the worst case.

Notation of Higham, Accuracy and Stability of Numerical Algorithms (2002), chapters 2 to 4: u = 2^-24 is float32's unit
roundoff; g(n) = n u / (1 - n u) bounds the relative error of n rounded operations, sums in any order.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from workbench.floats import array_namespace

#: probability that any element of a stage is farther off than its statistical budget, if roundings are independent
FAMILY_WISE = 1e-6
#: a score or a sum below this is as good as zero, and a bound as large as it still means something
NEGLIGIBLE = 2.0**-100


@dataclass(frozen=True)
class Budget:
    """The forward error bounds of one stage, of |actual - expected|; float64 arrays of the stage's shape, NaN where an
    input is NaN.
    """

    bound: np.ndarray  #: the worst case, never exceeded by a kernel that keeps its contract
    statistical: np.ndarray  #: the probabilistic one: all but never exceeded, if roundings are independent
    #: magnitude of the terms that the stage is made of (of out the largest |v|): a `bound` as large is vacuous, as
    #: it would pass a 0 too, and the element is not judged; infinite where every bound means something
    size: np.ndarray | float


class Bound(NamedTuple):
    """Absolute forward error bounds of an array, as they are carried from stage to stage: float64 arrays of its shape,
    or a float where all are alike. The statistical bound is common + lambda * random (`deviations`).
    """

    worst: np.ndarray | float  #: of |error|, whatever the roundings
    random: np.ndarray | float  #: square root of the sum of the squared bounds of its independent roundings
    common: np.ndarray | float  #: bound of the sum of the roundings that are not independent, such as truncations


#: of what was seen; known by identity, since a bound of 0 may also be computed
EXACT = Bound(0.0, 0.0, 0.0)


def deviations(elements: int | None) -> float:
    """lambda = sqrt(2 ln(2M / zeta)): how many times `random` the largest of M errors may be; 7.5 for a million. 1 for
    None: a typical error instead of the largest.
    """
    if elements is None:
        return 1.0
    return float(np.sqrt(2 * np.log(2 * max(elements, 1) / FAMILY_WISE)))


def statistical(bound: Bound, elements: int | None) -> np.ndarray | float:
    """The statistical bound of an array of so many elements: never more than the worst case."""
    value = bound.common + deviations(elements) * bound.random
    if isinstance(bound.worst, float):
        return min(bound.worst, value)
    return array_namespace(bound.worst).minimum(bound.worst, value)


def part(bound: Bound, index: tuple) -> Bound:
    """The part of an array's bounds at `index`."""
    return bound if bound is EXACT else Bound(*(x if isinstance(x, float) else x[index] for x in bound))


def changed(at: Any, x: np.ndarray, bound: Bound, change: Callable[[Any, Any], Any]) -> Bound:
    """The bounds of `change(at, x)` for an x known to `bound`: the farther end of its interval counts, and all of it as
    common, since nothing is known of what a change does to independent errors.
    """
    if bound is EXACT:
        return EXACT
    y = change(at, x)
    ends = [change(at, x + sign * bound.worst) for sign in (1, -1)]
    farther = np.maximum(*(np.where(end == y, 0.0, abs(end - y)) for end in ends))
    worst = np.where(np.isnan(farther), np.where(np.isnan(y), 0.0, np.inf), farther)
    return Bound(worst, 0.0, worst)


def where(kept: np.ndarray, bound: Bound) -> Bound:
    """The bounds at the elements that are `kept`, 0 elsewhere."""
    xp = array_namespace(kept)
    return Bound(*(x if isinstance(x, float) else xp.where(kept, x, 0.0) for x in bound))


def added(a: Bound, b: Bound) -> Bound:
    """The bounds of a sum or difference of two arrays, each with errors of its own."""
    if a is EXACT and b is EXACT:
        return EXACT
    return Bound(a.worst + b.worst, root_of_squares(a.random, b.random), a.common + b.common)


def root_of_squares(*parts: np.ndarray | float) -> np.ndarray | float:
    """sqrt(sum of squares) of independent bounds."""
    total = sum(part * part for part in parts)
    return float(np.sqrt(total)) if isinstance(total, float) else array_namespace(total).sqrt(total)
