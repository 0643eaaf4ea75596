"""What is asked of a process that judges, and what it answers; light, since every worker imports it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workbench.case.case import Case
from workbench.explore.sweep.row import Named


@dataclass(frozen=True)
class Ask:
    """A case, and what is wanted of it."""

    target: str
    case: Case
    given: Mapping[str, Any]  #: options of the run
    keep: bool = False  #: whether the trace of a failing case comes back
    explain: bool = False  #: whether the causes are searched
    fits: Named | None = None  #: a cause of another case, which is held to this one
    stage: str = ""  #: the wrong stage that the cause is of
    folder: str = field(default_factory=os.getcwd)  #: in which the sweep runs, of which its files are told


@dataclass(frozen=True)
class Answer:
    """What came of it."""

    fields: Mapping[str, Any]  #: of a row, but for its case
    causes: Mapping[str, Named | None] = field(default_factory=dict)  #: of a search
    fits: bool = False  #: whether the cause reproduces the stage here
    trace: bytes | None = None  #: the file of the trace


class MachineLacks(RuntimeError):
    """What a case needs, the machine lacks: no row says anything of the kernel."""
