"""A fault: a named, small source change that breaks a kernel.

It tells the stage where it first shows, and what a watched run finds, which sees more than numbers show.

A fault is literally the difference that introduced the bug: `before` is found exactly once in the kernel's clean source
and replaced by `after`, which has as many lines, so that line numbers survive. Several faults may be combined as long
as they do not overlap.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.case.case import Case
from workbench.cuda.faults.conditions import always
from workbench.refusal import Refusal

#: where the partial kernel of split_k is
PARTIAL = "flash.py"
#: what a tile that is never visited leaves unwritten
UNVISITED = ("qk", "scores", "row_max", "correction", "probs", "probs_cast", "row_sum", "acc")


@dataclass(frozen=True, eq=False)  # compared and hashed by identity: `needs` is a dict
class Fault:
    """One source change and what it does."""

    id: str
    kernel: str
    summary: str
    before: str
    after: str
    stages: tuple[str, ...] = ()  #: the origins it leads to; () where numbers may not show it, or not always the same
    finding: str = ""  #: the kind under which `workbench check` reports it; "" where it finds nothing
    biased: tuple[str, ...] = ()  #: stages whose errors it makes lean to one side, inside their budgets or not by far
    needs: Mapping[str, Any] = field(default_factory=dict)  #: case options without which it cannot show
    shows: Callable[[Case], bool] = always  #: of the resolved cases with these, those in which it can show
    promises: Callable[[Case], Mapping[str, Any]] = lambda case: {}  #: fields of the contract that it changes
    file: str = ""  #: name of the source that it changes, where that is not the kernel's own
    seqlen: int | None = None  #: length at which it shows, taken where the user gives none
    leaves_arrays: bool = False  #: whether it reads beyond the end of its inputs
    unwritten_memory: bool = False  #: whether it shows only when unwritten memory does not happen to hold zeros
    source: str = ""  #: a public report of the same mistake; "synthetic" where none is known


def of_file(faults: Sequence[Fault], file: str) -> tuple[Fault, ...]:
    """Those of the faults that change `file`, which is not the kernel's own."""
    return tuple(fault for fault in faults if fault.file == file)


def applied(text: str, faults: Sequence[Fault], filename: str) -> str:
    """`text` with every fault's change; all are matched on the clean text.

    Raises Refusal where a fault's text does not occur exactly once, changes the number of lines, or overlaps another's.
    """
    places = []
    for fault in faults:
        if (count := text.count(fault.before)) != 1:
            raise Refusal(
                f"fault {fault.id}: its text must occur exactly once in {filename}; it occurs {count} times:\n"
                f"{fault.before.rstrip()}"
            )
        if fault.before.count("\n") != fault.after.count("\n"):
            raise Refusal(f"fault {fault.id}: its change must keep the number of lines")
        start = text.index(fault.before)
        places.append((start, start + len(fault.before), fault))
    places.sort(key=lambda place: place[0])
    for (_, end, one), (start, _, other) in zip(places, places[1:], strict=False):
        if start < end:
            raise Refusal(f"faults {one.id} and {other.id} change the same text of {filename}; choose one of them")
    for start, end, fault in reversed(places):
        text = text[:start] + fault.after + text[end:]
    return text
