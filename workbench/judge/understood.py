"""What the dumps of a kernel mean where nobody said it: the conventions of a contract that they show, and those of a
single dump that no contract tells, which is set apart where it is right in them.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain, combinations
from typing import Any

import numpy as np

from workbench.case.box import Box
from workbench.case.case import Case
from workbench.case.stages import PROBS, ROW_SUM, SCORES
from workbench.expectation.elements import UNJUDGED, WRONG
from workbench.expectation.expectation import Expectation
from workbench.expectation.observed import Observed
from workbench.floats import smallest_normal, smallest_subnormal, to_float64, unit_roundoff
from workbench.judge.blocks import failing_of
from workbench.judge.control import at_rows
from workbench.judge.recognised import (
    UNITS,
    in_units,
    judged_of,
    rows_of,
    told,
    tried,
    with_masked,
    wrong_at,
)
from workbench.judge.sensitivity import fits
from workbench.reference.losses import U
from workbench.trace.hidden import told_apart, with_mask
from workbench.trace.trace import Trace

#: scores of a run whose shares are looked at together
TOGETHER = 2**22


def understood(run: Observed) -> Observed:
    """The run with what its dumps show of conventions that nobody declared, or a preset alone, and a note of each.
    Where that leaves something wrong, it is without the fewest dumps that are right in a convention of their own, and
    without which all is right: scores and maxima in units that the others do not have, probs below the last maximum of
    their row or divided by their sum.
    """
    if run.trace.requested:
        return run
    # scores that were dumped hold what was added to them, and are judged as they are
    if not any(in_units(run, name) for name in run.dumped):
        run = Observed(told_apart(with_mask(run.trace)))
    run = with_masked(run)
    alike = told(run, tried(run))
    rows = rows_of(run)
    # scores last: without them the others tell less
    may = [name for name in judged_of(run) if name == PROBS or in_units(run, name)][::-1]
    if not wrong_at(alike, may, rows):
        return alike
    for own in chain.from_iterable(combinations(may, n) for n in range(1, len(may) + 1)):
        rest = run.only(name for name in run.dumped if name not in own)
        fields = tried(rest)
        left = rest.under(replace(rest.contract, **fields))
        names = judged_of(left)
        if all(in_units(left, name) for name in names) or wrong_at(left, names, rows):
            continue
        every = told(run, fields)
        said = {name: _other_words(every, name) for name in own}
        if all(said.values()):
            return _without(every, said)
    return alike


def _without(run: Observed, said: Mapping[str, str]) -> Observed:
    """The run, and what its kernel runs again, without some stages, with a note on each: why it is not judged."""
    again = run.trace.rerun

    def rerun(case: Case, inputs: Mapping[str, np.ndarray] | None = None) -> Trace:
        assert again is not None
        made = Observed(again(case, inputs))
        return made.only(name for name in made.dumped if name not in said).trace

    left = run.only(name for name in run.dumped if name not in said).trace
    notes = (*run.trace.notes, *(f"{name}: not judged: {why}" for name, why in said.items()))
    return Observed(replace(left, notes=notes, rerun=None if again is None else rerun))


def _other_words(run: Observed, name: str) -> str:
    """In which convention that is not the contract's a stage is right in every element, in words; empty for none."""
    if in_units(run, name):
        for unit, text in zip(UNITS, ("scaled and in base e", "in base 2", "unscaled"), strict=True):
            changed = {x for x, value in unit.items() if getattr(run.contract, x) != value}
            other = run.only([name]).under(replace(run.contract, **dict[str, Any](unit)))
            if changed and changed <= run.contract.open and _right(other, name):
                return f"it is right {text}, unlike other stages"
    if name == PROBS:
        whole = _in_one_tile(run)
        if _right(whole, name):
            return "they are right as exp(scores - row maximum), not as exp(scores - tile maximum)"
        if _are_shares(whole):
            return "they are right as normalised weights"
    return ""


def _right(run: Observed, name: str) -> bool:
    """Whether every element of a stage is within its budget, and that says anything."""
    if not fits(run, [name], run.contract) or failing_of(run, [name], "cpu"):
        return False
    ((_, found),) = at_rows(run, [name], rows_of(run))
    return not np.isin(found.state, (*UNJUDGED, *WRONG)).all()


def _in_one_tile(run: Observed) -> Observed:
    """The probs of a run, and its scores, as those of a kernel with all keys of a row in one tile."""
    kept = [name for name in (SCORES, PROBS) if name in run.dumped]
    one = replace(run.contract, block_k=run.case.seqlen_k, splits=1, split_bounds=None, tile_order="ascending")
    return run.only(kept).under(one)


def _are_shares(run: Observed) -> bool:
    """Whether the dumped probs of a run of one tile are those divided by their sum."""
    case, run = run.case, run.dequantised
    parts = np.array_split(np.arange(case.seqlen_q), case.score_count // TOGETHER + 1)
    return all(_shares_at(run, rows) for rows in parts if rows.size)


def _shares_at(run: Observed, rows: np.ndarray) -> bool:
    """The same of some rows: off by what probs and their sum may be, and by the quotient, which is rounded to their
    dtype; by less than half of a row's largest one, so that it tells.
    """
    scores = {name: x for name, x in run.readable.items() if name == SCORES}
    e = Expectation(run, scores, Box(q=rows), statistics=False)
    bounds = {name: one.bound for name, one in e.budgets((PROBS, ROW_SUM)).items()}
    probs, total = e.computed[PROBS], e.computed[ROW_SUM][..., -1:]
    own = run.dumped[PROBS]
    actual, u = to_float64(e.part.of(own, run.axes(PROBS))), unit_roundoff(own.dtype)
    with np.errstate(all="ignore"):
        share = np.where(total == 0, 0.0, probs / total)
        allowed = (bounds[PROBS] + share * (bounds[ROW_SUM] + np.zeros_like(total))) / total
        allowed = np.where(total == 0, 0.0, allowed * (1 + u) + (4 * U + u) * share)
        allowed = allowed + smallest_subnormal(own.dtype) + smallest_normal("float32")
    tells = (2 * allowed <= share).any(axis=-1) | (total == 0)[..., 0]
    absent = np.isnan(e.part.of(run.trace.sparse[PROBS], run.axes(PROBS))) if PROBS in run.trace.sparse else False
    return bool(np.all(tells) and np.all(absent | (abs(actual - share) <= allowed)))
