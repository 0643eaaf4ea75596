"""Inputs on which a right kernel rounds nothing (`distributions.EXACT`): there any difference in out is a bug, whatever
the budgets allow and whatever the contract says of sums and casts.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from workbench.case.distributions import EXACT
from workbench.case.formats import FLOAT8
from workbench.case.stages import INPUTS, OUT
from workbench.expectation.elements import Elements, State
from workbench.expectation.observed import Observed
from workbench.floats import round_to, to_float64
from workbench.judge.stage import ORIGIN_VERDICTS, StageDiff


def is_exact(run: Observed) -> bool:
    """Whether out of a right kernel is exact: the inputs are of EXACT, and codes lose nothing of them.

    With one key in a row, of `exact`, out is p v / p, where v is a power of two: exact whatever p is, and so whatever
    exp gives at 0, and whatever number is subtracted in place of the maximum (but one so large that p is 0, as of a
    kernel that declares it). lse is log(p), and PyTorch's exp on the
    CPU is 1 - 2^-14 at 0 in 16 bits. Of exact-ties several p v are added, which is exact where p is 1: held only of a
    kernel that says that its maximum is the maximum, how good its exp is, and that it divides.

    Powers of two are exact in float8: of max|x| each is 448 or 57344 over a power of two, of 3 bits. The scale is
    rounded, and 16-bit operands round that away.
    """
    promise, trace = run.contract, run.trace
    if trace.case.distribution not in EXACT or trace.inputs.keys() - {*INPUTS}:
        return False
    if run.before_attention and (trace.case.codes not in FLOAT8 or promise.operands_dtype == "float32"):
        return False
    if trace.case.distribution == "exact":
        return promise.row_max == "running" or "row_max" in promise.assumed
    declared = {"row_max", "exp_ulps", "normalisation"}.isdisjoint(promise.assumed)
    known = promise.exp_floor is None and promise.exp_polynomial is None
    return declared and known and promise.row_max == "running" and promise.normalisation == "division"


def inexact(run: Observed, found: Elements) -> np.ndarray:
    """Which elements of out are not the rounding of what they should be, by value; in rows with keys, where the
    contract does not say what others hold.

    Of differences those are none that are below 2^-60, which 2000 hidden keys leave where exp has a floor of e^-54; and
    those below 2^-20 of a kernel that may merge by lse, as rings do: out - weight * (out - block) rounds |v| <= 8 in
    float32 a few times, where a chunk without the row's key had a mean of its own.
    """
    out = run.dumped[OUT]
    actual, rounded = to_float64(out), round_to(found.expected, out.dtype)
    leeway = 2.0**-60 if run.contract.normalisation == "division" else 2.0**-20
    with np.errstate(invalid="ignore"):
        same = (
            (actual == rounded) | (abs(actual - rounded) < leeway) | np.isin(found.state, (State.EXACT, State.ABSENT))
        )
    # what a row without keys holds is a matter of convention
    known = "empty_out" not in run.contract.assumed and not isinstance(run.contract.empty_out, str)
    return ~same & (known | np.any(run.case.mask(), axis=-1)[..., None])


def with_exactness(run: Observed, judged: Sequence[StageDiff]) -> list[StageDiff]:
    """The stages; where out is not exact, and nothing else is wrong, the first one that is to blame as a bug; an exact
    out that no budget says anything of is exact.
    """
    out = next((stage for stage in judged if stage.name == OUT), None)
    found = None if out is None else out.propagated or out.isolated
    if out is None or found is None or not is_exact(run) or any(stage.verdict in ORIGIN_VERDICTS for stage in judged):
        return list(judged)
    off = inexact(run, found.elements)
    if not off.any():
        return [replace(x, verdict="exact", reason="") if x is out and x.verdict == "untestable" else x for x in judged]
    own = [stage.name for stage in judged if stage.isolated is not None and not stage.isolated.exact]
    # before exp stages may be rounded in what exp makes 0, as where q was scaled before the product
    later = [name for name in own if run.known[name].group != "tiles" or run.known[name].by_tile]
    blamed = next(iter((*later, *own[::-1], out.name)))
    unless = ". If yours subtracts more than the maximum, declare row_max=upper_bound"
    why = (
        f"{np.count_nonzero(off)} of {off.size} elements of out are not exact, but with distribution "
        f"{run.case.distribution} a correct kernel rounds nothing"
        f"{unless if 'row_max' in run.contract.assumed else ''}"
    )
    return [replace(stage, verdict="bug", reason=why) if stage.name == blamed else stage for stage in judged]
