"""What explains a table of largest errors: the set of plausible causes, with values of what the table leaves open.

A table holds too little for a proof. A cause is plausible where it predicts every number of the table, and the set is
told with what would decide among its members.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from workbench.judge.explain.measurement import Measurement, deciding
from workbench.judge.explain.plausible import Plausible, Values
from workbench.judge.explain.symptom_search import COMPARED, MOST, Search
from workbench.judge.explain.symptom_table import SymptomTable, read
from workbench.progress import step
from workbench.shown import shown_by

SCHEMA = "workbench.symptoms-explained/1"
# seconds, measured on 2 cores, until what the first causes take corrects it
ESTIMATE_S = 30.0


@dataclass(frozen=True, eq=False)
class Symptoms:
    """What explains a table of largest errors."""

    table: SymptomTable
    rounding: tuple[Values, ...]  #: values of the unknowns with which a kernel without a fault has such errors
    plausible: tuple[Plausible, ...]  #: the likeliest first, MOST at most
    more: int  #: causes that are not told
    measurement: Measurement | None  #: None where one cause is left, and where no measurement parts them
    tried: int  #: hypotheses
    seconds: float
    stopped: bool = False  #: since the effort was spent before all cases were tried

    @property
    def verdict(self) -> str:
        """In words."""
        if self.stopped:
            return "not finished"
        if self.rounding:
            return "rounding, or a plausible cause" if self.plausible else "nothing to explain"
        return "plausible causes" if self.plausible else "no likely fault explains it"

    def as_dict(self) -> dict[str, Any]:
        """The document `workbench.symptoms-explained/1`, of plain Python values.

        - `kernel`, `stage`, `unknown`: of the table; the values tried of what it leaves open
        - `verdict`: in words
        - `plausible`, `more`: at most five causes, and how many more
        - `measurement`: what would decide between them: `case`, `row`, what each cause `predicted`, `parted`: groups it
          separates
        - `within_rounding`: values with which no fault is needed
        - `tried`: hypotheses
        """
        return {
            "schema": SCHEMA,
            "verdict": self.verdict,
            "kernel": self.table.kernel,
            "stage": self.table.stage,
            "unknown": {name: list(tried) for name, tried in self.table.unknown.items()},
            "within_rounding": [dict(one) for one in self.rounding],
            "plausible": [one.as_dict() for one in self.plausible],
            "more": self.more,
            "measurement": None if self.measurement is None else self.measurement.as_dict(),
            "tried": self.tried,
            "seconds": self.seconds,
        }

    def __str__(self) -> str:
        return "\n".join(shown_by("symptoms.lines", self))


def symptoms(path: Path, effort: float = 1.0) -> Symptoms:
    """What explains the table in a file of `workbench.symptoms/1`; Refusal as of `symptom_table.read`. `effort`:
    how many times as much as usual is tried.
    """
    return explained(read(path), effort)


@np.errstate(all="ignore")
def explained(table: SymptomTable, effort: float = 1.0) -> Symptoms:
    """What explains a table."""
    begun = time.monotonic()
    search = Search(table, effort)
    with threadpool_limits(1, "blas"), step("explain the table", ESTIMATE_S) as tick:
        found, tried, stopped = search.found(tick)
        classes = search.classes(found[:COMPARED])
        told = classes[:MOST]
        measurement = deciding(told, search.elsewhere(), search.drawn) if len(told) > 1 else None
    more = len(classes) - len(told) + len(found[COMPARED:])
    return Symptoms(table, search.rounding, tuple(told), more, measurement, tried, time.monotonic() - begun, stopped)
