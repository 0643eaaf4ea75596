"""What normalising by lse loses that a division does not: weights exp(score - lse), and merges of results by their lse.

A division takes numerator and denominator from the same maximum, so that its error cancels. The lse of a row, of a
split or of a chunk is a number L = max + log(sum), rounded: u |L| stays in every weight made of it, once for each
merge. FlashDecoding's combine (Dao et al. 2023), two-pass softmax and chunks put together by logsumexp do so, and Ring
Attention (Liu et al. 2023, arXiv 2310.01889), as it is commonly written, merges by a sigmoid:
out <- out - sigmoid(L_new - L) (out - out_new), L <- L - log sigmoid(L - L_new).
"""

import math
from typing import NamedTuple

import numpy as np

from workbench.floats import array_namespace
from workbench.reference.losses import U
from workbench.reference.problem import Problem

#: smallest chunk of keys assumed of a kernel that does not tell its splits: every one is one more merge
SMALLEST_CHUNK = 16
#: exp of less than minus this is 0 in float64: such a key has no weight, however its chunk was normalised
WEIGHTLESS = 746.0


class Normaliser(NamedTuple):
    """Bounds for each row, [b, h, q]."""

    weight: np.ndarray  #: relative error of a weight, which is none of its score
    lse: np.ndarray  #: absolute error of lse
    largest: float  #: error of out relative to the largest of the values that it may be a mean of


def normaliser(p: Problem, scores: np.ndarray, lse: np.ndarray) -> Normaliser | None:
    """What a row that is merged N times loses; None for a kernel that divides.

    Let D be the distance from lse to the smallest score that has a weight. Each L lies between them: it is rounded by
    2u (|lse| + D), with as much for the change of base where there may be one, and log loses ulps of log(n) or of the
    change of L, D at most. A merge takes the weight exp(L_old - L): both L are off, the exp is, and the arguments of
    all add up to D. A sigmoid near 1 (u for 1 + exp, a division), the difference out - out_new, the product and the sum
    lose u of what they replace: |out| before the merge, a mean of values that is not bounded by what is left of it.
    """
    if p.contract.normalisation == "division":
        return None
    losses, xp, n = p.losses, array_namespace(scores), scores.shape[-1] + p.keys - p.keys_left
    nothing = (scores == -np.inf) | (scores < lse[..., None] - WEIGHTLESS)
    smallest = xp.min(xp.where(nothing, np.inf, scores), axis=-1)
    known = abs(lse) + abs(smallest) < np.inf
    lse, smallest = (xp.where(known, x, 0.0) for x in (lse, smallest))
    extent = xp.maximum(lse - smallest, 0.0)
    declared = p.declared("splits") and p.contract.splits is not None
    merges = max(1, p.splits if declared or p.merges else -(-n // SMALLEST_CHUNK))
    size = abs(lse) + extent
    rounded = (2 * losses.sums + losses.units) * size + losses.log_absolute + losses.floor
    rounded = rounded + 2 * U * losses.log_ulps * (extent + math.log(max(n, 2)))
    weight = merges * 2 * rounded + losses.exp(extent, merges) + losses.argument * extent
    return Normaliser(weight, merges * rounded, merges * (7 * losses.sums + 2 * losses.division))
