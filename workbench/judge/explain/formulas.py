"""What a wrong stage holds, as a formula of what it should hold and of the other numbers of its run.

A formula is said where it was learned on one half of what is wrong and reproduces the other, element by element, within
the budget; and where it explains nearly all of the error, so that what changes next to nothing fits nothing.
"""

from workbench.case.ranks import all_spoken
from workbench.expectation.observed import Observed
from workbench.judge.explain.unknown.difference import of_stage
from workbench.judge.explain.unknown.formula import INDEPENDENT, Formula
from workbench.judge.explain.unknown.maps import mapped
from workbench.judge.explain.unknown.operands import operands
from workbench.judge.explain.unknown.regression import regression
from workbench.judge.explain.unknown.relations import related
from workbench.judge.explain.unknown.sums import summed
from workbench.judge.explain.unknown.tensors import Tensors
from workbench.judge.stage import StageDiff

#: scores of a run all of which are computed at once, a quarter of a GB in float64
LARGEST = 2**25
#: so many formulas are said
SAID = 3


def formulas(run: Observed, stage: StageDiff) -> tuple[Formula, ...]:
    """The formulas that reproduce what is wrong of a stage, those of most elements first, at most SAID; () where none
    does, where less than INDEPENDENT elements are wrong, and of runs with more than LARGEST scores. Refuses a stage
    without a comparison.

    What needs least is tried first: sums of few bits, of however few elements; other indices, a factor, another number
    of the run; then the terms of a sum; then the operands of a product.
    """
    found, around = of_stage(stage), Tensors(run, stage)
    case = run.case
    if case.score_count > LARGEST:
        return ()
    if of_sums := summed(found, around):
        return tuple(of_sums)
    if found.wrong.sum() < INDEPENDENT:
        return ()
    made = [*mapped(found), *related(found, around)] or regression(found, around) or operands(found, around)
    return all_spoken(sorted(made, key=lambda formula: -formula.of)[:SAID], run.trace.ranks)
