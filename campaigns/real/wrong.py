"""Bugs at their real commits: wrong at the commit before, right at the commit after.

A truth is written down before a row is run for the first time; no row is dropped after it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from campaigns.real.case import Case

#: what an edit of the reference does -> the families of causes that say so
KINDS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "factor": ("factor", "constant", "power"),  # another factor, constant or exponent
    "omitted part": ("left out", "part"),  # an operand, a term of a sum, a tile
    "index": ("places", "offset", "part"),  # another element, head, row or chunk is read
    "mask": ("mask", "step", "places", "part", "operand", "left out", "past the end"),  # other places, or none
    "operand": ("operand", "order", "left out"),  # another value is read: stale, unscaled, unnormalised
    "step": ("step", "order", "power", "clamp"),  # another operation, or another order
    "cast": ("cast",),  # a value, or a sum, in fewer bits
    "no edit": (),  # overflow, NaN, uninitialised memory: no edit of the reference does so
})  # fmt: skip


@dataclass(frozen=True)
class Truth:
    """What a cause should say: the line of the reference that the kernel does otherwise, and how."""

    line: str  #: a part of that line's text, as it is written in the reference
    kind: str  #: of KINDS
    also: str = ""  #: of another line that says the same, where there are two
    changed: bool = False  #: behind a run of the row, which says why: then it proves nothing


@dataclass(frozen=True)
class Wrong:
    """A bug."""

    project: str  #: the name of its Project
    before: str  #: the parent of the commit that fixes it, or the newest where none does
    after: str  #: the commit that fixes it; "": none does
    what: str
    case: Case
    shows: tuple[str, ...]  #: results or gradients that are wrong before it, by the names of the reports; no others
    truth: Truth
    where: str = ""  #: which elements
    stage: str = ""  #: the first wrong stage, where the kernel returns stages
    wrong_in: tuple[str, ...] = ("forward",)  #: the runs that are wrong: forward, gradients
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    of_reference: bool = False  #: the reference is wrong, and the kernel right

    @property
    def name(self) -> str:
        """Of a row, in documents: no other has it, whichever rows are added."""
        return f"{self.project} {(self.after or self.before)[:8]}: {self.case.operation}"
