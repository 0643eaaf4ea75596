"""How many bits the sums of a trace lose to cancellation: a property of what was summed, neither a bug nor rounding.

kappa = sum|t| / |sum t| is the condition number of a sum: rounding that changes each term t by a relative u may change
the sum by a relative kappa u, whatever the order (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section
4.2). Of the bits of the dtype that accumulates, log2(kappa) then mean nothing.
"""

from collections.abc import Mapping

import numpy as np

from workbench.errors import unit_roundoff
from workbench.expectation import Expectation, readable, split_keys_known, tiling_of
from workbench.parts import parts_of
from workbench.quantisation import attention_of
from workbench.reference import online, split_k
from workbench.stages import INPUTS
from workbench.trace import Trace

#: bits of float32, in which every kernel accumulates: no contract promises more or less
PRECISION = -np.log2(unit_roundoff("float32"))
#: a sum with fewer good bits than these is called ill-conditioned
GOOD_BITS = 4


@np.errstate(all="ignore")
def bits_lost(trace: Trace) -> dict[str, np.ndarray]:
    """log2(kappa) of every element of the dumped stages that are sums, stage -> float64 array of the stage's shape.

    The terms are those of the stage's definition, from what the stage read: dumped stages where there are any, else the
    reference's. The last step of a flash out is a quotient and sums nothing: the terms of any out are the row's weights
    times v, one for each key, the weights rebased by the corrections and merge weights that the kernel used.

    0 where all terms are 0 (a row without keys), inf where only their sum is, NaN where a term is NaN or infinite. The
    sums are float64's own, so that beyond some 50 bits the figure says no more than that.
    """
    trace = attention_of(trace)
    found: dict[str, np.ndarray] = {}
    dumped = readable(trace)
    for part in parts_of(trace, "cpu") if dumped else ():
        expectation = Expectation(trace, dumped, part)
        for name, bits in _of_part(expectation).items():
            whole = found.setdefault(name, np.empty(trace.stages[name].shape))
            part.of(whole, expectation.axes(name))[...] = bits
    return found


def _of_part(expectation: Expectation) -> dict[str, np.ndarray]:
    """As `bits_lost`, of a part of the trace."""
    trace, given = expectation.trace, expectation.given
    seen = expectation.computed | given
    terms = {name: seen[name] for name in ("correction", "probs_cast", "row_sum", "acc")}
    terms |= dict(zip(INPUTS, expectation.inputs, strict=True))
    terms["row_sum terms"] = seen["probs_cast" if trace.contract.row_sum_of_cast else "probs"]
    if trace.algorithm == "split_k":
        terms["merge_sum terms"] = split_k.merge_weight(seen["partial_max"], seen["merge_max"]) * seen["partial_sum"]
        # where nobody told which keys a split holds, the dumped weights fit no sum over keys
        alone = Expectation(trace, {}, expectation.part)
        terms["merge_weight"] = (seen if split_keys_known(trace) else alone.computed)["merge_weight"]
    total = _sums(trace, terms)
    size = _sums(trace, {name: np.abs(values) for name, values in terms.items()})
    return {name: _bits(total[name], size[name]) for name in given if name in total}


def ill_conditioned(bits: np.ndarray) -> np.ndarray:
    """Which elements have fewer than GOOD_BITS good bits in float32, bool; none whose bits are NaN."""
    return PRECISION - bits < GOOD_BITS


def _bits(total: np.ndarray, size: np.ndarray) -> np.ndarray:
    """log2(size / |total|), at least 0: float64's own rounding may take it a little below."""
    bits = np.maximum(np.log2(size) - np.log2(np.abs(total)), 0.0)
    return np.where(size == 0, 0.0, np.where(np.isfinite(size), bits, np.nan))


def _sums(trace: Trace, terms: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The stages that are sums, of the given values; of their magnitudes it makes sum|t|."""
    tiles = tiling_of(trace)
    row_sum, acc, carried = (np.empty_like(terms[name]) for name in ("row_sum", "acc", "acc"))
    nothing = np.zeros(row_sum.shape[:-1])
    for t, before in tiles.order:
        keys, correction = tiles.keys[t], terms["correction"][..., t]
        previous = 0.0 if before is None else terms["row_sum"][..., before]
        row_sum[..., t] = online.row_sum(correction, previous, terms["row_sum terms"][..., keys])
        products = online.acc(nothing, 0.0, terms["probs_cast"][..., keys], terms["v"][:, :, keys])
        acc[..., t, :] = correction[..., None] * (0.0 if before is None else terms["acc"][..., before, :]) + products
        # as acc, but from the row's first key on: not from the dumped previous acc, whose terms are gone
        carried[..., t, :] = correction[..., None] * (0.0 if before is None else carried[..., before, :]) + products
    found = {"qk": online.qk(terms["q"], terms["k"]), "row_sum": row_sum, "acc": acc}
    if trace.algorithm == "flash":
        return found | {"out": carried[..., tiles.last, :]}
    partial = split_k.last_states(carried, tiles.splits, 0.0)
    return found | {
        "merge_sum": terms["merge_sum terms"].sum(axis=-2),
        "out": (terms["merge_weight"][..., None] * partial).sum(axis=-3),
    }
