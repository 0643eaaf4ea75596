"""What is known of why a stage is as it is, worked out once; a report says it in words, in JSON and in pictures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from workbench.case.ranks import spoken
from workbench.judge.explain.budget_shares import terms
from workbench.judge.explain.patterns import where
from workbench.judge.explain.suspects import Suspects, suspects
from workbench.judge.judgeable import table
from workbench.judge.stage import StageDiff
from workbench.reference.graph import unseen_upstream
from workbench.reference.tables import definition
from workbench.trace.trace import Trace


@dataclass(frozen=True, eq=False)
class Explanation:
    """Of one stage of a judged trace; each part is worked out when it is first asked for."""

    trace: Trace
    stages: Sequence[StageDiff]  #: all that were judged
    stage: StageDiff

    @cached_property
    def definition(self) -> str:
        """What the stage is, in float64 and natural units."""
        return spoken(definition(table(self.trace), self.stage.name), bool(self.trace.ranks))

    @cached_property
    def where(self) -> str:
        """The part of one axis that holds all that is wrong, in words; "" where there is none."""
        return spoken(where(self.stage), bool(self.trace.ranks))

    @cached_property
    def budget_shares(self) -> Mapping[str, float]:
        """Sources of error -> their share of the budget at the worst element, as `budget_shares.terms` says."""
        return terms(self.trace, self.stage)

    @cached_property
    def suspects(self) -> Suspects | None:
        """Where the cause can be, given that another stage is right."""
        return suspects(self.trace, self.stages, self.stage)

    @cached_property
    def right_before(self) -> tuple[str, ...]:
        """Stages before it of which some elements were given, all right."""
        before = {*unseen_upstream(table(self.trace), self.stage.name, ())} & {*self.trace.sparse}
        return tuple(other.name for other in self.stages if other.name in before and other.role == "clean")
