"""The first case that failed, and which verdicts do."""

from dataclasses import dataclass

from workbench.explore.acceptance.families import Problem
from workbench.explore.acceptance.reference_families import ReferenceProblem
from workbench.judge.diff import Diff
from workbench.judge.fails import failing
from workbench.judge.reference.diff import ReferenceDiff

#: what fails; a case of which nothing could be judged does not count
FAILS = failing("bug") - {"untestable"}
#: what fails as of assertions in tests, but on other inputs of the case, too: within their budgets right kernels leave
#: what is usual on one case of some hundred, mostly where sums cancel (transposed_scores of campaigns/styles did)
DOUBTED = failing("evidence") - FAILS - {"untestable"}
#: other inputs, all of which have to leave it
OTHERS = 2
#: every so many problems the call is made twice
TWICE = 4


@dataclass(frozen=True, eq=False)
class Failure:
    """The first case that failed."""

    problem: Problem | ReferenceProblem
    index: int  #: its place in the order of problems
    kind: str  #: wrong, raised, overwritten, dtype, time, memory, ended, or bits: other ones than without its batch
    words: str
    judged: Diff | ReferenceDiff | None = None  #: where numbers are wrong
