"""How many bits the sums of a trace lose to cancellation: a property of what was summed, neither a bug nor rounding.

kappa = sum|t| / |sum t| is the condition number of a sum: rounding that changes each term t by a relative u may change
the sum by a relative kappa u, whatever the order (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section
4.2). Of the bits of the dtype that accumulates, log2(kappa) then mean nothing.
"""

from collections.abc import Collection, Mapping

import numpy as np

from workbench.case.stages import INPUTS
from workbench.floats import unit_roundoff
from workbench.judge.blocks import over_parts
from workbench.judge.codes.loss import attention_of
from workbench.judge.expectation import Expectation, Part, readable, split_keys_known, tiling_of
from workbench.reference import online, split_k
from workbench.trace.trace import Trace

#: bits of float32, in which every kernel accumulates: no contract promises more or less
PRECISION = -np.log2(unit_roundoff("float32"))
#: a sum with fewer good bits than these is called ill-conditioned
GOOD_BITS = 4


#: the stages that are sums
SUMS = ("qk", "row_sum", "acc", "merge_sum", "out")


def bits_lost(trace: Trace) -> dict[str, np.ndarray]:
    """log2(kappa) of every element of the dumped stages that are sums, stage -> float64 array of the stage's shape.

    The terms are those of the stage's definition, from what the stage read: dumped stages where there are any, else the
    reference's. The last step of a flash out is a quotient and sums nothing: the terms of any out are the row's weights
    times v, one for each key, the weights rebased by the corrections and merge weights that the kernel used.

    0 where all terms are 0 (a row without keys), inf where only their sum is, NaN where a term is NaN or infinite. The
    sums are float64's own, so that beyond some 50 bits the figure says no more than that.
    """
    trace = attention_of(trace)
    found = room(trace)
    dumped = readable(trace)

    def one(part: Part) -> None:
        fill(found, Expectation(trace, dumped, part), Expectation(trace, {}, part))

    if found:
        over_parts(trace, "cpu", one, f"bits that {trace.target} loses")
    return found


def room(trace: Trace) -> dict[str, np.ndarray]:
    """An array for each dumped stage that is a sum, of its shape and not yet filled, in the order of SUMS."""
    dumped = readable(trace)
    return {name: np.empty(dumped[name].shape) for name in dumped if name in SUMS}


@np.errstate(all="ignore")
def fill(found: Mapping[str, np.ndarray], isolated: Expectation, propagated: Expectation) -> None:
    """Put a part's bits into the arrays of `room`; from the part's expectation given the dumped stages, and from that
    given q, k and v alone.
    """
    trace = isolated.trace
    seen = isolated.computed | isolated.given
    terms = {name: seen[name] for name in ("correction", "probs_cast", "row_sum", "acc")}
    terms |= dict(zip(INPUTS, isolated.inputs, strict=True))
    terms["row_sum terms"] = seen["probs_cast" if trace.contract.row_sum_of_cast else "probs"]
    if trace.algorithm == "split_k":
        terms["merge_sum terms"] = split_k.merge_weight(seen["partial_max"], seen["merge_max"]) * seen["partial_sum"]
        # where nobody told which keys a split holds, the dumped weights fit no sum over keys
        terms["merge_weight"] = (seen if split_keys_known(trace) else propagated.computed)["merge_weight"]
    total = _sums(trace, terms, found)
    size = _sums(trace, {name: np.abs(values) for name, values in terms.items()}, found)
    for name, whole in found.items():
        isolated.part.of(whole, isolated.axes(name))[...] = _bits(total[name], size[name])


def ill_conditioned(bits: np.ndarray) -> np.ndarray:
    """Which elements have fewer than GOOD_BITS good bits in float32, bool; none whose bits are NaN."""
    return PRECISION - bits < GOOD_BITS


def _bits(total: np.ndarray, size: np.ndarray) -> np.ndarray:
    """log2(size / |total|), at least 0: float64's own rounding may take it a little below."""
    bits = np.maximum(np.log2(size) - np.log2(np.abs(total)), 0.0)
    return np.where(size == 0, 0.0, np.where(np.isfinite(size), bits, np.nan))


def _sums(trace: Trace, terms: Mapping[str, np.ndarray], wanted: Collection[str]) -> dict[str, np.ndarray]:
    """The `wanted` stages, which are sums, of the given values; of their magnitudes it makes sum|t|."""
    found: dict[str, np.ndarray] = {}
    if "qk" in wanted:
        found["qk"] = online.qk(terms["q"], terms["k"])
    if "merge_sum" in wanted:
        found["merge_sum"] = terms["merge_sum terms"].sum(axis=-2)
    if not {"row_sum", "acc", "out"} & {*wanted}:
        return found
    tiles = tiling_of(trace)
    row_sum, acc, carried = (np.empty_like(terms[name]) for name in ("row_sum", "acc", "acc"))
    nothing = np.zeros(row_sum.shape[:-1])
    for t, before in tiles.order:
        keys, correction = tiles.keys[t], terms["correction"][..., t]
        if "row_sum" in wanted:
            previous = 0.0 if before is None else terms["row_sum"][..., before]
            row_sum[..., t] = online.row_sum(correction, previous, terms["row_sum terms"][..., keys])
        products = online.acc(nothing, 0.0, terms["probs_cast"][..., keys], terms["v"][:, :, keys])
        acc[..., t, :] = correction[..., None] * (0.0 if before is None else terms["acc"][..., before, :]) + products
        # as acc, but from the row's first key on: not from the dumped previous acc, whose terms are gone
        carried[..., t, :] = correction[..., None] * (0.0 if before is None else carried[..., before, :]) + products
    found |= {"row_sum": row_sum, "acc": acc}
    if trace.algorithm == "flash":
        return found | {"out": carried[..., tiles.last, :]}
    partial = split_k.last_states(carried, tiles.splits, 0.0)
    return found | {"out": (terms["merge_weight"][..., None] * partial).sum(axis=-3)}
