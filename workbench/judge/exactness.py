"""Inputs on which a right kernel rounds nothing (`distributions.EXACT`): there any difference in out or lse is a bug,
whatever the budgets allow and whatever the contract says of sums, casts and exp.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from workbench.case.distributions import EXACT
from workbench.case.formats import FLOAT8
from workbench.case.stages import before_attention
from workbench.floats import round_to, to_float64
from workbench.judge.elements import State
from workbench.judge.stage import ORIGIN_VERDICTS, StageDiff
from workbench.trace.trace import Trace

#: stages that may be rounded in what exp makes 0, as where q was scaled before the product
_BEFORE_EXP = ("qk", "capped", "scores")


def exact_stages(trace: Trace) -> tuple[str, ...]:
    """Of out and lse those that a right kernel gives without any rounding; none where codes round the inputs, where exp
    has a floor above 0, and where another number than the maximum is subtracted.

    Powers of two are exact in float8: of max|x| each is 448 or 57344 over a power of two, of 3 bits. The scale is
    rounded, and 16-bit operands round that away.

    Of exact-ties log(2) is rounded: lse is, and out where weights are exp(score - lse).
    """
    promise = trace.contract
    if trace.case.distribution not in EXACT:
        return ()
    if before_attention(trace.algorithm) and (trace.case.codes not in FLOAT8 or promise.operands_dtype == "float32"):
        return ()
    if promise.exp_floor is not None or promise.row_max != "running" or trace.inputs.keys() - {"q", "k", "v"}:
        return ()
    if trace.case.distribution == "exact":
        return ("out", "lse")
    return ("out",) if promise.normalisation == "division" else ()


def with_exactness(trace: Trace, judged: Sequence[StageDiff]) -> list[StageDiff]:
    """The stages; where out or lse is not exact, and nothing else is wrong, the first one that is to blame as a bug; an
    exact one that no budget says anything of is exact.
    """
    expected = exact_stages(trace)
    if not expected or any(stage.verdict in ORIGIN_VERDICTS for stage in judged):
        return list(judged)
    seen = {stage.name: _off(stage) for stage in judged if stage.name in expected}
    off = {name: found for name, found in seen.items() if found[0]}
    if not off:
        return [replace(x, verdict="exact", reason="") if seen.get(x.name, (0, 0))[1] else x for x in judged]
    own = [stage.name for stage in judged if stage.isolated is not None and not stage.isolated.exact]
    later = [name for name in own if name not in _BEFORE_EXP]
    blamed = next(iter((*later, *own[::-1], *off)))
    name, (count, of) = next(iter(off.items()))
    why = (
        f"{count} of {of} elements of {name} are not exact, and inputs of distribution {trace.case.distribution} leave "
        "a right kernel nothing to round"
    )
    return [replace(stage, verdict="bug", reason=why) if stage.name == blamed else stage for stage in judged]


def _off(stage: StageDiff) -> tuple[int, int]:
    """How many elements are not the rounding of what they should be from q, k and v, and how many there are."""
    found = stage.propagated or stage.isolated
    if found is None:
        return 0, 0
    actual, right = to_float64(found.actual), round_to(found.expected, found.actual.dtype)
    # by value: a sum of zeros may have either sign
    same = (actual == right) | (np.isnan(actual) & np.isnan(right)) | (found.state == State.ABSENT)
    return int(np.count_nonzero(~same)), same.size
