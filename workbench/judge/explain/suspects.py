"""What a right stage says of a wrong one that was computed from the same stages: which are right, which are left.

out and lse share the scores, the maxima and the sums. Where one of the two is right, what both were made of is right as
far as that one shows it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from workbench.case.stages import LSE, OUT
from workbench.expectation.elements import State
from workbench.expectation.observed import Observed
from workbench.judge.stage import RIGHT_VERDICTS, StageDiff
from workbench.reference.graph import unseen_upstream

#: what a right stage cannot show of the stages that it was made of, since it sums over all keys of a row or divides
_BLIND = {
    LSE: "the order of the keys: whether probs meet the v that belongs to them",
    OUT: "what moves all scores of a row alike: row_max, a constant or a bias of the row",
}


@dataclass(frozen=True)
class Suspects:
    """Where the cause of a wrong stage can be, given that another is right."""

    right: str  #: the stage that is right
    cleared: tuple[str, ...]  #: stages that nobody saw and that it was made of, in data-flow order
    left: tuple[str, ...]  #: the other stages that nobody saw, and the wrong one
    blind: str  #: what of the cleared stages the right one cannot show, in words


def suspects(run: Observed, stages: Sequence[StageDiff], stage: StageDiff) -> Suspects | None:
    """What a right lse says of a wrong out, or a right out of a wrong lse, in the data flow before which nobody saw
    everything. None where nothing is ruled out: the other was not judged whole, or is not right by itself.
    """
    other = {OUT: LSE, LSE: OUT}.get(stage.name)
    right = next((one for one in stages if one.name == other), None)
    if right is None or not stage.upstream or right.name not in run.dumped:
        return None
    if right.role != "clean" or right.verdict not in RIGHT_VERDICTS or right.propagated is None:
        return None
    summary = right.propagated.summary
    whole = summary.judged == summary.size > 0 and not summary.count(State.ABSENT)
    seen = unseen_upstream(run.table, right.name, ())
    cleared = tuple(name for name in stage.upstream if name in seen)
    if not whole or not cleared:
        return None
    left = tuple(name for name in stage.upstream if name not in cleared)
    return Suspects(right.name, cleared, (*left, stage.name), _BLIND[right.name])
