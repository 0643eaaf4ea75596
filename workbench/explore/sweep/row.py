"""A row of a sweep: one case, and what came of it."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from workbench.case.case import Case
from workbench.case.fields import name_of
from workbench.judge.fails import failing
from workbench.records import number

#: outcomes that are no verdict of a judgement: the kernel does not take the case; it raised; it ended its process; a
#: limit was broken; the workbench itself failed
REFUSED, RAISED, CRASHED, TIMEOUT, MEMORY, DEFECT = "refused", "raised", "crashed", "timeout", "memory", "defect"
#: of these, those that fail
_FAILS = (RAISED, CRASHED, TIMEOUT, MEMORY)
#: characters of the hash that names a case, of which a million have two alike in 1 of 560 sweeps
_ID = 12


@dataclass(frozen=True)
class Named:
    """A cause that reproduces a wrong stage of a case."""

    id: str  #: of `judge.explain.cause.Cause`
    text: str
    cut: tuple[int, int] | None = None  #: tiles and splits that the kernel must have for it, where nobody told
    searched: bool = False  #: whether the search found it on this case; else it was found on another, and fits here
    stands: bool = True  #: False: fresh cases do not have it, so that it is a fault of some cases

    @property
    def kind(self) -> str:
        """The words with their numbers as N: what a tile or a head makes of one cause is one class, and so is what was
        named and what was measured.

        >>> Named("layout.rows-block-previous-64-v", "v: rows are read from the block of 64 before").kind
        'v: rows are read from the block of N before'
        """
        return without_numbers(self.text)


@dataclass(frozen=True)
class Row:
    """What came of a case."""

    case: Case  #: as it was asked
    outcome: str  #: as of `fails.classed`, or one of the words above
    settled: Mapping[str, Any] = field(default_factory=dict)  #: fields of the case that the kernel chose
    origins: tuple[str, ...] = ()
    stages: Mapping[str, tuple[str, float | None]] = field(default_factory=dict)  #: judged -> verdict, x of budget
    bits: str | None = None  #: SHA-256 of the bytes of out; None where there is none
    reason: str = ""  #: of what was not judged, and of gates and missing stages
    #: wrong stage -> what explains it; None: nothing does. Not there: nobody looked yet
    causes: Mapping[str, Named | None] = field(default_factory=dict)
    seconds: float = 0.0
    ran: Mapping[str, Any] = field(default_factory=dict)  #: machine, device, versions, and the hash of the code

    @cached_property
    def id(self) -> str:
        """Of the case alone, so that sweeps of two kernels have the same."""
        return case_id(self.case)

    @property
    def over_budget(self) -> float | None:
        """The largest x of budget of all stages; None where none was judged."""
        return max((x for _, x in self.stages.values() if x is not None), default=None)

    @property
    def fails(self) -> bool:
        """Whether it counts as `workbench diff` would have it, or the kernel did not return."""
        return self.outcome in failing() or self.outcome in _FAILS

    @property
    def judged(self) -> bool:
        """Whether the kernel returned and there is a verdict."""
        return self.outcome not in (REFUSED, DEFECT, *_FAILS)

    def as_dict(self) -> dict[str, Any]:
        """Plain Python values, for JSON; infinities are their names."""
        causes = {stage: None if one is None else vars(one) for stage, one in self.causes.items()}
        plain = {**{name: getattr(self, name) for name in self.__dataclass_fields__}, "causes": causes}
        return number({"id": self.id, **plain, "case": self.case.as_dict()})


def of_dict(plain: Mapping[str, Any]) -> Row:
    """The row of which `as_dict` was kept."""
    given: dict[str, Any] = {name: plain[name] for name in Row.__dataclass_fields__}
    stages = {name: (word, None if x is None else float(x)) for name, (word, x) in plain["stages"].items()}
    causes = {stage: None if one is None else _named(one) for stage, one in plain["causes"].items()}
    settled = {name: tuple(x) if isinstance(x, list) else x for name, x in plain["settled"].items()}
    of_case = {"case": Case(**plain["case"]), "settled": settled, "origins": tuple(plain["origins"])}
    return Row(**given | of_case | {"stages": stages, "causes": causes})


def _named(plain: Mapping[str, Any]) -> Named:
    return Named(**{**plain, "cut": None if plain["cut"] is None else tuple(plain["cut"])})


def case_id(case: Case) -> str:
    """A name of a case: of those of its fields that are not as usual, so that fields to come change none."""
    plain = {name: name_of(x) if callable(x) else x for name, x in case.unusual.items()}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:_ID]


def without_numbers(text: str) -> str:
    """A text whose numbers are N, so that what differs in a length is alike."""
    return re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "N", text)
