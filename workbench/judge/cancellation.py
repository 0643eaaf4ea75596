"""How many bits the sums of a trace lose to cancellation: a property of what was summed, neither a bug nor rounding.

kappa = sum|t| / |sum t| is the condition number of a sum: rounding that changes each term t by a relative u may change
the sum by a relative kappa u, whatever the order (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section
4.2). Of the bits of the dtype that accumulates, log2(kappa) then mean nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from workbench.expectation.expectation import Expectation
from workbench.expectation.observed import Observed
from workbench.floats import unit_roundoff
from workbench.reference.steps.sums import RunningSum
from workbench.reference.walk import magnitudes, values

#: bits of float32, in which every kernel accumulates: no contract promises more or less
PRECISION = -np.log2(unit_roundoff("float32"))
#: a sum with fewer good bits than these is called ill-conditioned
GOOD_BITS = 4


def room(run: Observed) -> dict[str, np.ndarray]:
    """An array of its shape for each dumped stage that is a sum, not yet filled: log2(kappa) of every element.

    The terms are those of the stage's definition, from what the stage read: dumped stages where there are any, else the
    reference's. The last step of a flash out is a quotient and sums nothing: the terms of any out are the row's weights
    times v, one for each key, the weights rebased by the corrections and merge weights that the kernel used.

    0 where all terms are 0 (a row without keys), inf where only their sum is, NaN where a term is NaN or infinite. The
    sums are float64's own, so that beyond some 50 bits the figure says no more than that.
    """
    return {name: np.empty(stage.shape) for name, stage in run.readable.items() if run.known[name].sums}


@np.errstate(all="ignore")
def fill(found: Mapping[str, np.ndarray], isolated: Expectation, propagated: Expectation) -> None:
    """Put a part's bits into the arrays of `room`; from the part's expectation given the dumped stages, and from that
    given q, k and v alone.
    """
    quotients = [name for name in found if isolated.run.known[name].result]
    sums = [name for name in found if name not in quotients]
    total, size = dict(isolated.computed), magnitudes(isolated.problem, isolated.computed, sums)
    for name in quotients:
        total[name], size[name] = (_divided(isolated, propagated, name, f) for f in (lambda x: x, np.abs))
    for name, whole in found.items():
        isolated.part.of(whole, isolated.run.axes(name))[...] = _bits(total[name], size[name])


def _divided(
    isolated: Expectation, propagated: Expectation, name: str, f: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """What the quotient `name` divides, added up from the row's first key on, of the values that the kernel used, each
    changed by `f`: not from a dumped acc, whose terms are gone.
    """
    p, seen = isolated.problem, {**isolated.computed, **isolated.given}
    quotient: Any = p.table[name].step
    state = next(step for stage in p.table.values() if isinstance(step := stage.step, RunningSum) and step.values)
    given = {name: seen[name] for name in (state.rescale, state.weights)}
    if p.merges:
        merge: Any = p.table[quotient.of].step
        # where it is not declared which keys a split holds, the dumped weights fit no sum over keys
        given[merge.weight] = (seen if isolated.run.split_keys_known else propagated.computed)[merge.weight]
    changed = replace(
        p,
        contract=replace(p.contract, partials_dtype="float32"),  # what is stored rounds what is added up here
        inputs={**p.inputs, "v": f(p.inputs["v"])},
        given={name: f(x) for name, x in given.items()},
    )
    made = values(changed, [quotient.of])[quotient.of]
    return made if p.merges else made[..., p.tiling.last, :]


def ill_conditioned(bits: np.ndarray) -> np.ndarray:
    """Which elements have fewer than GOOD_BITS good bits in float32, bool; none whose bits are NaN."""
    return PRECISION - bits < GOOD_BITS


def _bits(total: np.ndarray, size: np.ndarray) -> np.ndarray:
    """log2(size / |total|), at least 0: float64's own rounding may take it a little below."""
    bits = np.maximum(np.log2(size) - np.log2(np.abs(total)), 0.0)
    return np.where(size == 0, 0.0, np.where(np.isfinite(size), bits, np.nan))
