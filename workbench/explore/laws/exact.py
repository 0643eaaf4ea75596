"""The law of inputs on which a right kernel rounds nothing."""

import numpy as np

from workbench.case.distributions import EXACT
from workbench.case.stages import MASKS
from workbench.explore.laws.compare import equal, first, within
from workbench.explore.laws.law import Verdict
from workbench.explore.laws.run import Bounded, Rows, Run, elements, smaller
from workbench.explore.laws.subject import Subject
from workbench.floats import round_to
from workbench.judge.exactness import exact_stages


def exact_inputs(s: Subject) -> Verdict:
    """On inputs that leave a right kernel nothing to round, out and lse are exact.

    The distributions exact and exact-ties (`case/distributions.py`), on the shapes of the case. Preconditions: no
    codes, no mask and no bias put in; a scale and a softcap as these ask for; enough dims for the keys' indices. Of
    lse: float32, or a contract that tells how exact exp is; otherwise, and where by the contract a right kernel is not
    exact (`judge/exactness.py`), they are within their budgets.
    """
    return first(*(_exact(s, distribution) for distribution in EXACT))


def _exact(s: Subject, distribution: str) -> Verdict:
    case = s.asked.but(distribution=distribution, input_std=1.0)
    run = Run(s.attend(case))
    # an approximate exp may give other than 1 at 0, which out is divided by, and lse is not
    told = "exp_ulps" not in run.trace.contract.assumed or case.dtype == "float32"
    names = [name for name in exact_stages(run.trace) if name == "out" or told]
    if s.quantises or {*MASKS} & {*s.inputs}:
        return "quantisation rounds, and a mask or a bias is not of these inputs"
    rows = smaller(Rows.all(run.trace.case), run)
    right = elements(run.narrowed(rows))
    verdicts: list[Verdict] = []
    for name in run.stages:
        expected = right[name].expected
        if name in names:
            verdicts.append(equal(name, round_to(expected, right[name].actual.dtype), run.values(name, rows), rows))
        else:
            verdicts.append(within(name, Bounded(expected, np.zeros(expected.shape)), run.bounded(name, rows), rows))
    return first(*verdicts)
