"""Known faults that break the same laws: what a kernel's signature tells of a cause that nothing reproduces."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from workbench.expectation.observed import Observed
from workbench.explore.laws.law import Laws
from workbench.refusal import Refusal
from workbench.trace.trace import Trace

#: shares of broken laws from which a fault is alike, and faults that are listed
ALIKE, LISTED = 0.5, 4
#: what is no more likely by chance is listed: chance's best of as many faults is as like in less than half of all draws
CHANCE = 0.5
#: of two numbers of broken laws that are about the same, the one is at most so many times the other
ABOUT = 1.5


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
    needs: Mapping[str, Any]  #: what a case and a kernel have that may have it: True, or the value of a field
    laws: frozenset[str]  #: those that it broke on a few random cases


@cache
def signatures() -> dict[str, Signature]:
    """Fault -> its signature; measured by `python -m campaigns.signatures`."""
    found = json.loads(files("workbench.explore.laws").joinpath("signatures.json").read_text())["faults"]
    return {
        fault: Signature(one["summary"], tuple(one["stages"]), one["needs"], frozenset(one["laws"]))
        for fault, one in found.items()
    }


def alike(found: Laws) -> list[Alike]:
    """The known faults whose signature is most like that of a kernel, the most alike first, of those that it can have
    on its case: none where it breaks no law, where no fault shares half of what either breaks, and where faults that
    have nothing to do with each other share as much.
    """
    signature = found.signature
    asked = {name for name, held in signature.items() if held is not None}
    broken = frozenset(name for name in asked if signature[name] is False)
    if not broken:
        return []
    possible = possible_in(found.subject.first.trace)
    known = {name: replace(one, laws=laws) for name, one in possible.items() if (laws := one.laws & asked)}
    shares = {name: _share(broken, one.laws) for name, one in known.items()}
    of_chance = _by_chance(len(broken), [*known.values()])
    best = sorted((name for name in known if shares[name] >= ALIKE), key=lambda name: -shares[name])[:LISTED]
    listed = [name for name in best if of_chance(shares[name]) < CHANCE]
    return [Alike(name, known[name].stages, known[name].summary, shares[name]) for name in listed]


def possible_in(trace: Trace) -> dict[str, Signature]:
    """The known faults that the case, the contract and what ran can have."""
    case, promise, stages = trace.case_run, trace.contract, {*Observed(trace).table} - {*trace.put_in}
    # a function that runs on a machine without a GPU has no threads of one
    threads = trace.backend != "foreign" or trace.provenance is None or bool(trace.provenance.driver or trace.launched)
    in_order = {promise.accumulation, promise.accumulation_of_acc} == {"nearest"}
    has = {
        "batches": case.batch > 1,
        "heads": case.heads > 1,
        "kv_heads": case.kv_heads > 1,
        "groups": case.heads > case.kv_heads,
        "splits": "partial_O" in stages,
        "float16": case.dtype != "float32",
        "width_of_v": case.head_dim_v != case.head_dim,
        "threads": threads,
        "tensor_cores": threads and not in_order,
    }

    def met(name: str, value: Any) -> bool:
        if name in has:
            return has[name]
        own = getattr(case, name)
        return own not in (None, False) if value is True else bool(own == value)

    return {
        name: one
        for name, one in signatures().items()
        if stages & {*one.stages} and all(met(*need) for need in one.needs.items())
    }


def _share(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / len(one | other)


def _by_chance(broken: int, known: Sequence[Signature]) -> Callable[[float], float]:
    """The chance that the best of as many faults as are known shares that much with one that breaks about as many laws
    as the kernel and has nothing to do with them: that begins at other stages.
    """
    unrelated = [
        _share(one.laws, other.laws)
        for one in known
        if broken / ABOUT <= len(one.laws) <= broken * ABOUT
        for other in known
        if not {*one.stages} & {*other.stages}
    ]

    def chance(share: float) -> float:
        # nobody can tell where there are none
        each = sum(x >= share for x in unrelated) / len(unrelated) if unrelated else 1.0
        return 1 - (1 - each) ** len(known)

    return chance


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
