"""What is known of the errors of an array: how large they may be, and how large they are all but surely.

The worst case adds up the bounds of all roundings. The statistical one takes roundings as independent with mean 0, so
that their bounds add up as squares: |error| <= common + lambda sqrt(sum of squared bounds) but for one array in a
million (Azuma's inequality; Ipsen and Zhou 2020, arXiv 1906.10465). Independence is a model, not a fact: equal terms
round alike, and tensor cores truncate. What is not independent goes into `common`, which adds up like the worst case.
"""

from typing import NamedTuple

import numpy as np
from array_api_compat import array_namespace

#: probability that any element of a stage is farther off than its statistical budget, if roundings are independent
FAMILY_WISE = 1e-6


class Error(NamedTuple):
    """Bounds of the errors of an array, float64 arrays of its shape, or a float where all are alike."""

    worst: np.ndarray | float  #: of |error|
    random: np.ndarray | float  #: square root of the sum of the squared bounds of its independent parts
    common: np.ndarray | float  #: bound of the parts that are not independent


EXACT = Error(0.0, 0.0, 0.0)


def deviations(elements: int | None) -> float:
    """lambda = sqrt(2 ln(2M / zeta)): how many times `random` the largest of M errors may be; 7.5 for a million. 1 for
    None: a typical error instead of the largest.
    """
    if elements is None:
        return 1.0
    return float(np.sqrt(2 * np.log(2 * max(elements, 1) / FAMILY_WISE)))


def statistical(error: Error, elements: int | None) -> np.ndarray | float:
    """The statistical bound of an array of so many elements: never more than the worst case."""
    value = error.common + deviations(elements) * error.random
    if isinstance(error.worst, float):
        return min(error.worst, value)
    return array_namespace(error.worst).minimum(error.worst, value)


def at(error: Error, index: tuple) -> Error:
    """The part of an array's errors at `index`."""
    return error if error is EXACT else Error(*(part if isinstance(part, float) else part[index] for part in error))


def added(a: Error, b: Error) -> Error:
    """The errors of a sum or difference of two arrays, each with errors of its own."""
    if a is EXACT and b is EXACT:
        return EXACT
    return Error(a.worst + b.worst, root_of_squares(a.random, b.random), a.common + b.common)


def root_of_squares(*parts: np.ndarray | float) -> np.ndarray | float:
    """sqrt(sum of squares) of independent bounds."""
    total = sum(part * part for part in parts)
    return float(np.sqrt(total)) if isinstance(total, float) else array_namespace(total).sqrt(total)
