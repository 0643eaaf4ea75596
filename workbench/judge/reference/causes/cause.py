"""What explains a wrong run."""

from dataclasses import dataclass, field
from typing import Any

from workbench.judge.reference.causes.edit import Edit
from workbench.judge.reference.causes.scene import Reach
from workbench.reference.graph.node import Line
from workbench.shown import shown_by

#: wrong elements that make a proof: fewer fit by coincidence
PROOF = 100


@dataclass(frozen=True)
class Named:
    """An edit in words."""

    text: str  #: what the kernel does, in the names of the reference
    line: Line  #: where the reference does it right
    family: str = ""  #: of edits: factor, left out, places ...


@dataclass(frozen=True)
class Cause:
    """One cause: edits that reproduce a kernel; several where no inputs that were tried tell them apart."""

    names: tuple[Named, ...]  #: the likeliest first
    stages: tuple[str, ...]  #: wrong ones that it reproduces
    elements: int  #: wrong elements of these; all but `undefined` are reproduced within budget
    undefined: int  #: those for which the edited reference is NaN
    fresh: int  #: fresh inputs on which it reproduced the kernel, too
    moved: int  #: wrong elements that it reproduced, in this run and on fresh inputs together
    left: float  #: root mean square of the error that remains, as a share
    edit: Edit = field(repr=False, compare=False)  #: the likeliest
    reach: Reach = field(repr=False, compare=False)  #: what that explains

    @property
    def proved(self) -> bool:
        """Whether fresh inputs confirm it, in enough elements."""
        return self.fresh > 0 and self.moved >= PROOF


@dataclass(frozen=True)
class Explained:
    """The causes of a run; none of a right one."""

    causes: tuple[Cause, ...] = ()
    unexplained: tuple[str, ...] = ()  #: wrong stages that no edit reproduces
    withdrawn: tuple[Named, ...] = ()  #: what reproduces this run, and not one on fresh inputs
    tried: int = 0  #: edits
    ended_by: str = ""  #: what ended the search before all were tried: effort, the user's seconds, size
    judged: Any = field(
        default=None, repr=False, compare=False
    )  #: the ReferenceDiff that was explained, which shows it

    @property
    def complete(self) -> bool:
        """Whether all edits were tried."""
        return not self.ended_by

    def __str__(self) -> str:
        return repr(self) if self.judged is None else shown_by("reference.in_short", self.judged.explained_by(self))
