"""The law of inputs on which a right kernel rounds nothing."""

import numpy as np

from workbench.case.distributions import EXACT
from workbench.case.stages import MASKS
from workbench.expectation.observed import Observed
from workbench.explore.laws.compare import equal, first, within
from workbench.explore.laws.law import Verdict
from workbench.explore.laws.run import Bounded, Rows, Run, elements, smaller
from workbench.explore.laws.subject import Subject
from workbench.floats import round_to
from workbench.judge.exactness import inexact, is_exact


def exact_inputs(s: Subject) -> Verdict:
    """On inputs that leave a right kernel nothing to round, out is exact.

    The distributions exact and exact-ties (`case/distributions.py`), on the shapes of the case. Preconditions: no
    mask and no bias put in; a scale and a softcap as these ask for; enough dims for the keys' indices. lse, and out
    where by the contract a right kernel is not exact (`judge/exactness.py`), are within their budgets.
    """
    return first(*(_exact(s, distribution) for distribution in EXACT))


def _exact(s: Subject, distribution: str) -> Verdict:
    run = Run(s.attend(s.asked.but(distribution=distribution, input_std=1.0)))
    if {*MASKS} & {*s.inputs}:
        return "the case has a mask or a bias"
    if s.quantises and not is_exact(Observed(run.trace)):
        return "quantised codes round these inputs"
    rows = smaller(Rows.all(run.trace.case), run)
    right = elements(run.narrowed(rows))
    verdicts: list[Verdict] = []
    for name in run.stages:
        expected, values = right[name].expected, run.values(name, rows)
        if name == "out" and is_exact(Observed(run.trace)):
            off = inexact(Observed(run.narrowed(rows)), right[name])
            rounded = np.where(off, round_to(expected, right[name].actual.dtype), values)
            verdicts.append(equal(name, rounded, values, rows, run.there(name, rows)))
        else:
            verdicts.append(within(name, Bounded(expected, np.zeros(expected.shape)), run.bounded(name, rows), rows))
    return first(*verdicts)
