"""Known faults that break the same laws: what a kernel's signature tells of a cause that nothing reproduces."""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from workbench.explore.laws.law import Laws
from workbench.refusal import Refusal
from workbench.trace.trace import Trace

#: shares of broken laws from which a fault is alike, and faults that are listed
ALIKE, LISTED = 0.5, 4


@dataclass(frozen=True)
class Alike:
    """A known fault, and how much of what it breaks and of what the kernel breaks is the same."""

    fault: str
    stages: tuple[str, ...]  #: where it begins
    summary: str
    share: float  #: laws that both break, of those that either breaks, of the laws that the kernel was asked


@dataclass(frozen=True)
class Signature:
    """What a fault of the whole catalogue, of which the package has a part, breaks."""

    summary: str
    stages: tuple[str, ...]  #: where it begins
    laws: tuple[str, ...]  #: those that it broke on a few random cases


@cache
def signatures() -> dict[str, Signature]:
    """Fault -> its signature; measured by `python -m campaigns.signatures`."""
    found = json.loads(files("workbench.explore.laws").joinpath("signatures.json").read_text())["faults"]
    return {fault: Signature(one["summary"], tuple(one["stages"]), tuple(one["laws"])) for fault, one in found.items()}


def alike(found: Laws) -> list[Alike]:
    """The known faults whose signature is most like that of a kernel, the most alike first; none where it breaks no
    law, and where no fault shares half of what either breaks.
    """
    signature = found.signature
    asked = {name for name, held in signature.items() if held is not None}
    broken = {name for name in asked if signature[name] is False}
    if not broken:
        return []
    rows = []
    for fault, known in signatures().items():
        of_fault = asked & {*known.laws}
        share = len(broken & of_fault) / len(broken | of_fault)
        if share >= ALIKE:
            rows.append(Alike(fault, known.stages, known.summary, share))
    return sorted(rows, key=lambda one: -one.share)[:LISTED]


def of_trace(trace: Trace) -> Laws | None:
    """The laws, asked of the kernel of a trace on its case; None where it cannot be run again."""
    from workbench.explore.laws.every import asked
    from workbench.explore.laws.subject import Subject

    if trace.rerun is None or trace.box is not None:
        return None
    again = trace.rerun
    try:
        return asked(Subject(lambda case, inputs=None: again(case, inputs), trace.case_run))
    except Refusal:  # of the case itself, by a kernel that is not repeatable
        return None


def as_dict(found: Laws) -> dict[str, Any]:
    """What `workbench explain --json` tells of the laws, plain values."""
    signature = found.signature
    return {
        "broken": [name for name, held in signature.items() if held is False],
        "held": [name for name, held in signature.items() if held],
        "alike": [{"fault": one.fault, "stages": list(one.stages), "share": one.share} for one in alike(found)],
    }
