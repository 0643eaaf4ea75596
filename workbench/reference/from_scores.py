"""Bounds of out and lse straight from scores, for runs of which nobody saw what lies between.

Softmax is shift invariant: what an error does to the maximum cancels, whatever the tiles and splits. What survives is a
relative error e_j of each weight pi_j, |e_j| <= E_j, and out' - out = sum pi e (v - out) / (1 + sum pi e), which is
small where the values are alike: centred, it is far tighter than numerator and denominator apart.
"""

from dataclasses import dataclass
from functools import reduce
from math import exp, log
from typing import Any

import numpy as np

from workbench.floats import array_namespace, smallest_normal
from workbench.reference.bound import EXACT, Bound, deviations
from workbench.reference.normaliser import normaliser
from workbench.reference.problem import Problem
from workbench.reference.stage import Bounded, Ref
from workbench.reference.steps.output import lse_own, stored_out
from workbench.reference.steps.parameters import by_query_head
from workbench.reference.steps.sums import SMALLEST_BLOCK_K

#: what is left of a lower bound after float64's own roundings: of 2^20 keys they are 2^-32 at most
SURELY = 1 - 1e-9
#: logarithm of what an upper bound in the place of a maximum may take off the largest weight, 9.7
HEADROOM = -log(smallest_normal("float16"))


def _bounds(at: Any, step: "Softmax", sinks: bool) -> dict[str, tuple[Bound, Any]]:
    """Bounds of out and lse, with their sizes, from scores, for out = softmax(scores) values as the reference has it.

    A weight's own relative error is that of its score; of the arguments of all exps that made it (they add up to
    max - score in magnitude, however the maximum rose), where fma takes part with u |max c| more for the key's own,
    which only keys under the same maximum share; of these exps, one for each key tile to come and one for the merge;
    and, where probs are cast, of that cast, which the denominator only shares where it adds the cast probs. Under a
    maximum that lags a key's own argument is above 0 by the lag at most, which the maxima to come make up for. `sinks`:
    with that of a row as one more key, whose value is 0.
    """
    p, scores, values = at.p, step.scores, step.values
    s, of_scores, v, of_v = at(scores), at.error(scores), at(values), at.error(values)
    kept = _kept(at)
    if sinks:
        s, of_scores, v, of_v = _with_sink(at, s, of_scores, v, of_v)
    xp, losses = array_namespace(s), p.losses
    top = xp.max(s, axis=-1)
    no_keys = top == -np.inf
    x = xp.where(s == -np.inf, np.inf, xp.where(no_keys, 0.0, top)[..., None] - s)
    weights = xp.exp(-x)
    total, maximum = xp.where(no_keys, 1.0, xp.sum(weights, axis=-1)), top
    pi = weights / total[..., None]
    length = xp.where(xp.isfinite(x), x, 0.0)
    largest_total = total
    if p.contract.row_max == "lagging":
        length, maximum, largest_total = (
            length + 2 * p.contract.lag,
            abs(top) + p.contract.lag,
            total * exp(p.contract.lag),
        )
    elif p.contract.row_max != "running":
        raised = _raised(p, xp.where(no_keys, 0.0, top))
        total, length, maximum = total * xp.exp(-raised), length + raised[..., None], abs(top) + raised
        largest_total = total

    tiles = _tiles(p)
    longer = length + losses.offset
    own = losses.argument * longer + losses.exp(longer, tiles + 1)
    # each maximum lies between the key's own score and the last one
    reach = xp.where(no_keys, 0.0, abs(top))[..., None] + longer
    given = losses.fused * at.given(scores)
    of_max = (losses.argument_of_max + losses.rescaling_of_max * (tiles + 1) + given) * reach + losses.polynomial
    own = own + of_max
    log = at.computed[step.lse]
    by_lse = normaliser(p, s, log)
    if by_lse is not None:
        own, of_max = (one + by_lse.weight[..., None] for one in (own, of_max))
    relative = xp.where(pi > 0, pi * xp.expm1(of_scores.worst + own), 0.0)
    squares, common = relative, relative
    if p.statistics:  # first order, with a margin for the second
        squares = (1.05 * pi) ** 2 * (of_scores.random * of_scores.random + (own - of_max) ** 2)
        common = 1.05 * pi * (of_scores.common + of_max)

    added, products = _of_sums(p)
    # what underflows in narrow accumulators; every key and every rescaling is rounded twice
    lost = 2 * (losses.terms_of_product * _met(p) + 2 * tiles) * losses.accumulator_floor
    sum_relative = xp.sum(relative, axis=-1)
    # by lse nothing makes weights add up to 1
    loose = None if by_lse is None else (xp.sum(xp.where(pi > 0, pi * xp.expm1(own), 0.0), axis=-1), by_lse.largest)
    if kept is not None:
        kept = _longer(kept, s)
    of_out = _out(
        at, step.out, v, of_v, pi, kept, relative, squares, common, sum_relative, added, products, lost, total, loose
    )

    row_sum = xp.where(no_keys, 0.0, largest_total)
    lost_l = _cast_of_sum(p, pi, total)
    own_lse = lse_own(p, log, maximum, row_sum) + added + (0.0 if by_lse is None else by_lse.lse)
    own_lse = own_lse + 4 * p.keys * losses.clamped / total
    never = log == -np.inf
    worst = -xp.log1p(-xp.minimum(sum_relative, 1.0)) + 1.05 * lost_l + own_lse
    likely = worst = xp.where(never, 0.0, worst)
    if p.statistics:
        stat = deviations(p.elements_of(step.lse)) * xp.sqrt(xp.sum(squares, axis=-1)) + xp.sum(common, axis=-1)
        likely = xp.where(never, 0.0, xp.minimum(worst, stat + 1.05 * lost_l + own_lse))
    return {step.out: of_out, step.lse: (Bound(worst, 0.0, likely), np.inf)}


def _out(
    at: Any, name: str, v: np.ndarray, of_v: Bound, pi: np.ndarray, kept: np.ndarray | None,
    relative: np.ndarray, squares: np.ndarray, common: np.ndarray, sum_relative: np.ndarray, added: float,
    products: float, lost: float, total: np.ndarray, loose: tuple[np.ndarray, float] | None,
) -> tuple[Bound, Any]:  # fmt: skip
    """[sum pi E |v - out| + sum k z + products sum pi |v| + added |out|] / (1 - sum pi E), division and cast rounded.

    sum pi E |v - out| <= sqrt(sum pi E) sqrt(sum pi E (v - out)^2) by Cauchy and Schwarz, which takes matrix products
    only; it is at most 1.25 times as large for normal errors. k is the cast of probs and z the value that it meets:
    v - out where the denominator has it too, v elsewhere. Values v + e that nobody saw move out by
    sum (pi + pi E + k) |e|. With dropout a value is `kept` times as large in the row, 0 or 1 / (1 - p), of the
    numerator alone. `loose`: how far the sum of the weights may be from 1, and the share of the largest value that
    merges lose, in kernels that do not divide.
    """
    p, out = at.p, at.computed[name]
    xp, losses = array_namespace(v), p.losses
    abs_v, about = abs(v), _About(v, v * v, out, kept)
    met = about.met(pi)
    reach = met @ abs_v
    cast = _cast_of_probs(p, met, total)
    # weights that may be off by half say nothing of out
    grown = xp.where(sum_relative < 0.5, 1 / (1 - sum_relative), np.inf)[..., None]
    of_cast: np.ndarray | float = 0.0
    squares_of_cast: np.ndarray | float = 0.0
    if cast is not None:
        of_cast, squares_of_cast = _of_cast(p, about, cast, abs_v, 0.0 if kept is None else _cast_of_sum(p, pi, total))
    rounding = products * reach + added * abs(out) + _partials(p, reach, total)
    # a head whose values are all 0 has an out of 0, whatever the weights
    largest_v = xp.max(abs_v, axis=-2, keepdims=True) if p.cut is None else by_query_head(p.cut.largest_v, at.heads)
    largest_v = largest_v / (1 - p.numbers.get("dropout_p", 0.0))
    keys = pi.shape[-1] + p.keys - p.keys_left
    floor = losses.floor * (1 + keys * largest_v) + lost / total[..., None]
    # weights of every key that are clamped, in numerator and denominator, and so may rescalings be
    floor = xp.where(reach > 0, floor, 0.0) + 4 * losses.clamped / total[..., None] * keys * largest_v
    last = losses.division * abs(out) + floor
    if loose is not None:
        last = last + loose[0][..., None] * abs(out) * grown + loose[1] * largest_v
    if of_v is not EXACT:
        reached = about.met(pi * (1 + 2 * products) + relative) + (0.0 if cast is None else cast)
        last = last + reached @ of_v.worst * grown
    # the cast weights are larger than the others by (1 + E) at most, which the denominator covers twice over
    worst = (about.linear(relative) + of_cast * grown + rounding * grown) * grown + last
    no_keys = xp.sum(pi, axis=-1)[..., None] == 0
    size = xp.broadcast_to(largest_v, out.shape)
    if not p.statistics:
        return stored_out(p, name, out, Bound(xp.where(no_keys, 0.0, worst), 0.0, 0.0)), size
    if losses.sites.acc.accumulation == "nearest":
        # a sum that loses n u of its size in the worst case loses sqrt(n) u all but surely
        of_sums = losses.accumulators * products * reach * reach + losses.sums * added * out * out
        of_sums = of_sums + (p.products_error * reach) ** 2
        certain = last + _partials(p, reach, total)
    else:
        of_sums, certain = 0.0 * reach, last + rounding
    random = xp.sqrt(about.centred(squares) + squares_of_cast + of_sums) * grown
    shared = certain + about.linear(common) * grown
    bound = Bound(*(xp.where(no_keys, 0.0, part) for part in (worst, random, shared)))
    return stored_out(p, name, out, bound), size


@dataclass(frozen=True)
class _About:
    """Sums over a row of weights times powers of v - out: most of the cost of a bound, two products each."""

    v: np.ndarray
    v2: np.ndarray
    out: np.ndarray
    kept: np.ndarray | None  #: as of `_out`

    def met(self, weights: np.ndarray) -> np.ndarray:
        """The weights after dropout, which the values are multiplied by."""
        return weights if self.kept is None else weights * self.kept

    def centred(self, weights: np.ndarray, of_squares: np.ndarray | None = None) -> np.ndarray:
        """sum_j weights (v - out)^2, at least 0: it is a difference of large numbers. `of_squares`: weights @ v^2,
        where that is at hand.
        """
        xp, out, met = array_namespace(weights), self.out, self.met(weights)
        of_squares = self.met(met) @ self.v2 if of_squares is None else of_squares
        moments = of_squares - 2 * out * (met @ self.v) + out * out * xp.sum(weights, axis=-1)[..., None]
        return xp.maximum(moments, 0.0)

    def linear(self, weights: np.ndarray) -> np.ndarray:
        """sum_j weights |v - out|, or a little more."""
        xp = array_namespace(weights)
        return xp.sqrt(xp.sum(weights, axis=-1)[..., None] * self.centred(weights))


def _of_cast(
    p: Problem, about: _About, cast: np.ndarray, abs_v: np.ndarray, of_sum: np.ndarray | float
) -> tuple[Any, Any]:
    """What the cast of probs, of the numerator alone, of both, or, where that is not known, of either, moves out by,
    and the sum of its squares, where there are statistics; no product that is not asked for.
    """
    shared, kept, out = p.contract.row_sum_of_cast, about.kept, about.out
    xp = array_namespace(cast)
    square = cast * cast if p.statistics else None
    alone = cast @ abs_v if shared is not True or kept is not None else None
    alone_squares = None if square is None else square @ about.v2
    moved, squares = [], []
    if shared is not True:
        moved.append(alone)
        squares.append(alone_squares)
    if shared is not False and kept is None:
        moved.append(about.linear(cast))
        squares.append(None if square is None else about.centred(square, alone_squares))
    elif shared is not False:  # the numerator has the cast of what was kept, the denominator that of all
        of_all = abs(out) * (xp.zeros_like(out) + (of_sum if isinstance(of_sum, float) else of_sum[..., None]))
        moved.append(alone + of_all)
        squares.append(None if alone_squares is None else alone_squares + of_all * of_all)
    return reduce(xp.maximum, moved), 0.0 if square is None else reduce(xp.maximum, squares)


def _least(at: Any, step: "Softmax") -> np.ndarray:
    """A lower bound of the worst case of out or lse, for one product where `_bounds` takes five and more: of out what
    products lose, and the cast of probs where the numerator has it for itself; of lse what it loses itself.

    No other term of `_out` is negative, the cast of a weight pi is r pi or all of it, and `grown` is at least 1.
    """
    p, losses = at.p, at.losses
    added, products = _of_sums(p)
    made = at.computed[step.part]
    if step.part == step.lse:
        own = 2 * losses.sums * abs(made) + added + losses.log_absolute
        return SURELY * array_namespace(made).where(made == -np.inf, 0.0, own)
    s, v, kept = at(step.scores), at(step.values), _kept(at)
    if "sinks" in p.inputs:
        s, _, v, _ = _with_sink(at, s, EXACT, v, EXACT)
    xp = array_namespace(s)
    top = xp.max(s, axis=-1)
    no_keys = top == -np.inf
    weights = xp.exp(s - xp.where(no_keys, 0.0, top)[..., None])
    total = xp.where(no_keys, 1.0, xp.sum(weights, axis=-1))
    reach = (weights if kept is None else weights * _longer(kept, s)) @ abs(v) / total[..., None]
    of_cast = 0.0
    if not (cast := losses.sites.probs).wide and p.contract.row_sum_of_cast is not True:
        of_cast = min(cast.cast()[0], 1.0)
    worst = (of_cast + products) * reach + added * abs(made)
    bound = SURELY * worst
    site = losses.sites.out
    return bound if site.wide else site.reach(made, bound)


def _kept(at: Any) -> np.ndarray | None:
    """By what dropout multiplies the value of each key in a row, [b, h, q, k]; None without dropout."""
    if "dropout_mask" not in at.p.inputs:
        return None
    mask = at("dropout_mask")
    xp = array_namespace(mask)
    return xp.where(mask, 1 / (1 - at.p.numbers["dropout_p"]), 0.0)


def _longer(kept: np.ndarray, s: np.ndarray) -> np.ndarray:
    """The same for scores that may have a sink as a last key, which is never dropped."""
    xp = array_namespace(s)
    return xp.concat([kept, xp.ones_like(s[..., kept.shape[-1] :])], axis=-1)


def _with_sink(at: Any, s: np.ndarray, of_s: Bound, v: np.ndarray, of_v: Bound) -> tuple[Any, Bound, Any, Bound]:
    """Scores and values, with their errors, and with the sink as a last key."""
    xp = array_namespace(s)
    column, row = xp.zeros_like(s[..., :1]), xp.zeros_like(v[..., :1, :])
    sink = column + at("sinks")[..., None]
    lost = column + (column[..., 0] + at.error("sinks").worst)[..., None]

    def longer(x: np.ndarray | float, last: np.ndarray) -> np.ndarray:
        return xp.concat([xp.zeros_like(s) + x, last], axis=-1)

    of_s = Bound(longer(of_s.worst, lost), longer(of_s.random, column), longer(of_s.common, lost))
    if of_v is not EXACT:
        of_v = Bound(*(xp.concat([xp.zeros_like(v) + x, row], axis=-2) for x in of_v))
    return xp.concat([s, sink], axis=-1), of_s, xp.concat([v, row], axis=-2), of_v


def _tiles(p: Problem) -> int:
    """Key tiles of a split; of unknown tiles the most and of unknown splits one."""
    return 2 * -(-p.keys // SMALLEST_BLOCK_K) if p.contract.block_k is None else len(p.tiling.keys)


def _met(p: Problem) -> int:
    """Keys that one accumulator adds up, with what fills the blocks of tensor cores: a tile's last one may be short."""
    return p.keys + p.losses.tensor_cores.block * _tiles(p)


def _of_sums(p: Problem) -> tuple[float, float]:
    """What the sum of the weights loses of itself, and the sum of their products with values of sum pi |v|."""
    losses, tiles, terms = p.losses, _tiles(p), p.losses.terms_of_product * _met(p)
    products = losses.sum_of_products(terms, terms, losses.sites.acc.accumulation) + p.products_error
    products = products + losses.rescalings(2 * tiles) + losses.sum(2 * p.splits + 3)
    if "dropout_mask" in p.inputs:
        products = products + 3 * losses.products  # 1 - p, its reciprocal and the product
    return losses.sum(p.keys + 2 * tiles + 2 * p.splits + 4), products


def _raised(p: Problem, top: np.ndarray) -> np.ndarray:
    """How far above the largest score, `top`, a maximum may be that nobody saw: as far as the bound by norms,
    |q| |k| scale, or by as much headroom as leaves the largest weight a normal number of float16. All weights are
    smaller by exp of it, so that more of them underflow.
    """
    xp, q, k = array_namespace(top), p.inputs["q"], p.inputs["k"]
    longest = xp.max(xp.sqrt(xp.sum(k * k, axis=-1)), axis=-1) if p.cut is None else p.cut.longest_k
    longest = xp.repeat(longest, q.shape[1] // longest.shape[1], axis=1)[..., None]
    norms = abs(p.scale) * xp.sqrt(xp.sum(q * q, axis=-1)) * longest
    if p.attn_bias is not None:
        norms = norms + xp.max(xp.where(p.attn_bias < np.inf, p.attn_bias, 0.0), axis=-1)
    raised: np.ndarray = xp.maximum(norms - top, HEADROOM)
    return raised


def _cast_of_probs(p: Problem, pi: np.ndarray, total: np.ndarray) -> np.ndarray | None:
    """Error of each normalised weight from the cast of probs, [b, h, q, k]; None without a cast.

    The cast is relative to the running maximum of the key's tile, which is at most the last one: the relative error is
    the same, and what is lost below the smallest normal number is less, unless it was normalised before, or is below a
    bound that is above the maximum.
    """
    if (site := p.losses.sites.probs).wide:
        return None
    relative, absolute = site.cast()
    xp = array_namespace(pi)
    below: Any = absolute / total[..., None]
    if p.casts_normalised:
        below = absolute if p.contract.probs_normalised else xp.maximum(below, absolute)
    return xp.where(pi > 0, xp.minimum(relative * pi + below, pi), 0.0)


def _cast_of_sum(p: Problem, pi: np.ndarray, total: np.ndarray) -> np.ndarray | float:
    """Relative error of row_sum from the cast of probs; equal probs are cast alike, so that it adds up."""
    cast = None if p.contract.row_sum_of_cast is False else _cast_of_probs(p, pi, total)
    return 0.0 if cast is None else array_namespace(pi).sum(cast, axis=-1)


def _partials(p: Problem, reach: np.ndarray, total: np.ndarray) -> np.ndarray | float:
    """Error of out from storing partial results in fewer bits; each split's is at most its share of sum pi |v|."""
    if (site := p.losses.sites.partials).wide or (not p.merges and p.declared("splits")):
        return 0.0
    relative, absolute = site.cast()
    splits = p.contract.splits or -(-p.keys // SMALLEST_BLOCK_K)
    return array_namespace(reach).where(reach > 0, relative * reach + splits * absolute / total[..., None], 0.0)


@dataclass(frozen=True)
class Softmax:
    """out or lse straight from scores: several steps in one, of which only the bound is of use."""

    scores: Ref
    values: Ref
    part: str  #: one of the next two, which are made together
    out: str
    lse: str

    def value(self, at: Any) -> np.ndarray:
        """As the steps that it stands for computed it."""
        return at.computed[self.part]

    def bound(self, at: Any) -> Bounded:
        """As this module says; those of out and lse are made together."""
        sinks = "sinks" in at.p.inputs and (self.part == self.out or at.contract.lse_includes_sink)
        key = ("from scores", self.scores, self.values, sinks)
        made = at.once(key, lambda: _bounds(at, self, sinks))
        return Bounded(*made[self.part])

    def least(self, at: Any) -> np.ndarray:
        """What its worst case is no smaller than: `_least`."""
        return _least(at, self)

    @property
    def words(self) -> str:
        return f"{self.part} of softmax({{scores}}) @ {{values}}"
