"""A kernel's stages in plain float32, every operation rounded to nearest: what errors are held against where a bound is
too wide to tell.

What structured data do to rounding errors (terms that are nearly equal share one, a large sum absorbs small terms) they
do to the control's as well.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from workbench.case import masks as mask
from workbench.case.case import Case
from workbench.case.contract import Contract
from workbench.case.stages import INPUTS
from workbench.case.tiling import Tiling
from workbench.floats import round_to, ulp
from workbench.judge.codes.loss import attention_of
from workbench.judge.compare import compared
from workbench.judge.elements import Found
from workbench.judge.expectation import Expectation, Part, readable, tiling_of
from workbench.reference import online
from workbench.reference.budget import Losses, losses_of, without
from workbench.reference.budget.losses import U
from workbench.reference.split_k import last_states
from workbench.trace.trace import Trace

Arrays = Mapping[str, np.ndarray]

#: rows that are looked at, evenly spread over the queries: what a mean over rows tells grows with the root of their
#: number, and what the control costs grows with it
ROWS = 256


@dataclass(frozen=True)
class Manner:
    """How a control computes what the contract leaves open."""

    tensor_core: bool = False  #: whether products meet in aligned, truncated blocks instead of one after the other
    #: whether exp, log and division lose all that they may, always to the same side, instead of half an ulp; and casts
    #: that may truncate do
    leans: bool = False


PLAIN = Manner()


def has_control(contract: Contract) -> bool:
    """Whether a control has the arithmetic of the contract: float32 sums of operands as they are."""
    narrow = (contract.accumulator_dtype, contract.scaled_q_dtype, contract.input_precision)
    return narrow == ("float32", "float32", "ieee")


def sampled(case: Case, rows: int = ROWS) -> np.ndarray:
    """Indices of the queries that are looked at: so many rows over all batches and heads, or one query of each head."""
    n = min(case.seqlen_q, max(1, rows // (case.batch * case.heads)))
    return np.linspace(0, case.seqlen_q - 1, n).round().astype(int)


def at_rows(trace: Trace, names: Collection[str], rows: np.ndarray) -> Iterator[tuple[str, Found]]:
    """As `compare.compared`, those of `names` that are stages of attention (`loss.attention_of`), at the queries
    `rows` of every head alone, within their worst case.
    """
    trace = attention_of(trace)
    e = Expectation(trace, readable(trace), Part(q=rows), statistics=False)
    yield from compared(e, [name for name in names if name in trace.stages])


@np.errstate(all="ignore")
def control(trace: Trace, given: Arrays, rows: np.ndarray, manner: Manner = PLAIN) -> dict[str, np.ndarray]:
    """Every stage at the queries `rows` alone, in float32 with every operation rounded to nearest, cast where the
    contract says so; other `manner`s lose more.

    Each is computed from the stages `given` (float32, in natural units, at `rows`) where there are any, else from what
    was computed of q, k and v. A sum starts at the rescaled previous state and adds one term after the other, in the
    order of dims, keys or splits: of all orders this one absorbs the most.
    """
    contract, case = trace.contract, trace.case
    q, k, v = (trace.inputs[name].astype(np.float32) for name in INPUTS)
    q, (k, v) = q[:, :, rows], (np.repeat(x, case.heads // case.kv_heads, axis=1) for x in (k, v))
    seen = dict(given)
    computed: dict[str, np.ndarray] = {}

    def keep(name: str, value: np.ndarray, dtype: str = "float32", rounding: str = "nearest") -> None:
        cut = rounding == "toward-zero" or (rounding == "any" and manner.leans)
        cast = partial(round_to, dtype=dtype, toward_zero=cut, saturates=contract.saturates)
        computed[name] = value if dtype == "float32" else cast(value).astype(np.float32)
        seen.setdefault(name, computed[name])

    meet = partial(_aligned_products, contract=contract) if manner.tensor_core else _products
    losses = losses_of(contract) if manner.leans else without(losses_of(contract))

    def divided(quotient: np.ndarray) -> np.ndarray:
        """What a division gives, or exp(score - lse) in place of it, which is off by what lse is."""
        by_lse = manner.leans and contract.normalisation != "division"
        lse = np.where(np.isfinite(seen["lse"]), abs(seen["lse"]), 0.0)[..., None]
        return (quotient * (1 + losses.division + U * by_lse * lse)).astype(np.float32)

    keep("qk", meet(None, q, k.swapaxes(-1, -2)), contract.scores_dtype)
    added = mask.bias(case, trace.inputs)
    shifted = 0 if added is None else added[..., rows, :].astype(np.float32)
    scaled = seen["qk"] * np.float32(case.scale) + shifted
    visible = mask.visible(case, trace.inputs, rows)
    keep("scores", np.where(visible, scaled, np.float32(-np.inf)), contract.scores_dtype)
    tiles = tiling_of(trace)
    _softmax(seen, keep, tiles, losses)
    keep("probs_cast", seen["probs"], contract.probs_dtype, contract.probs_rounding)
    summed = seen["probs_cast" if contract.row_sum_of_cast else "probs"]
    state = given["row_sum"][..., None] if "row_sum" in given else None
    ones = np.ones_like(v[..., :1])
    keep("row_sum", _running(seen["correction"], summed, ones, state, tiles, _products)[..., 0])
    keep("acc", _running(seen["correction"], seen["probs_cast"], v, given.get("acc"), tiles, meet))
    if trace.algorithm == "flash":
        keep("lse", _lse(seen["row_max"][..., tiles.last], seen["row_sum"][..., tiles.last], losses))
        quotient = online.out(seen["acc"][..., tiles.last, :], seen["row_sum"][..., tiles.last])
        keep("out", divided(quotient), contract.out_dtype, contract.out_rounding)
        return computed
    for name, running, initial in (("partial_max", "row_max", -np.inf), ("partial_sum", "row_sum", 0.0)):
        keep(name, last_states(seen[running], tiles.splits, initial))
    keep("partial_O", last_states(seen["acc"], tiles.splits, 0.0), contract.partials_dtype, contract.partials_rounding)
    keep("merge_max", seen["partial_max"].max(axis=-2))
    top = seen["merge_max"][..., None, :]
    weight = _leaning(online.correction(seen["partial_max"], top), seen["partial_max"] - top, top, losses)
    keep("merge_weight", weight)
    keep("merge_sum", _over_splits(weight, seen["partial_sum"]))
    total = _over_splits(seen["merge_weight"][..., None], seen["partial_O"])
    keep("lse", _lse(seen["merge_max"], seen["merge_sum"], losses))
    keep("out", divided(online.out(total, seen["merge_sum"])), contract.out_dtype, contract.out_rounding)
    return computed


def _softmax(seen: dict[str, np.ndarray], keep: Any, tiles: Tiling, losses: Losses) -> None:
    """row_max, correction and probs, each tile from the maximum of the one before it where that was given."""
    scores = seen["scores"]
    row_max = np.empty((*scores.shape[:-1], len(tiles.keys)), np.float32)
    correction = np.empty_like(row_max)
    probs = np.empty_like(scores)
    maxima = seen.get("row_max", row_max)
    for t, before in tiles.order:
        keys = tiles.keys[t]
        previous = np.full_like(row_max[..., 0], -np.inf) if before is None else maxima[..., before]
        row_max[..., t] = online.row_max(previous, scores[..., keys])
        top = maxima[..., t]
        correction[..., t] = _leaning(online.correction(previous, top), previous - top, top, losses)
        column = top[..., None]
        probs[..., keys] = _leaning(online.probs(scores[..., keys], top), scores[..., keys] - column, column, losses)
    for name, value in (("row_max", row_max), ("correction", correction), ("probs", probs)):
        keep(name, value)


def _leaning(weight: np.ndarray, x: np.ndarray, maximum: np.ndarray, losses: Losses) -> np.ndarray:
    """weight = exp(x) larger by all that exp and its argument may lose; 1 and 0 are exact."""
    length = np.where(np.isfinite(x), abs(x), 0.0)
    of_max = losses.argument_of_max * np.where(np.isfinite(maximum), abs(maximum), 0.0)
    off = losses.argument * length + losses.exp(length) + of_max
    return np.where(x == 0, weight, weight * (1 + off)).astype(np.float32)


def _lse(maximum: np.ndarray, row_sum: np.ndarray, losses: Losses) -> np.ndarray:
    log = np.where(row_sum > 0, abs(np.log(row_sum)), 0.0)
    return (online.lse(maximum, row_sum) + 2 * U * losses.log_ulps * log + losses.log_absolute).astype(np.float32)


def _products(start: np.ndarray | None, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """start + a @ b over the last axis of a, one product after the other; a [b, h, q, n], b [b, h, n, m]."""
    total = np.zeros((*a.shape[:-1], b.shape[-1]), np.float32) if start is None else start
    product = np.empty_like(total)
    for i, row in enumerate(np.moveaxis(b, -2, 0)):
        np.multiply(a[..., i, None], row[:, :, None, :], out=product)
        total = total + product if i == 0 else np.add(total, product, out=total)
    return total


def _aligned_products(start: np.ndarray | None, a: np.ndarray, b: np.ndarray, contract: Contract) -> np.ndarray:
    """As `_products`, as tensor cores add: a block of products and the accumulator aligned to the largest of them, what
    lies below float32's last bit and `mma_extra_bits` more cut off, and so is the sum (Fasi et al. 2021, PeerJ CS-330,
    section 4).
    """
    total = np.zeros((*a.shape[:-1], b.shape[-1])) if start is None else start.astype(np.float64)
    a, b = a.astype(np.float64), b.astype(np.float64)
    for first in range(0, a.shape[-1], contract.mma_block):
        block = slice(first, first + contract.mma_block)
        terms = a[..., block, None] * b[:, :, None, block, :]
        largest = np.maximum(abs(total), abs(terms).max(axis=-2))
        quantum = ulp(largest, "float32") * 2.0**-contract.mma_extra_bits
        whole = np.trunc(terms / quantum[..., None, :]).sum(axis=-2) + np.trunc(total / quantum)
        total = round_to(whole * quantum, "float32", toward_zero=True)
    return total.astype(np.float32)


def _running(
    correction: np.ndarray,
    weights: np.ndarray,
    values: np.ndarray,
    state: np.ndarray | None,
    tiles: Tiling,
    meet: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray],
) -> np.ndarray:
    """correction * previous state + sum of weights * values over a tile's keys, [b, h, q, t, d].

    correction [b, h, q, t], weights [b, h, q, k], values [b, h, k, d]; the `state` [b, h, q, t, d] where it was dumped,
    else what comes out here; 0 before the first tile of a split.
    """
    found = np.empty((*correction.shape, values.shape[-1]), np.float32)
    for t, before in tiles.order:
        keys, states = tiles.keys[t], found if state is None else state
        previous = np.zeros_like(found[..., t, :]) if before is None else states[..., before, :]
        found[..., t, :] = meet(correction[..., t, None] * previous, weights[..., keys], values[:, :, keys])
    return found


def _over_splits(weight: np.ndarray, x: np.ndarray) -> np.ndarray:
    """sum_s weight x over axis 2, one split after the other."""
    total = np.zeros_like(x[:, :, 0])
    for s in range(x.shape[2]):
        total = total + weight[:, :, s] * x[:, :, s]
    return total
