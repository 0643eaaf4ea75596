"""Which elements of a wrong stage are wrong, as rules: where they are, and what they are computed from."""

from workbench.case.ranks import all_spoken
from workbench.expectation.observed import Observed
from workbench.judge.explain.unknown import parts
from workbench.judge.explain.unknown.difference import of_stage
from workbench.judge.explain.unknown.mining import Pattern, mined
from workbench.judge.explain.unknown.tensors import Tensors
from workbench.judge.stage import StageDiff


def where(stage: StageDiff) -> str:
    """The part of one axis that holds all that is wrong of a judged stage, as `parts.where`."""
    return parts.where(of_stage(stage))


def patterns(run: Observed, stage: StageDiff) -> tuple[Pattern, ...]:
    """The rules that tell which elements of a wrong stage are wrong, the best first, at most three; () where none does.
    Refuses a stage without a comparison.

    What could be wrong was judged, and is wrong or expected to be a number other than 0: on others a fault may show
    nothing.
    """
    return all_spoken(mined(of_stage(stage), Tensors(run, stage)), run.trace.ranks)
