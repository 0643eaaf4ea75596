"""The largest rounding error that a correct kernel can make, for every element of every stage.

One walk serves all uses. A stage is judged from the values that it read (the kernel's own where they were dumped, the
reference's elsewhere) and from bounds on their errors (0 where they were dumped). With every stage dumped the bounds
are those of each stage alone (isolated); with none they run from q, k, v to the end (propagated); in between they
compose over the stages that nobody saw.

Notation of Higham, Accuracy and Stability of Numerical Algorithms (2002), chapters 2 to 4: u = 2^-24 is float32's unit
roundoff; g(n) = n u / (1 - n u) bounds the relative error of n rounded operations, sums in any order.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from workbench.contract import Contract
from workbench.errors import round_to, smallest_subnormal, unit_roundoff
from workbench.reference.online import split_tiles, tiles
from workbench.reference.split_k import last_states

Arrays = Mapping[str, np.ndarray]

U = unit_roundoff("float32")
#: what one operation may lose to underflow: exp may flush a subnormal result to zero (ex2.approx.ftz)
FLOOR = 2.0**-126
#: ulps of an accurate float32 exp and log. CUDA's math.exp: 1.84 over 4 million values in [-40, 0]; libm: 0.51. One ulp
#: is at most 2u
EXP_ULPS = LOG_ULPS = 2.0
#: CUDA's __expf is off by 2 + 1.173 |x| ulp, its __logf by 2^-21.41 near 1 (CUDA programming guide, intrinsic
#: functions)
FAST_EXP_ULPS_PER_X = 1.173
FAST_LOG = 2.0**-21.41
#: a score or a sum below this is as good as zero, and a bound as large as it still means something
NEGLIGIBLE = 2.0**-100
#: smallest key tile assumed of a kernel that does not tell its own: every tile is one more rescaling, with one more exp
SMALLEST_BLOCK_K = 16


@dataclass(frozen=True)
class Budget:
    """Bounds of one stage; arrays of the stage's shape."""

    bound: np.ndarray  #: of |actual - expected|, float64; NaN where an input is NaN
    size: np.ndarray  #: what the bound is measured against: a bound as large says nothing


def gamma(n: int) -> float:
    """g(n) = n u / (1 - n u); inf from n u = 1 on."""
    return n * U / (1 - n * U) if n * U < 1 else np.inf


@np.errstate(all="ignore")
def budgets(
    algorithm: str,
    contract: Contract,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    scale: float,
    exact_products: bool,
    block_k: int,
    splits: int,
    computed: Arrays,
    given: Arrays,
) -> dict[str, Budget]:
    """Budget of every stage of `algorithm` ("flash" or "split_k"), name -> Budget.

    q [b, h, q, d], k and v [b, kv_heads, k, d] in float64; `exact_products`: products of q and k are exact in float32
    (16-bit inputs); `computed`: every stage as the reference computes it from `given`, the dumped stages; float64, -inf
    and NaN allowed.
    """
    seen = {**computed, **given}
    group = q.shape[1] // k.shape[1]
    size_qk = np.abs(q) @ np.repeat(np.abs(k), group, axis=1).swapaxes(-1, -2)
    abs_v = np.repeat(np.abs(v), group, axis=1)
    found: dict[str, Budget] = {}

    def error(name: str) -> np.ndarray:
        return np.zeros_like(seen[name]) if name in given else found[name].bound

    found["qk"] = _qk(contract, computed["qk"], size_qk, q.shape[-1], exact_products, scale)
    found["scores"] = _scores(contract, seen["qk"], error("qk"), computed["scores"], scale, size_qk)
    found |= _tile_stages(contract, computed, given, found["scores"].bound, abs_v, block_k, splits)
    out_size = np.broadcast_to(abs_v.max(axis=-2, keepdims=True), computed["out"].shape)
    if algorithm == "flash":
        acc, row_sum = seen["acc"][..., -1, :], seen["row_sum"][..., -1]
        e_acc, e_sum, e_max = error("acc")[..., -1, :], error("row_sum")[..., -1], error("row_max")[..., -1]
        found["out"] = _out(contract, computed["out"], np.zeros_like(acc), e_acc, row_sum, e_sum, out_size)
        found["lse"] = _lse(contract, computed["lse"], e_max, row_sum, e_sum)
        return found

    never = np.full_like(computed["partial_max"], np.inf)
    e_max, e_sum, e_acc = (last_states(error(name), splits, 0.0) for name in ("row_max", "row_sum", "acc"))
    found["partial_max"] = Budget(e_max, never)
    found["partial_sum"] = Budget(e_sum, never)
    bound = _stored(computed["partial_O"], e_acc, contract.partials_dtype)
    found["partial_O"] = Budget(bound, np.full_like(bound, np.inf))

    m, e_m = seen["partial_max"], error("partial_max")
    found["merge_max"] = Budget(
        _max_bound(computed["merge_max"], m, e_m, axis=-2), np.full_like(computed["merge_max"], np.inf)
    )
    x = _difference(m, seen["merge_max"][..., None, :])
    dx = e_m + error("merge_max")[..., None, :]
    found["merge_weight"] = _weight(x, dx, contract)

    # merge_sum makes its own weights
    weight, l, e_l = np.exp(x), seen["partial_sum"], error("partial_sum")
    total = np.abs(weight * l).sum(axis=-2)
    incoming = (_exp_bound(x, dx, contract) * (np.abs(l) + e_l) + weight * e_l).sum(axis=-2)
    found["merge_sum"] = Budget(_sum_bound(total, incoming, splits + 1), np.maximum(total, NEGLIGIBLE))

    # out: the weighted sum over splits, then as in flash
    w, e_w = seen["merge_weight"][..., None], error("merge_weight")[..., None]
    partial_o, e_o = seen["partial_O"], error("partial_O")
    total = np.abs(w * partial_o).sum(axis=-3)
    incoming = (e_w * (np.abs(partial_o) + e_o) + np.abs(w) * e_o).sum(axis=-3)
    rounding = _sum_bound(total, np.zeros_like(total), splits + 1)
    l, e_l = seen["merge_sum"], error("merge_sum")
    found["out"] = _out(contract, computed["out"], rounding, incoming * (1 + gamma(splits + 1)), l, e_l, out_size)
    found["lse"] = _lse(contract, computed["lse"], error("merge_max"), l, e_l)
    return found


def _qk(
    contract: Contract, value: np.ndarray, size: np.ndarray, head_dim: int, exact_products: bool, scale: float
) -> Budget:
    """g(n) sum|q k| for an inner product in any order: head_dim - 1 sums, and one product where it rounds (Higham,
    section 3.1).
    """
    bound = gamma(max(1, head_dim - 1 + (not exact_products))) * size + np.where(size > 0, head_dim * FLOOR, 0.0)
    negligible = np.divide(NEGLIGIBLE, np.abs(scale))  # what makes a negligible score; inf where the scale is 0
    return Budget(_stored(value, bound, contract.scores_dtype), np.maximum(size, negligible))


def _scores(
    contract: Contract, qk: np.ndarray, e_qk: np.ndarray, value: np.ndarray, scale: float, size_qk: np.ndarray
) -> Budget:
    """|scale| times the error of qk, one rounding of the scale and one of the product; the mask is exact."""
    scaled = np.abs(qk * scale)
    bound = np.abs(scale) * e_qk * (1 + 2 * U) + 2 * U * scaled + np.where((scaled > 0) | (e_qk > 0), FLOOR, 0.0)
    bound = _stored(qk * scale, bound, contract.scores_dtype)
    visible = ~np.isneginf(value)
    size = np.maximum(np.abs(scale) * size_qk + scaled, NEGLIGIBLE)
    return Budget(np.where(visible, bound, 0.0), np.where(visible, size, np.inf))


def _tile_stages(
    contract: Contract,
    computed: Arrays,
    given: Arrays,
    scores_bound: np.ndarray,
    abs_v: np.ndarray,
    block_k: int,
    splits: int,
) -> dict[str, Budget]:
    """row_max to acc, tile after tile; a tile's bounds feed the next tile's state unless that state was dumped."""
    seen = {**computed, **given}
    names = ("row_max", "correction", "probs", "probs_cast", "row_sum", "acc")
    bounds = {name: np.zeros_like(computed[name]) for name in names}
    sizes = {name: np.full_like(computed[name], np.inf) for name in names}
    first_tiles = {split.start for split in split_tiles(computed["row_max"].shape[-1], splits)}
    rescaling = _rescaling(contract, computed["scores"])

    def read(name: str, index: tuple) -> tuple[np.ndarray, np.ndarray]:
        """Values of a stage and the bounds of their errors."""
        value = seen[name][index]
        return value, np.zeros_like(value) if name in given else bounds[name][index]

    def previous(name: str, t: int, initial: float) -> tuple[np.ndarray, np.ndarray]:
        """The state that tile t starts from."""
        index = (..., t - 1, slice(None)) if name == "acc" else (..., t - 1)
        value, bound = read(name, index)
        return (np.full_like(value, initial), np.zeros_like(value)) if t in first_tiles else (value, bound)

    for t, keys in enumerate(tiles(computed["scores"].shape[-1], block_k)):
        now, columns, state, n = (..., t), (..., keys), (..., t, slice(None)), keys.stop - keys.start
        s = seen["scores"][columns]
        e_s = np.zeros_like(s) if "scores" in given else scores_bound[columns]

        m_prev, e_prev = previous("row_max", t, -np.inf)
        candidates = np.concatenate([m_prev[..., None], s], axis=-1)
        e_candidates = np.concatenate([e_prev[..., None], e_s], axis=-1)
        bounds["row_max"][now] = _max_bound(computed["row_max"][now], candidates, e_candidates, axis=-1)

        m, e_m = read("row_max", now)
        weight = _weight(_difference(m_prev, m), e_prev + e_m, contract)
        bounds["correction"][now], sizes["correction"][now] = weight.bound, weight.size
        weight = _weight(_difference(s, m[..., None]), e_s + e_m[..., None], contract)
        bounds["probs"][columns], sizes["probs"][columns] = weight.bound, weight.size
        bounds["probs_cast"][columns] = _probs_cast(contract, *read("probs", columns), "probs" in given)
        sizes["probs_cast"][columns] = weight.size

        # correction * previous + the sum over n keys: n + 1 operations, and the products with v round too
        (c, e_c), (p, e_p) = read("correction", now), read("probs_cast", columns)
        p_sum, e_p_sum = (p, e_p) if contract.row_sum_of_cast else read("probs", columns)
        l, e_l = previous("row_sum", t, 0.0)
        total = np.abs(c * l) + np.abs(p_sum).sum(axis=-1)
        incoming = e_c * (np.abs(l) + e_l) + np.abs(c) * e_l + e_p_sum.sum(axis=-1)
        bounds["row_sum"][now] = _sum_bound(total, incoming + rescaling * total, n + 1)
        sizes["row_sum"][now] = np.maximum(total, NEGLIGIBLE)

        a, e_a = previous("acc", t, 0.0)
        c, e_c = c[..., None], e_c[..., None]
        total = np.abs(c * a) + np.abs(p) @ abs_v[:, :, keys]
        incoming = e_c * (np.abs(a) + e_a) + np.abs(c) * e_a + e_p @ abs_v[:, :, keys]
        bounds["acc"][state] = _sum_bound(total, incoming + rescaling[..., None] * total, n + 2)
        sizes["acc"][state] = np.maximum(total, NEGLIGIBLE)
    return {name: Budget(bounds[name], sizes[name]) for name in names}


def _exp_ulps(x: np.ndarray, contract: Contract) -> np.ndarray | float:
    return EXP_ULPS + FAST_EXP_ULPS_PER_X * x if contract.fast_exp else EXP_ULPS


def _rescaling(contract: Contract, scores: np.ndarray) -> np.ndarray:
    """Relative error of the rescalings that a kernel of unknown tiles may add to a row, [..., q]; 0 where the tiles are
    known.

    At most one for each tile and one for each split, with arguments that add up to no more than the range of the row's
    scores.
    """
    if contract.block_k is not None:
        return np.zeros(scores.shape[:-1])
    events = 2 * -(-scores.shape[-1] // SMALLEST_BLOCK_K)
    hidden = np.isneginf(scores)
    largest, smallest = scores.max(axis=-1), np.where(hidden, np.inf, scores).min(axis=-1)
    extent = np.where(largest >= smallest, largest - smallest, 0.0)
    return np.expm1(2 * U * (events * EXP_ULPS + _exp_ulps(extent, contract)) + U * extent) + gamma(2 * events)


def _max_bound(value: np.ndarray, x: np.ndarray, dx: np.ndarray, axis: int) -> np.ndarray:
    """Bound of max(x) for x known to dx: max itself is exact, and monotone, so the ends of the intervals bound it."""
    upper, lower = (x + dx).max(axis=axis), (x - dx).max(axis=axis)
    return np.where(upper == lower, 0.0, np.maximum(upper - value, value - lower))


def _difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a - b as the argument of exp: -inf where a is, even if b is too."""
    return np.where(np.isneginf(a), -np.inf, a - b)


def _exp_bound(x: np.ndarray, dx: np.ndarray, contract: Contract) -> np.ndarray:
    """Bound of exp(x) for x = a - b known to dx: exp(x) expm1(dx + u|x| + eE), the subtraction rounded, eE = 2u ulps of
    exp.

    exp(0) = 1 and exp(-inf) = 0 are exact.
    """
    length = np.abs(np.where(np.isneginf(x), 0.0, x))
    bound = np.exp(x) * np.expm1(dx + U * length + 2 * U * _exp_ulps(length, contract)) + FLOOR
    return np.where(np.isneginf(x) | ((x == 0) & (dx == 0)), 0.0, bound)


def _weight(x: np.ndarray, dx: np.ndarray, contract: Contract) -> Budget:
    """Budget of exp(x) for x <= 0: a weight in [0, 1], so that a bound that reaches the farther end says nothing.

    Where the dumped inputs themselves give x > 0, the range is what exp gives.
    """
    value = np.exp(x)
    size = np.maximum(value, 1 - value)
    return Budget(np.minimum(_exp_bound(x, dx, contract), size), size)


def _probs_cast(contract: Contract, p: np.ndarray, e_p: np.ndarray, from_dumped: bool) -> np.ndarray:
    """The cast of probs: exact where dumped probs are rounded as declared, else one more rounding that may or may not
    happen.
    """
    declared = "probs_dtype" not in contract.assumed
    if contract.probs_dtype == "float32" or (declared and from_dumped):
        return e_p
    return e_p + np.where(
        p > 0, unit_roundoff(contract.probs_dtype) * (p + e_p) + smallest_subnormal(contract.probs_dtype) / 2, 0.0
    )


def _sum_bound(total: np.ndarray, incoming: np.ndarray, n: int) -> np.ndarray:
    """Bound of a sum of terms whose magnitudes add up to `total` and errors to `incoming`, after n operations: g(n)
    (total + incoming).

    A sum of zeros is exact.
    """
    return incoming + gamma(n) * (total + incoming) + np.where(total + incoming > 0, n * FLOOR, 0.0)


def _out(
    contract: Contract,
    value: np.ndarray,
    rounding: np.ndarray,
    incoming: np.ndarray,
    row_sum: np.ndarray,
    e_sum: np.ndarray,
    size: np.ndarray,
) -> Budget:
    """out = numerator / row_sum, cast: (error of the numerator + |out| error of row_sum) / (row_sum - its error),
    division and cast rounded.

    `value` is the quotient before the cast. A row without keys is 0 exactly.
    """
    l, e_l = row_sum[..., None], e_sum[..., None]
    quotient = (rounding + incoming + np.abs(value) * e_l) / np.maximum(np.abs(l) - e_l, 0.0)
    # 2u: the division, or a reciprocal and a product; for fast approximations (contract) 2 ulp more
    operations = 2 + 4 * contract.fast_exp
    bound = (
        quotient * (1 + operations * U)
        + operations * U * np.abs(value)
        + np.where((value != 0) | (quotient > 0), FLOOR, 0.0)
    )
    bound = np.where(l == 0, 0.0, bound)
    return Budget(bound if contract.out_dtype == "float32" else _cast(value, bound, contract.out_dtype), size)


def _lse(contract: Contract, value: np.ndarray, e_max: np.ndarray, row_sum: np.ndarray, e_sum: np.ndarray) -> Budget:
    """lse = max + log(row_sum): the errors of both (log to -log1p(-e / row_sum)), log's own, the sum rounded."""
    log = np.abs(np.log(row_sum))
    own = 2 * U * LOG_ULPS * log + (FAST_LOG if contract.fast_exp else 0.0)
    bound = e_max - np.log1p(-np.minimum(e_sum / row_sum, 1.0)) + own + 2 * U * np.abs(value) + FLOOR
    return Budget(np.where(np.isneginf(value), 0.0, bound), np.full_like(value, np.inf))


def _cast(value: np.ndarray, bound: np.ndarray, dtype: str) -> np.ndarray:
    """Bound after `value`, known to `bound`, is rounded to `dtype`: rounding is monotone, so the ends of the interval
    decide.
    """
    rounded = partial(round_to, dtype=dtype)
    return np.maximum(rounded(value + bound) - value, value - rounded(value - bound))


def _stored(value: np.ndarray, bound: np.ndarray, dtype: str) -> np.ndarray:
    """Bound of a value that may or may not be rounded to `dtype` on its way."""
    return bound if dtype == "float32" else np.maximum(bound, _cast(value, bound, dtype))
