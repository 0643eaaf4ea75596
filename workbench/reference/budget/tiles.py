"""Budgets of the stages of a key tile, row_max to acc; a tile's errors feed the next tile's state unless that state was
dumped.
"""

from collections.abc import Collection
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from workbench.case.contract import FAST_EXP_ULPS
from workbench.reference.budget.error import EXACT, Error, added, at, root_of_squares, statistical
from workbench.reference.budget.losses import flip_bound
from workbench.reference.budget.problem import NEGLIGIBLE, Problem
from workbench.reference.online import by_query_head

#: smallest key tile assumed of a kernel that does not tell its own: every tile is one more rescaling, with one more exp
SMALLEST_BLOCK_K = 16


def tile_errors(p: Problem, scores: Error, wanted: Collection[str]) -> dict[str, tuple[Error, np.ndarray | float]]:
    """Errors, and sizes that they are measured against, of the `wanted` stages of all tiles."""
    xp = array_namespace(p.q)
    if "row_sum" in wanted and p.contract.row_sum_of_cast is not False:
        wanted = {*wanted, "probs_cast"}
    names = [name for name in ("row_max", "correction", "probs", "probs_cast", "row_sum", "acc") if name in wanted]
    # of a dumped stage nobody reads more than the worst case and, as `common`, the statistical bound
    kinds = {name: (True, p.statistics and name not in p.given, p.statistics) for name in names}
    found = {name: Error(*(xp.empty_like(p.computed[name]) if kept else 0.0 for kept in kinds[name])) for name in names}
    sizes: dict[str, Any] = {name: np.inf if name == "row_max" else xp.empty_like(p.computed[name]) for name in names}
    events = _rescaling(p)
    abs_v = by_query_head(abs(p.v), p.q.shape[1])
    values = by_query_head(p.v, p.q.shape[1])
    moved_v = by_query_head(p.input_error("v"), p.q.shape[1])

    def error(name: str, index: tuple) -> Error:
        return EXACT if name in p.given else at(found[name], index)

    def put(name: str, index: tuple, known: Error, size: np.ndarray | None = None) -> None:
        if p.statistics and name in p.given and known is not EXACT:
            known = Error(known.worst, 0.0, statistical(known, p.elements[name]))
        for part, value in zip(found[name], known, strict=True):
            if not isinstance(part, float):
                part[index] = value
        if size is not None:
            sizes[name][index] = size

    for t, previous in p.tiling.order:
        keys = p.tiling.keys[t]
        now, columns, state, n = (..., t), (..., keys), (..., t, slice(None)), keys.stop - keys.start
        first, before = previous is None, (..., previous)
        e_s = EXACT if "scores" in p.given else at(scores, columns)
        s = p.seen["scores"][columns]
        m = p.seen["row_max"][now]
        m_prev = xp.full_like(m, -np.inf) if first else p.seen["row_max"][before]

        if "row_max" in wanted:
            e_prev, below = EXACT if first else error("row_max", before), m_prev
            if p.contract.row_max != "running" and not first:  # no matter what was chosen before
                e_prev, below = at(found["row_max"], before), p.computed["row_max"][before]
            put("row_max", now, _maximum(p, "row_max", p.computed["row_max"][now], below, e_prev, s, e_s))
        e_m = error("row_max", now) if {"row_max", "correction", "probs"} & {*wanted} else EXACT
        if "correction" in wanted:
            e_prev = EXACT if first else error("row_max", before)
            dx = _unless_unchanged(m_prev, e_prev, s, e_s, added(e_prev, e_m))
            put("correction", now, *weight_error(p, difference(m_prev, m), dx, m, ("row_max", "row_max")))
        if "probs" in wanted or "probs_cast" in wanted:
            column = at(e_m, (..., None))
            if "probs" in wanted:
                dx, reads = added(e_s, column), ("scores", "row_max")
                put("probs", columns, *weight_error(p, difference(s, m[..., None]), dx, m[..., None], reads))
            if "probs_cast" in wanted:
                cast = _probs_cast(p, p.seen["probs"][columns], error("probs", columns))
                put("probs_cast", columns, cast, xp.maximum(p.seen["probs"][columns], 1 - p.seen["probs"][columns]))

        # correction * previous + the sum over n keys: n + 1 operations, and the products with v round too
        if "row_sum" in wanted:
            name = "probs_cast" if p.contract.row_sum_of_cast else "probs"
            l = xp.zeros_like(m) if first else p.seen["row_sum"][before]
            e_l = EXACT if first else error("row_sum", before)
            e_p = error(name, columns)
            if p.contract.row_sum_of_cast is None:
                e_p = _either(e_p, p.seen[name][columns], error("probs_cast", columns), p.seen["probs_cast"][columns])
            put("row_sum", now, *_row_sum(p, now, l, e_l, p.seen[name][columns], e_p,
                                          error("correction", now), events, n))  # fmt: skip
        if "acc" in wanted:
            v_tile, abs_v_tile = values[:, :, keys], abs_v[:, :, keys]
            a_before = (..., previous, slice(None))
            a = xp.zeros_like(p.computed["acc"][state]) if first else p.seen["acc"][a_before]
            e_a = EXACT if first else error("acc", a_before)
            e_v = moved_v[:, :, keys] if "v" in p.input_errors else None
            put("acc", state, *_acc(p, now, a, e_a, p.seen["probs_cast"][columns], error("probs_cast", columns),
                                    error("correction", now), v_tile, abs_v_tile, e_v, events, n))  # fmt: skip
    return {name: (found[name], sizes[name]) for name in names}


def _row_sum(
    p: Problem, now: tuple, l: np.ndarray, e_l: Error, probs: np.ndarray, e_p: Error, e_c: Error,
    events: np.ndarray | float, n: int,
) -> tuple[Error, np.ndarray]:  # fmt: skip
    """correction * previous row_sum + n probs.

    Random: prefixes start at c0 = correction * previous and grow to the total over n sums, so that their squares add up
    to n (c0^2 + c0 T + T^2 / 3 + sum p^2 / 2) for T = sum p (see `scores.qk_error`). Cast probs that are equal round
    alike: their errors are common.
    """
    xp, losses = array_namespace(probs), p.losses
    c = p.seen["correction"][now]
    c0, total_p = abs(c * l), xp.sum(abs(probs), axis=-1)
    total = c0 + total_p
    worst_p = 0.0 if e_p is EXACT else xp.sum(e_p.worst, axis=-1)
    incoming = e_c.worst * (abs(l) + e_l.worst) + abs(c) * e_l.worst + worst_p + events * total
    worst = sum_bound(p, total, incoming, losses.sum(n + 1), n + 1)
    if not p.statistics:
        return Error(worst, 0.0, 0.0), xp.maximum(total, NEGLIGIBLE)
    own = losses.sums**2 * (n + 1) * (c0 * c0 + c0 * total_p + total_p**2 / 3 + xp.sum(probs * probs, axis=-1) / 2)
    random_p = 0.0 if e_p is EXACT else xp.sum(e_p.random * e_p.random, axis=-1)
    common = e_c.common * abs(l) + abs(c) * e_l.common + events * total + (n + 1) * losses.floor
    if e_p is not EXACT:
        alike = p.contract.row_sum_of_cast is not False
        common = common + (worst_p if alike else xp.sum(e_p.common, axis=-1))
    random = xp.sqrt(own + random_p + (e_c.random * l) ** 2 + (c * e_l.random) ** 2)
    return Error(worst, random, common), xp.maximum(total, NEGLIGIBLE)


def _acc(
    p: Problem, now: tuple, a: np.ndarray, e_a: Error, probs: np.ndarray, e_p: Error, e_c: Error,
    v: np.ndarray, abs_v: np.ndarray, e_v: np.ndarray | None, events: np.ndarray | float, n: int,
) -> tuple[Error, np.ndarray]:  # fmt: skip
    """correction * previous acc + probs_cast @ v: as `_row_sum`, with products that round; tensor cores truncate.

    Values v + e that nobody saw move it by probs_cast @ |e|.
    """
    xp, losses = array_namespace(probs), p.losses
    c = p.seen["correction"][now][..., None]
    e_c = at(e_c, (..., None))
    c0 = abs(c * a)
    total = c0 + abs(probs) @ abs_v
    rows = events if isinstance(events, float) else events[..., None]
    incoming = e_c.worst * (abs(a) + e_a.worst) + abs(c) * e_a.worst + rows * total
    if e_p is not EXACT:
        incoming = incoming + e_p.worst @ abs_v
    if e_v is not None:
        moved = (abs(probs) + e_p.worst) @ e_v
        incoming = incoming + moved
    terms = losses.terms_of_product
    added = losses.sum_of_products(terms * n + 1, terms * n + 1, losses.acc_accumulation)
    of_products = products_error(p)
    below = xp.where(total + incoming > 0, 2 * (terms * n + 2) * losses.accumulator_floor, 0.0)
    worst = sum_bound(p, total, incoming, added + of_products * (1 + added), n + 2) + below
    if not p.statistics:
        return Error(worst, 0.0, 0.0), xp.maximum(total, NEGLIGIBLE)
    common = e_c.common * abs(a) + abs(c) * e_a.common + rows * total + (n + 2) * losses.floor + below
    common = common + (of_products - losses.product) * total
    squares = (e_c.random * a) ** 2 + (c * e_a.random) ** 2
    if e_p is not EXACT:
        common = common + e_p.common @ abs_v
        squares = squares + (e_p.random * e_p.random) @ (abs_v * abs_v)
    if e_v is not None:
        common = common + moved
    if losses.acc_accumulation == "nearest":
        products = probs @ v
        of_terms = (probs * probs) @ (abs_v * abs_v)
        squares = squares + losses.product**2 * (of_terms + c0 * c0)
        squares = squares + losses.accumulators**2 * (terms * n + 1) * (
            c0 * c0 + c0 * abs(products) + products * products / 3 + of_terms / 2
        )
    else:
        common = common + added * total + losses.products * c0
    return Error(worst, xp.sqrt(squares), common), xp.maximum(total, NEGLIGIBLE)


def products_error(p: Problem) -> float:
    """Relative error of a product of a cast prob and a value, or of the correction and acc, without the additions: that
    of operands that are float32, and of the product, which a narrow accumulator rounds to its own dtype.
    """
    losses, wide = p.losses, (p.contract.probs_dtype == "float32") + (not p.exact_products)
    return losses.product + (losses.operands(wide) if wide else 0.0)


def sum_bound(p: Problem, total: np.ndarray, incoming: np.ndarray | float, added: float, n: int) -> np.ndarray:
    """Bound of a sum of terms whose magnitudes add up to `total` and errors to `incoming`, after n operations that lose
    `added` of it. A sum of zeros is exact.
    """
    reach = total + incoming
    return incoming + added * reach + array_namespace(reach).where(reach > 0, n * p.losses.floor, 0.0)


def difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a - b as the argument of exp: -inf where a is, even if b is too."""
    return array_namespace(a).where(a == -np.inf, -np.inf, a - b)


def weight_error(
    p: Problem, x: np.ndarray, dx: Error, maximum: np.ndarray, reads: tuple[str, str]
) -> tuple[Error, np.ndarray]:
    """Error of exp(x) for x = a - maximum known to dx: exp(x) expm1(dx + u|x| + eE), the subtraction rounded, eE = 2u
    ulps of exp; and its size. `reads`: the stages that a and maximum are.

    exp(0) = 1 and exp(-inf) = 0 are exact, but for fma, where 0 is max c - fl(max c). It is a weight in [0, 1], so that
    a bound that reaches the farther end says nothing; where the dumped inputs themselves give x > 0, the range is what
    exp gives.
    """
    xp, losses = array_namespace(x), p.losses
    hidden = x == -np.inf
    length = abs(xp.where(hidden, 0.0, x))
    value = xp.exp(x)
    own = losses.argument * length + losses.exp(length)
    shared, of_max = _of_max(p, length, maximum, reads)
    own = own + of_max
    random: np.ndarray | float = 0.0
    common: np.ndarray | float = 0.0
    worst = value * xp.expm1(own + dx.worst) + losses.floor
    # exp(0) = 1 in hardware and in libraries; a polynomial of few terms need not hit it
    at_0 = not shared and losses.exp_ulps <= FAST_EXP_ULPS
    exact = hidden | ((x == 0) & (dx.worst == 0)) if at_0 else hidden
    if dx is EXACT:
        random = worst
    elif p.statistics:
        # first order, with a margin for the second; where that is not enough the worst case is smaller
        random = 1.05 * value * root_of_squares(dx.random, own - of_max) + losses.floor
        common = 1.05 * value * (dx.common + of_max)
    size = xp.maximum(value, 1 - value)
    # what is less than the clamp gives may be as much
    clamped = xp.where(value <= 2 * losses.clamped, losses.clamped, 0.0) if losses.clamped else 0.0
    worst = xp.where(exact, 0.0, xp.minimum(worst, size)) + clamped
    if not p.statistics:
        return Error(worst, 0.0, 0.0), size
    return Error(worst, xp.where(exact, 0.0, random) + 0.0 * clamped, xp.where(exact, 0.0, common) + clamped), size


def _of_max(
    p: Problem, length: np.ndarray, maximum: np.ndarray, reads: tuple[str, str]
) -> tuple[bool, np.ndarray | float]:
    """Whether the argument of exp may be off by more than its own size, and by how much: for the rounding of
    max_scaled, and of each dumped stage that it `reads`, of at most |maximum| + `length` and |maximum|. Dumped maxima
    in units of log2 are max_scaled itself.
    """
    losses = p.losses
    size = abs(array_namespace(length).where(abs(maximum) < np.inf, maximum, 0.0))
    a, top = (name in p.given for name in reads)
    of_probs = reads[0] == "scores"
    rounded = losses.argument_of_max if of_probs else losses.rescaling_of_max
    if of_probs and top and p.contract.base2 and p.contract.scores_scaled:
        rounded, top = 0.0, False
    times = rounded + losses.fused * (a + top)
    return times > 0, times * size + losses.fused * a * length if times else 0.0


def max_bound(value: np.ndarray, x: np.ndarray, dx: np.ndarray | float, axis: int) -> np.ndarray:
    """Bound of max(x) for x known to dx: max itself is exact, and monotone, so the ends of the intervals bound it."""
    xp = array_namespace(x)
    upper, lower = xp.max(x + dx, axis=axis), xp.max(x - dx, axis=axis)
    return xp.where(upper == lower, 0.0, xp.maximum(upper - value, value - lower))


def _maximum(
    p: Problem, name: str, value: np.ndarray, m_prev: np.ndarray, e_prev: Error, s: np.ndarray, e_s: Error
) -> Error:
    """Error of max(previous, scores); what one score lost, all later uses of the maximum lose alike: it is common."""
    if e_prev is EXACT and e_s is EXACT:
        return EXACT
    xp = array_namespace(s)
    x = xp.concat([m_prev[..., None], s], axis=-1)

    def bound(prev: np.ndarray | float, of_scores: np.ndarray | float) -> np.ndarray:
        ends = [xp.zeros_like(m_prev) + prev, xp.zeros_like(s) + of_scores]
        return max_bound(value, x, xp.concat([ends[0][..., None], ends[1]], axis=-1), axis=-1)

    if not p.statistics:
        return Error(bound(e_prev.worst, e_s.worst), 0.0, 0.0)
    m = p.elements[name]
    return Error(bound(e_prev.worst, e_s.worst), 0.0, bound(statistical(e_prev, m), statistical(e_s, m)))


def _unless_unchanged(m_prev: np.ndarray, e_prev: Error, s: np.ndarray, e_s: Error, dx: Error) -> Error:
    """`dx`, the error of previous max - max; none where no score can reach the previous maximum: then both are one
    number.
    """
    if dx is EXACT:
        return dx
    xp = array_namespace(s)
    unchanged = xp.max(s + e_s.worst, axis=-1) < m_prev - e_prev.worst
    return Error(*(part if isinstance(part, float) else xp.where(unchanged, 0.0, part) for part in dx))


def _probs_cast(p: Problem, probs: np.ndarray, error: Error) -> Error:
    """The cast of probs: exact where dumped probs are rounded as declared, else a flip to the next value where an error
    takes probs over a rounding boundary; where the cast is not declared, one more rounding that may happen or not.
    """
    if p.cast_aware:
        if error is EXACT:
            return error

        def flips(bound: np.ndarray | float) -> np.ndarray:
            return flip_bound(probs, bound, p.contract.probs_dtype, p.contract.probs_rounding)

        likely = flips(statistical(error, p.elements["probs_cast"])) if p.statistics else 0.0
        return Error(flips(error.worst), likely, 0.0)
    if p.losses.probs_dtype == "float32":
        return error
    relative, absolute = p.losses.cast(p.losses.probs_dtype, p.contract.probs_rounding)
    if p.casts_normalised:  # what was lost is then as many times larger as row_sum is, a key 1 at most
        absolute = absolute * p.k.shape[-2]
    xp = array_namespace(probs)
    own = xp.where(probs + error.worst > 0, relative * (probs + error.worst) + absolute, 0.0)
    return Error(error.worst + own, root_of_squares(error.random, own), error.common + 0.0 * own)


def _either(e: Error, probs: np.ndarray, e_cast: Error, cast: np.ndarray) -> Error:
    """The error of `probs`, known to `e`, as what row_sum adds where it may as well be `cast`, known to `e_cast`."""
    xp = array_namespace(probs)
    return Error(xp.maximum(xp.zeros_like(probs) + e.worst, abs(cast - probs) + e_cast.worst), e.random, e.common)


def _rescaling(p: Problem) -> np.ndarray | float:
    """Relative error of the rescalings that a kernel of unknown tiles or maxima may add to a row, [..., q]; 0 where
    they are known.

    At most one for each tile and one for each split, with arguments that add up to no more than the range of the row's
    scores.
    """
    if p.contract.block_k is not None and not p.hidden_maxima:
        return 0.0
    scores = p.computed["scores"]
    xp, losses = array_namespace(scores), p.losses
    events = 2 * -(-scores.shape[-1] // SMALLEST_BLOCK_K)
    largest = xp.max(p.seen["row_max"] if p.hidden_maxima else scores, axis=-1)
    smallest = xp.min(xp.where(scores == -np.inf, np.inf, scores), axis=-1)
    extent = xp.where(largest >= smallest, largest - smallest, 0.0)
    return xp.expm1(losses.exp(extent, events) + losses.argument * extent) + losses.sum(2 * events)
