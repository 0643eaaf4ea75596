"""How a tensor core adds up the products of one result, found out by sums of a few powers of two.

After Fasi, Higham, Mikaitis, Pranesh 2021, "Numerical behavior of NVIDIA tensor cores", PeerJ CS 7:e330, section 3. A
number that is small beside a large one survives only if it is not added while the large one is there: that shows which
products meet in one step, whatever the order of the steps. How small it may be within a step tells how many bits are
kept, and quarters of the last one, and of the result's, tell how the rest is rounded.

What is measured is `mma.sync`. wgmma has paths of its own: for fp8 with fewer bits (DeepSeek-AI 2024, "DeepSeek-V3
technical report", section 3.3.2).
"""

import math
from collections.abc import Sequence

import numpy as np

from workbench.case.tensor_cores import Accumulation
from workbench.cuda import ptx
from workbench.cuda.calibrate.casts import rounding_of
from workbench.cuda.calibrate.probe_mma import Multiply, bits_of
from workbench.cuda.calibrate.record import TensorCore

#: factors that all types have, and a product that is large and one that is small beside it
LARGE_ROOT, SMALL_ROOT = 2.0**8, 2.0**-9
LARGE, SMALL = LARGE_ROOT**2, SMALL_ROOT**2
FRACTION_BITS = 23  # of float32
#: more bits than that between a large product and one whose quarter is `SMALL` cannot be told
MOST_BITS = 32

#: a place along k, or k itself for c, and the value of the product there, or of c: a multiple of `SMALL` of at most 3
#: significant bits
Term = tuple[int, float]


def measure(name: str, multiply: Multiply) -> TensorCore:
    """What `multiply` does in operation `name`, one of `ptx.MMA_TYPES`."""
    k = int(ptx.MMA_TYPES[name][0].rpartition("k")[2])

    def sums(terms: Sequence[Sequence[Term]]) -> np.ndarray:
        return _sums(name, multiply, terms, k)

    def rounding(beside: Sequence[Term], place: int, step: float, ulp: float) -> str:
        """How multiples of `step`, a fraction of `ulp`, are rounded to `ulp` beside other terms."""
        made = [[(i, sign * x) for i, x in (*beside, (place, q * step))] for q in range(1, 8) for sign in (1, -1)]
        exact = np.array([sum(x for _, x in terms) for terms in made])
        return rounding_of(exact / ulp, sums(made) / ulp)

    later = _later(name, multiply, k)
    *_, x, y, z = (int(place) for place in np.argsort(-later, kind="stable"))  # the last ones, which meet if any do

    sizes = [LARGE / 2**bits for bits in range(MOST_BITS + 1)]
    holders = [place for place in range(k + 1) if place not in (y, z)]
    survives = sums([[(holder, LARGE), (z, -LARGE), (y, size)] for holder in holders for size in sizes])
    kept = np.logical_and.accumulate(survives.reshape(len(holders), -1) == sizes, axis=1).sum(axis=1) - 1
    bits, holder = int(kept.max()), holders[int(kept.argmax())]

    accumulation = Accumulation(int(np.unique(later, return_counts=True)[1].min()), bits - FRACTION_BITS)
    one = 2.0**10
    ulp, stored = (2.0 ** (11 - fraction) for fraction in (FRACTION_BITS, accumulation.fraction_bits))  # of 2 * one
    c_last = bool(sums([[(y, LARGE), (z, -LARGE), (k, SMALL)]])[0] == SMALL)
    return TensorCore(
        **accumulation._asdict(),
        addend_rounding=rounding([(holder, LARGE), (z, -LARGE)], y, sizes[bits] / 4, sizes[bits]),
        sum_rounding=rounding([(x, one), (y, one)], z, max(stored / 4, one / 2**bits), stored),
        c_rounding=rounding([(k, 2 * one)], z, ulp / 4, ulp) if c_last else None,
    )


def _later(name: str, multiply: Multiply, k: int) -> np.ndarray:
    """For each place along k, how many places are added in a later step, int [k]; those with the same number meet.

    A small product survives beside a large one that is cancelled at the place in question, if the small one is added
    after that. The large one may be c, or any other product: c comes too late where it is added to the finished sum,
    and a product where it is added after its opposite.
    """
    places = np.arange(k)
    holder, opposite, small = np.meshgrid(np.arange(k + 1), places, places, indexing="ij")
    left, right = np.zeros((k + 1, k, k, k)), np.full((k + 1, k, k, k), SMALL_ROOT)
    left[small[..., None] == places] = SMALL_ROOT
    for where, sign in ((holder, 1), (opposite, -1)):
        here = where[..., None] == places
        left[here], right[here] = sign * LARGE_ROOT, LARGE_ROOT
    c = np.where(holder == k, LARGE, 0.0)
    # 16 sums that differ in the place of the small product share a tile: their right factors are the same
    tiled = (left.reshape(-1, 16, k), right.reshape(-1, 16, k)[:, 0], c.reshape(-1, 16))
    return (_products(name, multiply, *tiled).reshape(c.shape) == SMALL).sum(axis=2).max(axis=0)


def _sums(name: str, multiply: Multiply, sums: Sequence[Sequence[Term]], k: int) -> np.ndarray:
    """What each sum of terms gives, float64; at most one term in a place."""
    left, right, c = np.zeros((len(sums), 1, k)), np.zeros((len(sums), k)), np.zeros((len(sums), 1))
    for i, terms in enumerate(sums):
        for place, value in terms:
            if place == k:
                c[i] = value
            else:
                units = int(abs(value) / SMALL)
                half = math.log2(SMALL_ROOT) + ((units & -units).bit_length() - 1) // 2
                right[i, place] = 2.0**half
                left[i, 0, place] = value / 2.0**half  # at most 3 bits long, and 2^-9 at least
    return _products(name, multiply, left, right, c)[:, 0]


def _products(name: str, multiply: Multiply, left: np.ndarray, right: np.ndarray, c: np.ndarray) -> np.ndarray:
    """left . right + c, float64 [n, rows], of left [n, rows, k], right [n, k], c [n, rows]; at most 16 rows."""
    (n, rows, k), (_, left_kind, right_kind) = left.shape, ptx.MMA_TYPES[name]
    a, b, start = np.zeros((n, 16, k)), np.zeros((n, 8, k)), np.zeros((n, 16, 8), np.float32)
    a[:, :rows], b[:, 0], start[:, :rows, 0] = left, right, c
    bits = multiply(name, bits_of(a, left_kind), bits_of(b, right_kind), start.view(np.uint32).astype(np.int64))
    return bits.astype(np.uint32).view(np.float32)[:, :rows, 0].astype(np.float64)
