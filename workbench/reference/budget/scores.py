"""Budgets of qk and scores."""

from collections.abc import Callable

import numpy as np
from array_api_compat import array_namespace

from workbench.floats import smallest_subnormal, unit_roundoff
from workbench.reference.budget.error import Error, root_of_squares
from workbench.reference.budget.losses import cast_bound
from workbench.reference.budget.problem import NEGLIGIBLE, Problem
from workbench.reference.online import by_query_head


def magnitudes(p: Problem) -> np.ndarray:
    """sum_d |q k|, [b, h, q, k]."""
    return abs(p.q) @ by_query_head(abs(p.k), p.q.shape[1]).swapaxes(-1, -2)


def qk_error(p: Problem, size: np.ndarray) -> Error:
    """qk: an inner product in any order, `size` = sum|q k|; head_dim - 1 sums, and one product where it rounds.

    Worst: g(n) sum|t| (Higham 2002, section 3.1). Random: the square of a prefix of i terms in unknown order is on
    average i sum t^2 / n (1 - i/n) + (i/n)^2 S^2, which over all i is n (sum t^2 / 2 + S^2 / 3) at most.

    Operands of fewer bits and narrow accumulators lose what `Losses` says. Inputs q + e, k + f that nobody saw move it
    by sum |e| |k| + |q| |f| + |e| |f|, and what is lost with it.
    """
    xp, losses = array_namespace(size), p.losses
    head_dim, inexact = p.q.shape[-1], not p.exact_products
    floor = xp.where(size > 0, head_dim * losses.floor, 0.0)
    terms = losses.terms_of_product
    # a narrow accumulator rounds the first product as well
    additions = terms * head_dim - (not losses.narrow and terms == 1)
    added = losses.sum_of_products(terms * head_dim, max(1, additions), losses.qk_accumulation)
    of_operands = losses.operands(2) * inexact
    products = of_operands + (losses.product if inexact or losses.narrow else 0.0)
    floor = floor + xp.where(size > 0, 2 * terms * head_dim * losses.accumulator_floor, 0.0)
    worst = (added + products * (1 + added)) * size + floor
    moved: np.ndarray | float = 0.0
    if "q" in p.input_errors or "k" in p.input_errors:
        e, f = p.input_error("q"), by_query_head(p.input_error("k"), p.q.shape[1])
        moved = (e @ (by_query_head(abs(p.k), p.q.shape[1]) + f).swapaxes(-1, -2) + abs(p.q) @ f.swapaxes(-1, -2)) * (
            1 + 2 * (added + products)
        )
    if not p.statistics:
        random, common = 0.0, 0.0
    elif losses.qk_accumulation == "nearest":
        squares = (p.q * p.q) @ by_query_head(p.k * p.k, p.q.shape[1]).swapaxes(-1, -2)
        total = p.computed["qk"]
        sums = terms * head_dim * (squares / 2 + total * total / 3) * losses.accumulators**2
        # what an operand lost all its products lose
        random, common = xp.sqrt(sums + (products - of_operands) ** 2 * squares), floor + of_operands * size
    else:
        random, common = 0.0, worst
    return stored(p, Error(worst + moved, random, common + moved), p.computed["qk"])


def qk_size(p: Problem, size: np.ndarray) -> np.ndarray:
    """What the budget of qk is measured against; a score that the scale makes negligible may be anything."""
    with np.errstate(all="ignore"):
        negligible = float(np.divide(NEGLIGIBLE, np.abs(p.scale)))  # inf where the scale is 0
    return array_namespace(size).maximum(size, negligible)


def scores_error(p: Problem, qk: Error, size: Callable[[], np.ndarray]) -> Error:
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
    of_q: np.ndarray | float = 0.0
    if losses.scaled_q_dtype != "float32":
        of_q = _of_scaled_q(p, size())
    random = root_of_squares(factor * qk.random, own) if p.statistics else 0.0
    error = Error(factor * qk.worst + own + of_q, random, factor * qk.common + of_q)
    visible = p.computed["scores"] != -np.inf
    error = stored(p, error, product)
    return Error(*(part if isinstance(part, float) else xp.where(visible, part, 0.0) for part in error))


def _of_scaled_q(p: Problem, size: np.ndarray) -> np.ndarray:
    """What scores lose where q times scale is rounded to fewer bits before the product, and the scale too, as where all
    of an expression has the dtype of its tensor: scale [v sum|q k| + v |q k| + eta/2 sum|k|], v its unit roundoff, eta
    its smallest subnormal. All scores of a row lose it alike. `size` = sum|q k|.
    """
    v, eta = unit_roundoff(p.losses.scaled_q_dtype), smallest_subnormal(p.losses.scaled_q_dtype)
    xp = array_namespace(size)
    keys = xp.sum(by_query_head(abs(p.k), p.q.shape[1]), axis=-1)[..., None, :]
    relative = v * (1 + v) + p.losses.products
    found: np.ndarray = abs(p.scale) * (relative * size + v * abs(p.seen["qk"])) + eta / 2 * keys
    return xp.where(size > 0, found, 0.0)


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
