"""Budgets of what follows the tiles, from the stages that were dumped: partial results, their merge, out and lse."""

from collections.abc import Callable
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from workbench.reference.budget.error import EXACT, Error, added, at, root_of_squares, statistical
from workbench.reference.budget.losses import U, cast_bound, flip_bound
from workbench.reference.budget.normaliser import normaliser
from workbench.reference.budget.problem import NEGLIGIBLE, Budget, Problem
from workbench.reference.budget.tiles import difference, max_bound, sum_bound, weight_error
from workbench.reference.online import by_query_head
from workbench.reference.split_k import last_states

ErrorOf = Callable[[str], Error]


def partial_error(p: Problem, name: str, tile_state: Error) -> Error:
    """partial_max, partial_sum and partial_O: the state after a split's last tile; partial_O as it is stored."""
    if tile_state is EXACT:
        error = EXACT
    else:
        error = Error(*(x if isinstance(x, float) else last_states(x, p.tiling.splits, 0.0) for x in tile_state))
    dtype, rounding = p.contract.partials_dtype, p.contract.partials_rounding
    if name != "partial_O" or dtype == "float32":
        return error
    value = last_states(p.seen["acc"], p.tiling.splits, 0.0)
    if p.predicted("partials"):
        if error is EXACT:
            return EXACT

        def flips(bound: np.ndarray | float) -> np.ndarray:
            return flip_bound(value, bound, dtype, rounding)

        likely = flips(statistical(error, p.elements[name])) if p.statistics else 0.0
        return Error(flips(error.worst), likely, 0.0)
    if p.losses.partials_dtype == "float32":
        return error
    relative, absolute = p.losses.cast(dtype, rounding)
    size = abs(value) + error.worst
    own = array_namespace(value).where(size > 0, relative * size + absolute, 0.0)
    return Error(error.worst + own, root_of_squares(error.random, own), error.common)


def merge_max_error(p: Problem, partial_max: Error) -> Error:
    """merge_max: exact but for the errors of the maxima."""
    if partial_max is EXACT:
        return EXACT
    m, value = p.seen["partial_max"], p.computed["merge_max"]
    worst = max_bound(value, m, partial_max.worst, axis=-2)
    if not p.statistics:
        return Error(worst, 0.0, 0.0)
    return Error(worst, 0.0, max_bound(value, m, statistical(partial_max, p.elements["merge_max"]), axis=-2))


def merge_weight_error(p: Problem, partial_max: Error, merge_max: Error) -> tuple[Error, np.ndarray]:
    """merge_weight = exp(partial_max - merge_max), and its size."""
    m, top = p.seen["partial_max"], p.seen["merge_max"][..., None, :]
    dx = added(partial_max, at(merge_max, (..., None, slice(None))))
    return weight_error(p, difference(m, top), dx, top, ("partial_max", "merge_max"))


def merge_sum_error(p: Problem, partial_max: Error, merge_max: Error, partial_sum: Error) -> tuple[Error, np.ndarray]:
    """merge_sum = sum_s exp(partial_max - merge_max) partial_sum, which makes its own weights; and its size."""
    xp = array_namespace(p.q)
    weight_of, _ = merge_weight_error(p, partial_max, merge_max)
    x = difference(p.seen["partial_max"], p.seen["merge_max"][..., None, :])
    weight, l = xp.exp(x), abs(p.seen["partial_sum"])
    error, total = _over_splits(p, weight, weight_of, l, partial_sum, axis=-2)
    return error, xp.maximum(total, NEGLIGIBLE)


def numerator_error(p: Problem, merge_weight: Error, partial_O: Error) -> Error:
    """sum_s merge_weight partial_O, the merged numerator of out."""
    w, o = p.seen["merge_weight"][..., None], abs(p.seen["partial_O"])
    e_w = at(merge_weight, (..., None))
    return _over_splits(p, abs(w), e_w, o, partial_O, axis=-3)[0]


def _over_splits(
    p: Problem, weight: np.ndarray, e_w: Error, x: np.ndarray, e_x: Error, axis: int
) -> tuple[Error, np.ndarray]:
    """Error of the sum over splits of weight * x, of which both are magnitudes, and what they add up to."""
    xp, n = array_namespace(x), p.splits + 1
    total = xp.sum(weight * x, axis=axis)
    incoming = xp.sum(e_w.worst * (x + e_x.worst) + weight * e_x.worst, axis=axis)
    squares = (e_w.random * x) ** 2 + (weight * e_x.random) ** 2
    random = xp.sqrt(xp.sum(squares, axis=axis) + n * (p.losses.sums * total) ** 2)
    common = xp.sum(e_w.common * x + weight * e_x.common, axis=axis) + n * p.losses.floor
    return Error(sum_bound(p, total, incoming, p.losses.sum(n), n), random, common), total


def out_budget(p: Problem, numerator: Error, row_sum: np.ndarray, denominator: Error) -> Budget:
    """out = numerator / row_sum, cast: (error of the numerator + |out| error of row_sum) / (row_sum - its error),
    division and cast rounded. A row without keys is 0 exactly.
    """
    xp, losses, value = array_namespace(p.q), p.losses, p.computed["out"]
    l = row_sum[..., None]
    e_l = at(denominator, (..., None))
    rest = xp.maximum(abs(l) - e_l.worst, 0.0)
    own = losses.division * abs(value)
    if (by_lse := normaliser(p)) is not None:
        own = own + by_lse.weight[..., None] * _reach(p) / l + by_lse.largest * _largest_v(p, value)
    quotient = (numerator.worst + abs(value) * e_l.worst) / rest
    floor = xp.where((value != 0) | (quotient > 0), losses.floor, 0.0)
    worst = quotient * (1 + losses.division) + own + floor
    random = root_of_squares(numerator.random, value * e_l.random) / rest
    common = (numerator.common + abs(value) * e_l.common) / rest + own + floor
    no_keys = l == 0
    error = Error(*(xp.where(no_keys, 0.0, part) for part in (worst, random + 0.0 * own, common)))
    return stored_out(p, error)


def stored_out(p: Problem, error: Error) -> Budget:
    """The budget of out after its cast."""
    value, dtype = p.computed["out"], p.losses.out_dtype
    bounds: list[Any] = [error.worst, *([statistical(error, p.elements["out"])] if p.statistics else [])]
    if dtype != "float32":
        bounds = [cast_bound(value, bound, dtype, p.contract.out_rounding) for bound in bounds]
    return Budget(bounds[0], bounds[-1], array_namespace(p.v).broadcast_to(_largest_v(p, value), value.shape))


def _largest_v(p: Problem, out: np.ndarray) -> np.ndarray:
    """The largest |value| of each dim, [b, h, 1, d]: no mean of values is larger."""
    return by_query_head(array_namespace(p.v).max(abs(p.v), axis=-2, keepdims=True), out.shape[1])


def _reach(p: Problem) -> np.ndarray:
    """What the magnitudes of the results that are merged into the numerator of out add up to, [b, h, q, d]."""
    if p.algorithm != "split_k":
        return abs(p.seen["acc"][..., p.tiling.last, :])
    return array_namespace(p.q).sum(abs(p.seen["merge_weight"][..., None] * p.seen["partial_O"]), axis=-3)


def lse_budget(p: Problem, maximum: np.ndarray, e_max: Error, row_sum: np.ndarray, e_sum: Error) -> Budget:
    """lse = max + log(row_sum): the errors of both (log to -log1p(-e / row_sum)), log's own, the sum rounded; in base 2
    the product with log(2) and that constant.
    """
    xp, value = array_namespace(p.q), p.computed["lse"]
    own = lse_own(p, maximum, row_sum)
    if (by_lse := normaliser(p)) is not None:
        own = own + by_lse.lse

    def of_sum(bound: np.ndarray | float) -> np.ndarray:
        return -xp.log1p(-xp.minimum(bound / row_sum, 1.0))

    elements = p.elements["lse"]
    no_keys = value == -np.inf
    bounds = [
        xp.where(no_keys, 0.0, m + of_sum(l) + own)
        for m, l in ((e_max.worst, e_sum.worst), (statistical(e_max, elements), statistical(e_sum, elements)))
    ]
    return Budget(bounds[0], xp.minimum(*bounds), np.inf)


def lse_own(p: Problem, maximum: np.ndarray, row_sum: np.ndarray) -> np.ndarray:
    """What lse loses itself: log, and 2u |lse| for the sum; 2u |max| for the change of base, or
    for the scale and its product with the maximum, where there may be one.
    """
    losses, xp = p.losses, array_namespace(row_sum)
    log = abs(xp.log(row_sum))
    own = 2 * U * losses.log_ulps * log + 2 * losses.sums * abs(p.computed["lse"])
    own = own + losses.log_absolute + losses.floor
    told = p.declared("base2") and p.declared("scores_scaled")
    if p.contract.base2 or not p.contract.scores_scaled or not told:
        own = own + 2 * losses.products * abs(maximum)
    return own


def last_tile(p: Problem, error: Error, trailing: int) -> Error:
    """The error of a running state after the tile that a row visits last; `trailing` axes come after the tile's."""
    return at(error, (..., p.tiling.last, *[slice(None)] * trailing))
