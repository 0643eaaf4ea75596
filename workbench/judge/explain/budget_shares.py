"""What a budget is made of: the share of each source of error at the worst element of a stage."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from workbench.case.box import Box
from workbench.expectation.elements import Element
from workbench.expectation.expectation import Expectation
from workbench.expectation.observed import Observed
from workbench.floats import ulp
from workbench.judge.stage import StageDiff
from workbench.reference.losses import alone, without
from workbench.reference.problem import Problem
from workbench.reference.steps.codes import decoding_error
from workbench.reference.walk import budgets


def terms(observed: Observed, stage: StageDiff) -> Mapping[str, float]:
    """The sources of error in words -> their shares of the budget at the worst element of `stage`, the largest first.

    Each share is the budget of a kernel that loses nothing else, over the sum of these. Where all of them together are
    less than half an ulp of what stores the stage, which is always allowed, that is the only source. {} where nothing
    was judged, where the budget is 0 but for special values, and of codes, of which only the nearest is right.
    """
    comparison = stage.decisive
    if comparison is None or comparison.summary.worst is None:
        return {}
    worst = stage.worst(1)[0]
    codes, run = observed.case.codes, observed.dequantised
    if stage.name not in run.known:
        if codes is None:
            return {"the loss of the coarsest 8-bit format": 1.0}
        return _of_decoding(worst, codes, comparison.actual.dtype)
    within = {axis: i - stage.first.get(axis, 0) for axis, i in worst.index.items()}
    part = Box(**{axis: slice(within[axis], within[axis] + 1) for axis in "bhq"})
    place = tuple(0 if axis in "bhq" else i for axis, i in within.items())
    trace, dumped = run.trace, run.readable if stage.isolated is not None else {}
    expectation = Expectation(run, dumped, part, statistics=False)
    whole = expectation.problem
    dtype = trace.stages[stage.name].dtype
    half_ulp = float(ulp(worst.expected, dtype)) / 2
    printed = float(trace.sparse[stage.name][tuple(within.values())]) if stage.name in trace.sparse else 0.0

    def bound(p: Problem) -> float:
        return float(budgets(p, expectation.computed, [stage.name])[stage.name].bound[place])

    if bound(whole) + printed < half_ulp:
        return {f"half an ulp of {dtype}": 1.0}
    found = {
        words: bound(replace(whole, losses=losses, input_errors={})) for words, losses in alone(whole.losses).items()
    }
    if whole.input_errors:
        found["the decoding, which was not dumped"] = bound(replace(whole, losses=without(whole.losses)))
    found["the printed digits"] = printed
    total = sum(found.values())
    shares = {words: value / total for words, value in found.items() if total > 0 and value > 0}
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _of_decoding(worst: Element, codes: str, dtype: np.dtype) -> Mapping[str, float]:
    """As `terms`, of a stage before attention: half an ulp of what stores it, and what float32 loses before where the
    budget is more than that.
    """
    half_ulp = f"half an ulp of {dtype}"
    if dtype == np.uint8 or worst.budget == 0:
        return {}
    if worst.budget <= float(ulp(worst.expected, dtype)) / 2:
        return {half_ulp: 1.0}
    lost = min(1.0, float(decoding_error(np.asarray(worst.expected), codes)) / worst.budget)
    found = {"the decoding in float32": lost, half_ulp: 1.0 - lost}
    return dict(sorted(((words, share) for words, share in found.items() if share > 0), key=lambda item: -item[1]))
