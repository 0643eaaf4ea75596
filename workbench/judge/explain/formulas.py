"""What a wrong stage holds, as a formula of what it should hold and of the other numbers of its run.

A formula is said where it was learned on one half of what is wrong and reproduces the other, element by element, within
the budget; and where it explains nearly all of the error, so that what changes next to nothing fits nothing.
"""

from workbench.judge.explain.unknown.difference import of_stage
from workbench.judge.explain.unknown.formula import Formula
from workbench.judge.explain.unknown.maps import mapped
from workbench.judge.explain.unknown.relations import related
from workbench.judge.explain.unknown.tensors import Tensors
from workbench.judge.stage import StageDiff
from workbench.trace.trace import Trace

SAID = 3


def formulas(trace: Trace, stage: StageDiff) -> tuple[Formula, ...]:
    """The formulas that reproduce what is wrong of a stage, the best first, at most SAID; () where none does. Refuses a
    stage without a comparison.
    """
    found, around = of_stage(stage), Tensors(trace, stage)
    made = [*mapped(found), *related(found, around)]

    return tuple(sorted(made, key=lambda formula: -formula.of))[:SAID]
