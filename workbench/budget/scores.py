"""Budgets of qk and scores."""

import numpy as np
from array_api_compat import array_namespace

from workbench.budget.error import Error, root_of_squares
from workbench.budget.losses import cast_bound
from workbench.budget.problem import NEGLIGIBLE, Problem
from workbench.reference.online import by_query_head


def magnitudes(p: Problem) -> np.ndarray:
    """sum_d |q k|, [b, h, q, k]."""
    return abs(p.q) @ by_query_head(abs(p.k), p.q.shape[1]).swapaxes(-1, -2)


def qk_error(p: Problem, size: np.ndarray) -> Error:
    """qk: an inner product in any order, `size` = sum|q k|; head_dim - 1 sums, and one product where it rounds.

    Worst: g(n) sum|t| (Higham 2002, section 3.1). Random: the square of a prefix of i terms in unknown order is on
    average i sum t^2 / n (1 - i/n) + (i/n)^2 S^2, which over all i is n (sum t^2 / 2 + S^2 / 3) at most.

    Inputs q + e, k + f that nobody saw move it by sum |e| |k| + |q| |f| + |e| |f|, and what is lost with it.
    """
    xp, losses = array_namespace(size), p.losses
    head_dim, inexact = p.q.shape[-1], not p.exact_products
    floor = xp.where(size > 0, head_dim * losses.floor, 0.0)
    added = losses.sum_of_products(head_dim, max(1, head_dim - 1), losses.qk_accumulation)
    worst = (added + losses.products * inexact * (1 + added)) * size + floor
    moved: np.ndarray | float = 0.0
    if "q" in p.input_errors or "k" in p.input_errors:
        e, f = p.input_error("q"), by_query_head(p.input_error("k"), p.q.shape[1])
        moved = (e @ (by_query_head(abs(p.k), p.q.shape[1]) + f).swapaxes(-1, -2) + abs(p.q) @ f.swapaxes(-1, -2)) * (
            1 + 2 * (added + losses.products)
        )
    if not p.statistics:
        random, common = 0.0, 0.0
    elif losses.qk_accumulation == "nearest":
        squares = (p.q * p.q) @ by_query_head(p.k * p.k, p.q.shape[1]).swapaxes(-1, -2)
        total = p.computed["qk"]
        sums = head_dim * (squares / 2 + total * total / 3) * losses.sums**2
        random, common = xp.sqrt(sums + losses.products**2 * inexact * squares), floor
    else:
        random, common = 0.0, worst
    return stored(p, Error(worst + moved, random, common + moved), p.computed["qk"])


def qk_size(p: Problem, size: np.ndarray) -> np.ndarray:
    """What the budget of qk is measured against; a score that the scale makes negligible may be anything."""
    with np.errstate(all="ignore"):
        negligible = float(np.divide(NEGLIGIBLE, np.abs(p.scale)))  # inf where the scale is 0
    return array_namespace(size).maximum(size, negligible)


def scores_error(p: Problem, qk: Error) -> Error:
    """scores: |scale| times the error of qk, one rounding of the scale and one of the product (in base 2 one more, of
    scale * log2(e)), none in raw scores, which hold no scale; with a bias one of the sum (in base 2 two more, of
    bias * log2(e), in raw scores of bias / scale); the mask is exact.
    """
    losses, scale = p.losses, p.scale
    xp = array_namespace(p.computed["scores"])
    product = p.seen["qk"] * scale
    roundings = 0 if not p.contract.scores_scaled else 3 if p.contract.base2 else 2
    own = roundings * losses.products * abs(product)
    if p.bias is not None:
        own = own * (1 + losses.sums) + losses.sums * abs(product + p.bias)
        # log2(e) and the product, the scale and the quotient
        converted = p.contract.base2 or not p.contract.scores_scaled
        own = own + (2 * losses.products if converted else 0.0) * abs(p.bias)
        product = product + p.bias
    own = own + xp.where(((product != 0) & (roundings > 0)) | (own > 0), losses.floor, 0.0)
    factor = abs(scale) * (1 + 3 * losses.products)
    random = root_of_squares(factor * qk.random, own) if p.statistics else 0.0
    error = Error(factor * qk.worst + own, random, factor * qk.common)
    visible = p.computed["scores"] != -np.inf
    error = stored(p, error, product)
    return Error(*(part if isinstance(part, float) else xp.where(visible, part, 0.0) for part in error))


def scores_size(p: Problem, size_qk: np.ndarray) -> np.ndarray:
    """What the budget of scores is measured against."""
    xp, scale = array_namespace(size_qk), abs(p.scale)
    size = xp.maximum(scale * (size_qk + abs(p.seen["qk"])) + (0.0 if p.bias is None else abs(p.bias)), NEGLIGIBLE)
    return xp.where(p.computed["scores"] != -np.inf, size, np.inf)


def stored(p: Problem, error: Error, value: np.ndarray) -> Error:
    """The error of a value that may or may not be rounded to the dtype of scores on its way."""
    dtype = p.losses.scores_dtype
    if dtype == "float32":
        return error
    xp = array_namespace(value)
    rounding = "any" if "scores_dtype" in p.contract.assumed else "nearest"
    own = cast_bound(value, error.worst, dtype, rounding)
    worst = xp.maximum(error.worst, own)
    common = error.common + (worst - error.worst) if p.statistics else 0.0
    return Error(worst, error.random, common)
