"""Dot products."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from workbench.floats import array_namespace, round_to
from workbench.reference.bound import EXACT, NEGLIGIBLE, Bound
from workbench.reference.stage import Bounded, Ref


@dataclass(frozen=True)
class Dot:
    """sum over d of a b, [b, h, q, k], of a [b, h, q, d] and b [b, h, k, d], not yet scaled nor masked."""

    a: Ref
    b: Ref

    def value(self, at: Any) -> np.ndarray:
        return at(self.a) @ at(self.b).swapaxes(-1, -2)

    def magnitude(self, at: Any) -> np.ndarray:
        """sum |a b|."""
        return abs(at(self.a)) @ abs(at(self.b)).swapaxes(-1, -2)

    def control(self, at: Any) -> np.ndarray:
        """One product after the other, in the order of d; of q that was rounded after its scaling."""
        a, scale, dtype = at(self.a), at.p.scale, at.contract.scaled_q_dtype
        if dtype != "float32" and scale:
            a = (round_to(a * scale, dtype) / scale).astype(a.dtype)
        return at.cast_control(at.add_products(None, a, at(self.b).swapaxes(-1, -2)), at.sites.scores)

    def bound(self, at: Any) -> Bounded:
        """An inner product in any order: head_dim - 1 sums, and one product where it rounds, as that of an operand does
        which was multiplied by the scale: it has 24 bits.

        Worst: g(n) sum|t| (Higham 2002, section 3.1). Random: the square of a prefix of i terms in unknown order is on
        average i sum t^2 / n (1 - i/n) + (i/n)^2 S^2, which over all i is n (sum t^2 / 2 + S^2 / 3) at most.

        Operands of fewer bits and narrow accumulators lose what `Losses` says. Operands a + e, b + f that nobody saw
        move it by sum |e| |b| + |a| |f| + |e| |f|, and what is lost with it.
        """
        size, losses = at.magnitude(at.name), at.losses
        xp = array_namespace(size)
        head_dim, inexact = at(self.a).shape[-1], not at.p.exact_products or losses.scaled_operands > 0
        floor = xp.where(size > 0, head_dim * losses.floor, 0.0)
        terms = losses.terms_of_product
        # a narrow accumulator rounds the first product as well
        additions = terms * head_dim - (not losses.narrow and terms == 1)
        added = losses.sum_of_products(terms * head_dim, max(1, additions), losses.sites.qk.accumulation)
        of_operands = losses.operands(2) * (not at.p.exact_products)
        products = of_operands + losses.scaled_operands + (losses.product if inexact or losses.narrow else 0.0)
        floor = floor + xp.where(size > 0, 2 * terms * head_dim * losses.accumulator_floor, 0.0)
        worst = (added + products * (1 + added)) * size + floor
        moved: np.ndarray | float = 0.0
        if at.error(self.a) is not EXACT or at.error(self.b) is not EXACT:
            a, b = at(self.a), at(self.b)
            e, f = (0.0 * x + at.error(ref).worst for x, ref in ((a, self.a), (b, self.b)))
            moved = (e @ (abs(b) + f).swapaxes(-1, -2) + abs(a) @ f.swapaxes(-1, -2)) * (1 + 2 * (added + products))
        if not at.statistics:
            random, common = 0.0, 0.0
        elif losses.sites.qk.accumulation == "nearest":
            a, b, total = at(self.a), at(self.b), at.own
            squares = (a * a) @ (b * b).swapaxes(-1, -2)
            sums = terms * head_dim * (squares / 2 + total * total / 3) * losses.accumulators**2
            # what an operand lost all its products lose
            random, common = xp.sqrt(sums + (products - of_operands) ** 2 * squares), floor + of_operands * size
        else:
            random, common = 0.0, worst
        bound = maybe_stored(at, Bound(worst + moved, random, common + moved), at.own)
        # a score that the scale makes negligible may be anything
        with np.errstate(all="ignore"):
            negligible = float(np.divide(NEGLIGIBLE, np.abs(at.p.scale)))  # inf where the scale is 0
        return Bounded(bound, xp.maximum(size, negligible))

    words = "sum_d {a} {b}, before scale and mask"


def between(at: Any, value: np.ndarray, bound: np.ndarray | float = 0.0) -> np.ndarray | float:
    """What a `value`, known to `bound`, may lose between two operations on scores, each of which may store its result
    in their dtype, as operations of tensors do.
    """
    if (site := at.losses.sites.scores).wide:
        return 0.0
    site = replace(site, rounding="any") if "scores_dtype" in at.contract.assumed else site
    relative, least = site.cast()
    return relative * (abs(value) + bound) + array_namespace(value).where(value != 0, least, 0.0)


def maybe_stored(at: Any, bound: Bound, value: np.ndarray) -> Bound:
    """The bound of a value that may or may not be rounded to the dtype of scores on its way.

    Of a value beside a tie that its error all but surely does not rule out either neighbour is right: common is as far
    as the farther one.
    """
    if (site := at.losses.sites.scores).wide:
        return bound
    xp = array_namespace(value)
    site = replace(site, rounding="any") if "scores_dtype" in at.contract.assumed else site
    worst = xp.maximum(bound.worst, site.reach(value, bound.worst))
    common: np.ndarray | float = 0.0
    if at.statistics:
        common = xp.maximum(xp.zeros_like(value) + bound.common, site.reach(value, at.likely(bound)))
    return Bound(worst, bound.random, common)
