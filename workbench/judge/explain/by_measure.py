"""Causes that were measured: what a function computes, read off its outputs by chosen inputs, where that predicts runs
that no reading saw.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from workbench.case.stages import LSE, OF_QUANTISER, OUT
from workbench.expectation.observed import Observed
from workbench.floats import scientific
from workbench.judge.explain.cause import Cause, Trial
from workbench.judge.explain.fit import Fit
from workbench.judge.explain.hypothesis import Hypothesis
from workbench.readings.finding import Finding
from workbench.readings.proof import explained
from workbench.readings.reader import Measured, measured
from workbench.refusal import Refusal, Unavailable
from workbench.work import Work


def by_measure(run: Observed, wrong: Sequence[str], work: Work, known: Measured | None = None) -> list[Cause]:
    """A cause for each part of a function that is not as its case says, in the order in which they were read; none
    where what was read predicts no runs on unseen inputs, or the function cannot be called with inputs of our choice.

    `wrong`: the wrong stages, out or lse or both, that nothing else explains; `work`: what it may do; `known`:
    what was measured already.
    """
    trace = run.trace
    if not wrong or trace.rerun is None or trace.ranks or not {*trace.put_in} <= {*OF_QUANTISER}:
        return []
    try:
        found = measured(trace, work=work) if known is None else known
    except (Refusal, Unavailable):  # of a kernel that takes no inputs, or takes codes
        return []
    out = found.target.natural.out
    if not np.isfinite(out).any() or np.ptp(out[np.isfinite(out)]) == 0:
        return []  # of a function that stores one number alone there is no more to say
    of_out = [one for one in found.findings if one.stage != LSE]
    of_lse = [one for one in found.findings if one.stage == LSE]
    causes: list[Cause] = []
    if OUT in wrong and of_out and all(one.held for one in found.proofs):
        also = found.lse is None and LSE in wrong and _as_out(found)
        stages = (OUT, LSE) if also else (OUT,)
        causes += [_cause(run, found, one, stages) for one in of_out]
    if LSE in wrong and of_lse and all(one.lse_held for one in found.proofs):
        causes += [_cause(run, found, one, (LSE,)) for one in of_lse]
    return causes


def _as_out(found: Measured) -> bool:
    """Whether lse is the logarithm of what out was divided by."""
    answer = found.target.natural
    assert answer.lse is not None
    return explained(answer.lse, found.model.lse(answer), answer.expected_lse)


def _cause(run: Observed, found: Measured, finding: Finding, stages: tuple[str, ...]) -> Cause:
    answer = found.target.natural
    if stages[0] == "lse":
        assert found.lse is not None and answer.lse is not None
        made, actual, allowed = found.lse(found.model, found.right, answer), answer.lse, answer.allowed_lse
        wrong = answer.wrong_lse
    else:
        made, actual, allowed, wrong = found.model.predicted(answer), answer.out, answer.allowed, answer.wrong
    with np.errstate(all="ignore"):
        over = abs(actual - made) / allowed
    alike = (actual == made) | (np.isnan(actual) & np.isnan(made))
    over = np.where(alike, 0.0, np.where(np.isfinite(over), over, np.inf))
    within = over <= 1
    text = finding.text
    hypothesis = Hypothesis(f"measured.{finding.reading.replace(' ', '-')}", text, ())
    near = over[np.isfinite(over)]
    nearness = float(np.sqrt(np.mean(near**2))) if near.size else 0.0
    fit = Fit(
        hypothesis, stages, float(over[within].max(initial=0.0)), nearness,
        found.proofs[0].left / found.proofs[0].error if found.proofs[0].error else 0.0,
        int((~within).sum()), over.size, int((wrong & within & np.isfinite(actual)).sum()), int(np.isnan(actual).sum()),
    )  # fmt: skip
    proof = found.proofs[0]
    trial = Trial(
        replace(run.case, seed=run.case.seed + proof.seed),
        f"{scientific(proof.left)} with the cause injected into it",
        f"RMS error {scientific(proof.error)} against the reference",
        True,
        int(answer.out.size),
        of=len(found.proofs),
        nan_sets=len(found.proofs),  # what was read is the set itself: each run that has it proves it
    )
    return Cause((hypothesis,), fit, trial=trial, measured=True, read_as=finding.stage)
