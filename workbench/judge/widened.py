"""Which single assumption makes the budget of a stage far wider than a usual kernel's."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from workbench.case.assumptions import Choice, usual, weaker
from workbench.case.contract import Contract
from workbench.expectation.observed import Observed
from workbench.judge.control import at_rows, sampled

#: times a usual kernel's budget from which on the report says so
FAR = 100.0
#: rows whose budgets are held against each other
ROWS = 8


class Widened(NamedTuple):
    """A stage whose budget is so many times a usual kernel's, in the median, for one choice that nobody declared."""

    stage: str
    times: float
    choice: Choice


def widened(run: Observed, names: Sequence[str]) -> list[Widened]:
    """Those of the judged stages `names` whose budget one assumption makes FAR times wider or more, with the assumption
    that does most; nothing of a kernel that declares everything.
    """
    promise, base = run.contract, usual(run.contract)
    wide, narrow = (_budgets(run, names, contract) for contract in (promise, base)) if promise != base else ({}, {})
    far = [name for name in narrow if _times(wide[name], narrow[name]) >= FAR]
    found: dict[str, Widened] = {}
    for field in weaker(promise) if far else []:
        choice = Choice(field, replace(base, **{field: getattr(promise, field)}))
        alone = _budgets(run, far, choice.contract)
        for name in far:
            times = _times(alone[name], narrow[name])
            if times >= FAR and (name not in found or times > found[name].times):
                found[name] = Widened(name, times, choice)
    return list(found.values())


def _budgets(run: Observed, names: Sequence[str], contract: Contract) -> dict[str, np.ndarray]:
    """The budgets of those stages at a few rows."""
    compared = at_rows(run.under(contract), names, sampled(run.case, ROWS))
    return {name: elements.budget for name, elements in compared}


def _times(wide: np.ndarray, narrow: np.ndarray) -> float:
    """The median of their ratios; 0 where none is a number."""
    with np.errstate(all="ignore"):
        ratios = (wide / narrow)[np.isfinite(wide) & np.isfinite(narrow) & (narrow > 0)]
    return float(np.median(ratios)) if ratios.size else 0.0
