"""Sums: the running ones over a row's key tiles, and those over splits."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.floats import array_namespace
from workbench.reference.bound import EXACT, NEGLIGIBLE, Bound, part
from workbench.reference.stage import Bounded, Ref
from workbench.reference.steps.weight import Weight, difference

#: smallest key tile assumed of a kernel that does not declare its own: each is one more rescaling, with one more exp
SMALLEST_BLOCK_K = 16


@dataclass(frozen=True)
class RunningSum:
    """rescale * previous + the sum of the tile's weights, [b, h, q, t]; of weights times values, [b, h, q, t, d].

    FlashAttention-2 (Dao 2023, arXiv 2307.08691), section 3.1, algorithm 1. A weight of 0 does not hide an inf or NaN
    of the values: 0 * inf is NaN here as in a kernel.
    """

    rescale: Ref
    previous: Ref
    weights: Ref
    scores: str  #: whose range tells what rescalings lose that nobody saw
    maxima: str
    values: Ref = ""
    cast: bool = False  #: whether weights may have been cast, those of one size alike

    def value(self, at: Any) -> np.ndarray:
        weights, values = at(self.weights), at(self.values) if self.values else None
        made = self._sum(at(self.rescale), at(self.previous), weights, values)
        if values is None or not at.p.passes_over_nan:
            return made
        xp = array_namespace(values)
        odd = xp.isnan(values)
        kept = self._sum(at(self.rescale), at(self.previous), weights, xp.where(odd, 0.0, values))
        read = xp.where(weights == 0, 0.0, 1.0) @ xp.where(odd, 1.0, 0.0) > 0
        return xp.where(read, made, kept)

    def magnitude(self, at: Any) -> np.ndarray:
        """The sum of the terms' sizes."""
        values = abs(at(self.values)) if self.values else None
        return self._sum(abs(at(self.rescale)), abs(at(self.previous)), abs(at(self.weights)), values)

    def _sum(self, c: np.ndarray, before: np.ndarray, w: np.ndarray, values: np.ndarray | None) -> np.ndarray:
        if values is None:
            return c * before + array_namespace(w).sum(w, axis=-1)
        return c[..., None] * before + w @ values

    def control(self, at: Any) -> np.ndarray:
        """One term after the other in the order of keys, from the rescaled state on."""
        c, before, weights = at(self.rescale), at(self.previous), at(self.weights)
        if self.values:
            return at.add_products(c[..., None] * before, weights, at(self.values))
        total = c * before
        for column in np.moveaxis(weights, -1, 0):
            total = total + column
        return total

    def bound(self, at: Any) -> Bounded:
        """rescale * previous + n weights: n + 1 operations; products with values round too, and tensor cores truncate.

        Random: prefixes start at c0 = rescale * previous and grow to the total over n sums, so that their squares add
        up to n (c0^2 + c0 T + T^2 / 3 + sum w^2 / 2) for T = sum w (see `Dot`). Weights of one size that were cast
        round alike: their errors are common. Values v + e that nobody saw move it by weights @ |e|. Where lanes keep
        sums of their own, both this sum and the previous one were rounded when lanes' sums were added up for the dump.
        """
        return self._with_values(at) if self.values else self._alone(at)

    def _alone(self, at: Any) -> Bounded:
        losses, probs, of = at.losses, at(self.weights), at.error(self.weights)
        xp, n = array_namespace(probs), probs.shape[-1]
        dumped = 2 * (at.contract.row_sum_lanes - 1).bit_length()
        l, of_l, c, of_c = at(self.previous), at.error(self.previous), at(self.rescale), at.error(self.rescale)
        events = at.once("rescaling", lambda: self._rescaling(at))
        c0, total_p = abs(c * l), xp.sum(abs(probs), axis=-1)
        total = c0 + total_p
        worst_p = _of_terms(of.worst, n)
        incoming = of_c.worst * (abs(l) + of_l.worst) + abs(c) * of_l.worst + worst_p + events * total
        worst = bound_of_sum(at, total, incoming, losses.sum(n + 1 + dumped), n + 1)
        size = xp.maximum(total, NEGLIGIBLE)
        if not at.statistics:
            return Bounded(Bound(worst, 0.0, 0.0), size)
        own = losses.sums**2 * (n + 1) * (c0 * c0 + c0 * total_p + total_p**2 / 3 + xp.sum(probs * probs, axis=-1) / 2)
        own = own + losses.sums**2 * dumped * total * total
        random_p = _of_terms(of.random * of.random, n)
        common = of_c.common * abs(l) + abs(c) * of_l.common + events * total + (n + 1) * losses.floor
        common = common + (worst_p if self.cast else _of_terms(of.common, n))
        random = xp.sqrt(own + random_p + (of_c.random * l) ** 2 + (c * of_l.random) ** 2)
        return Bounded(Bound(worst, random, common), size)

    def _with_values(self, at: Any) -> Bounded:
        losses, probs, of = at.losses, at(self.weights), at.error(self.weights)
        xp, n = array_namespace(probs), probs.shape[-1]
        a, of_a = at(self.previous), at.error(self.previous)
        c, of_c = at(self.rescale)[..., None], part(at.error(self.rescale), (..., None))
        v, of_v = at(self.values), at.error(self.values)
        abs_v = abs(v)
        c0 = abs(c * a)
        total = c0 + abs(probs) @ abs_v
        events = at.once("rescaling", lambda: self._rescaling(at))
        events = events if isinstance(events, float) else events[..., None]
        incoming = of_c.worst * (abs(a) + of_a.worst) + abs(c) * of_a.worst + events * total
        if of is not EXACT:
            incoming = incoming + of.worst @ abs_v
        if of_v is not EXACT:
            moved = (abs(probs) + of.worst) @ of_v.worst
            incoming = incoming + moved
        terms = losses.terms_of_product
        added = losses.sum_of_products(terms * n + 1, terms * n + 1, losses.sites.acc.accumulation)
        of_products = at.p.products_error
        below = xp.where(total + incoming > 0, 2 * (terms * n + 2) * losses.accumulator_floor, 0.0)
        worst = bound_of_sum(at, total, incoming, added + of_products * (1 + added), n + 2) + below
        size = xp.maximum(total, NEGLIGIBLE)
        if not at.statistics:
            return Bounded(Bound(worst, 0.0, 0.0), size)
        common = of_c.common * abs(a) + abs(c) * of_a.common + events * total + (n + 2) * losses.floor + below
        common = common + (of_products - losses.product) * total
        squares = (of_c.random * a) ** 2 + (c * of_a.random) ** 2
        if of is not EXACT:
            common = common + of.common @ abs_v
            squares = squares + (of.random * of.random) @ (abs_v * abs_v)
        if of_v is not EXACT:
            common = common + moved
        if losses.sites.acc.accumulation == "nearest":
            products = probs @ v
            of_terms = (probs * probs) @ (abs_v * abs_v)
            squares = squares + losses.product**2 * (of_terms + c0 * c0)
            squares = squares + losses.accumulators**2 * (terms * n + 1) * (
                c0 * c0 + c0 * abs(products) + products * products / 3 + of_terms / 2
            )
        else:
            common = common + added * total + losses.products * c0
        return Bounded(Bound(worst, xp.sqrt(squares), common), size)

    def _rescaling(self, at: Any) -> np.ndarray | float:
        """Relative error of the rescalings that a kernel of unknown tiles or maxima may add to a row, [..., q]; 0 where
        they are known.

        At most one for each tile and one for each split, with arguments that add up to no more than the range of the
        row's scores.
        """
        hidden = at.p.hidden_maxima
        if at.contract.block_k is not None and not hidden:
            return 0.0
        scores, losses = at.computed[self.scores], at.losses
        xp = array_namespace(scores)
        events = 2 * -(-scores.shape[-1] // SMALLEST_BLOCK_K)
        largest = xp.max(at.whole(self.maxima) if hidden else scores, axis=-1)
        smallest = xp.min(xp.where(scores == -np.inf, np.inf, scores), axis=-1)
        # a maximum that lags leaves its key, the last maximum and the largest score up to its lag apart each
        extent = xp.where(largest >= smallest, largest - smallest, 0.0) + 3 * at.contract.lag
        return xp.expm1(losses.exp(extent, events) + losses.argument * extent) + losses.sum(2 * events)

    @property
    def words(self) -> str:
        terms = "{weights} @ {values}" if self.values else "sum of this tile's {weights}"
        return f"{{rescale}} * {{previous}} + {terms}"


@dataclass(frozen=True)
class WeightedSum:
    """sum over splits of weight * of, [b, h, q] or [b, h, q, d]: the merge of Milakov & Gimelshein 2018, section 3.1;
    as "Flash-Decoding" in Dao et al. 2023.
    """

    weight: Ref
    of: Ref
    top: Ref = ""  #: where it makes its own weights exp(weight - top), as kernels that merge in one pass do

    def value(self, at: Any) -> np.ndarray:
        w, x, axis = self._terms(at)
        return array_namespace(x).sum(w * x, axis=axis)

    def magnitude(self, at: Any) -> np.ndarray:
        """The sum of the terms' sizes."""
        w, x, axis = self._terms(at)
        return array_namespace(x).sum(abs(w * x), axis=axis)

    def control(self, at: Any) -> np.ndarray:
        """One split after the other."""
        w = self._made.control(at) if self.top else at(self.weight)
        x = at(self.of)
        w = w[..., None] if x.ndim > w.ndim else w
        total = np.zeros_like(x[:, :, 0])
        for s in range(x.shape[2]):
            total = total + w[:, :, s] * x[:, :, s]
        return total

    @property
    def _made(self) -> Weight:
        return Weight(self.weight, self.top, axis=-2)

    def _terms(self, at: Any) -> tuple[np.ndarray, np.ndarray, int]:
        """Weights, what they meet, and the axis of splits."""
        w, x = self._made.value(at) if self.top else at(self.weight), at(self.of)
        return (w[..., None], x, -3) if x.ndim > w.ndim else (w, x, -2)

    def bound(self, at: Any) -> Bounded:
        """So many products and sums as there are splits."""
        x, of = abs(at(self.of)), at.error(self.of)
        xp, losses, n, axis = array_namespace(x), at.losses, at.splits + 1, -2
        if self.top:
            w = xp.exp(difference(at(self.weight), at(self.top)[..., None, :]))
            of_w = self._made.bound(at).bound
        else:
            w, of_w = abs(at(self.weight)), at.error(self.weight)
        if x.ndim > w.ndim:
            axis, w, of_w = -3, w[..., None], part(of_w, (..., None))
        total = xp.sum(w * x, axis=axis)
        incoming = xp.sum(of_w.worst * (x + of.worst) + w * of.worst, axis=axis)
        squares = (of_w.random * x) ** 2 + (w * of.random) ** 2
        random = xp.sqrt(xp.sum(squares, axis=axis) + n * (losses.sums * total) ** 2)
        common = xp.sum(of_w.common * x + w * of.common, axis=axis) + n * losses.floor
        worst = bound_of_sum(at, total, incoming, losses.sum(n), n)
        return Bounded(Bound(worst, random, common), xp.maximum(total, NEGLIGIBLE))

    @property
    def words(self) -> str:
        return f"sum_s {'exp({weight} - {top})' if self.top else '{weight}'} * {{of}}"


def bound_of_sum(at: Any, total: np.ndarray, incoming: np.ndarray | float, added: float, n: int) -> np.ndarray:
    """Bound of a sum of terms whose magnitudes add up to `total` and errors to `incoming`, after n operations that lose
    `added` of it. A sum of zeros is exact.
    """
    reach = total + incoming
    return incoming + added * reach + array_namespace(reach).where(reach > 0, n * at.losses.floor, 0.0)


def _of_terms(bounds: np.ndarray | float, n: int) -> np.ndarray | float:
    """The bounds of the n terms along the last axis, added up; a float is the bound of each."""
    return n * bounds if isinstance(bounds, float) else array_namespace(bounds).sum(bounds, axis=-1)
