"""Conventions of a kernel's dumps that nobody declared, or a preset alone, read off what it dumped: the number that
stands for -inf, the units of scores and maxima, the order of tiles, what rows without keys hold.

No arithmetic hangs on them: a stage in another unit is as right, and what is wrong in every unit stays wrong.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from workbench.case import masks
from workbench.case.box import WHOLE
from workbench.case.case import Case
from workbench.case.contract import Contract
from workbench.case.presets import words
from workbench.case.promises import LIBRARIES
from workbench.case.stages import OUT, RESULTS, SCORES
from workbench.expectation.elements import WRONG
from workbench.expectation.observed import Observed
from workbench.floats import to_float64
from workbench.judge.control import at_rows, sampled
from workbench.judge.sensitivity import fits
from workbench.trace.dont_care import DontCare
from workbench.trace.trace import Trace

#: the largest number that is taken for a stand-in of -inf: BERT's
HUGE = -1e4
#: share of it by which scores to which it was added may differ
NEAR = 0.1
#: elements of a stage that tell it
ENOUGH = 2**20
#: rows on which conventions are tried
ROWS = 16
#: what is meant where nobody says anything
PLAIN: Mapping[str, Any] = {
    **{"base2": False, "scores_scaled": True, "tile_order": "ascending"},
    **{"partial_stats": "max,sum", "partials": "unnormalised"},
}
#: whether scores and maxima are in base 2, and whether they hold the scale
UNITS: Sequence[Mapping[str, Any]] = (
    {"base2": False, "scores_scaled": True},
    {"base2": True, "scores_scaled": True},
    {"scores_scaled": False},
)
#: fields that are read off dumps
CONVENTIONS = frozenset((*PLAIN, "mask_sentinel", "empty_out", "empty_lse"))


def with_masked(run: Observed) -> Observed:
    """The run with what stands for -inf in its dumps, and in rows without keys."""
    return told(run, {**_masked(run), **_without_keys(run)})


def told(run: Observed, fields: Mapping[str, Any]) -> Observed:
    """The run, and what its kernel runs again, of a kernel whose dumps show these fields of its contract."""
    fields = {name: value for name, value in fields.items() if not _same(value, getattr(run.contract, name))}
    if not fields:
        return run
    before, trace, rerun = run.contract, run.trace, run.trace.rerun
    presumed = [name for name in fields if name in before.of_preset]
    of_preset = tuple(name for name in before.of_preset if name not in fields)
    contract = replace(before, **fields, assumed=(*before.assumed, *presumed), of_preset=of_preset)

    def again(case: Case, inputs: Mapping[str, np.ndarray] | None = None) -> Trace:
        assert rerun is not None
        return told(Observed(rerun(case, inputs)), fields).trace

    said = {name: getattr(before, name) for name in presumed}
    note = f"the dump shows {words(fields)}{f'; the preset has {words(said)}' if said else ''}"
    notes = (*trace.notes, note)
    return Observed(replace(trace, contract=contract, notes=notes, rerun=None if rerun is None else again))


def _same(a: Any, b: Any) -> bool:
    return bool(a == b or (a != a and b != b))  # NaN is itself


def _dont_care(run: Observed) -> DontCare:
    """Which keys each row sees; of a bias of -inf it sees none."""
    visible = WHOLE.visible(run.case, run.trace.inputs)
    if "bias" in run.trace.inputs:
        visible = visible & (masks.spread(run.case, run.trace.inputs["bias"]) != -np.inf)
    return DontCare(run.contract, run.tiling, lambda: visible, WHOLE.present(run.case))


def _masked(run: Observed) -> dict[str, Any]:
    """The number that most hidden scores, maxima and lse hold, or are near where a mask was added to them: HUGE or
    lower, and twice as low as most visible ones. What is hidden and holds another number, or is visible and holds this
    one, is wrong. lse alone shows none: callers merge by it, and a row without keys has -inf there
    (flashinfer-ai/flashinfer#4267).
    """
    if "mask_sentinel" not in run.contract.open:
        return {}
    bias = to_float64(run.trace.inputs["bias"]) if "bias" in run.trace.inputs else np.zeros(1)
    lowest = bias.min(initial=0.0, where=np.isfinite(bias))
    found: list[float] = []
    see = _dont_care(run)
    for name in run.dumped:
        stage = run.known[name]
        if not stage.unit or name in run.unjudgeable or (name in RESULTS and not found):
            continue
        whole = run.dumped[name]
        every = -(-whole.size // ENOUGH) if stage.axes.startswith("bhq") else 1  # a median of 10^9 takes a minute
        values, hidden = (x[:, :, ::every] for x in (whole, np.broadcast_to(see.hidden(stage), whole.shape)))
        values = to_float64(values)
        there = np.isfinite(values)
        if name in run.trace.sparse:
            there &= ~np.isnan(run.trace.sparse[name][:, :, ::every])
        numbers, visible = (values[of & there] for of in (hidden, ~hidden))
        if not numbers.size:
            continue
        most = float(np.median(numbers))
        alike = abs(numbers - most) <= NEAR * abs(most)
        few = 2 * np.count_nonzero(visible <= most / 2) <= visible.size
        if most <= (1 - NEAR) * HUGE and lowest > most / 2 and alike.mean() > 0.5 and few:
            found.append(float(f"{most:.4g}"))
    if found:
        return {"mask_sentinel": max(found)}
    # what a preset has is no reason to take a bias for a mask
    presumed = "mask_sentinel" in run.contract.of_preset and lowest <= run.contract.mask_sentinel / 2
    return {"mask_sentinel": -math.inf} if presumed else {}


def _without_keys(run: Observed) -> dict[str, Any]:
    """What all rows without keys hold where a preset alone says what: nothing, -inf or inf."""
    found: dict[str, Any] = {}
    for name in (name for name in RESULTS if name in run.dumped):
        field, usual = run.known[name].empty, 0.0 if name == OUT else -math.inf
        if field not in run.contract.of_preset or getattr(run.contract, field) == LIBRARIES:
            continue
        values, empty = run.dumped[name], _dont_care(run).hidden(run.known[name])
        empty = np.broadcast_to(empty[..., None] if name == OUT else empty, values.shape)
        held = np.unique(to_float64(values[empty & ~np.isnan(run.trace.sparse.get(name, np.zeros(())))]))
        if held.size == 1 and held[0] in (usual, -usual):
            found[field] = float(held[0])
    return found


def tried(run: Observed) -> dict[str, Any]:
    """The conventions under which the fewest stages are wrong, none where no others make fewer so. Of conventions that
    are not those of the vocabulary a stage has to tell that has no units itself: scores alone may be wrong by as much.
    """
    judged = judged_of(run)
    some = [name for name in judged if in_units(run, name) or run.known[name].by_tile]
    rows = rows_of(run)
    if not some or not wrong_at(run, some, rows):
        return {}
    found: dict[str, Any] = {}
    wrong = wrong_at(run, judged, rows)
    while wrong:
        best: dict[str, Any] = {}
        for change in _changes(run.contract):
            other = run.under(replace(run.contract, **change))
            if not fits(run, judged, other.contract):
                continue
            still = wrong_at(other, judged_of(other), rows)
            tells = any(not in_units(run, name) for name in (wrong - still if still else judged))
            if len(still) < len(wrong) and (tells or change.items() <= PLAIN.items()):
                best, wrong = change, still
        if not best:
            break
        found |= best
        run = run.under(replace(run.contract, **best))
    return found


def _changes(contract: Contract) -> Iterator[dict[str, Any]]:
    """Other conventions than those of a contract, one at a time, of fields that nobody declared."""
    orders = ({"tile_order": "ascending"}, {"tile_order": "descending"}) if contract.block_k is not None else ()
    stats = ({"partial_stats": "max,sum", "partials": "unnormalised"}, {"partial_stats": "max,sum"})
    for one in (*UNITS, *orders, *(stats if "partial_stats" in contract.of_preset else ())):
        change = {name: value for name, value in one.items() if getattr(contract, name) != value}
        if change and {*change} <= contract.open:
            yield change


def in_units(run: Observed, name: str) -> bool:
    """Whether a stage is in the units in which a contract has scores."""
    return run.known[name].unit in (SCORES, "statistic")


def judged_of(run: Observed) -> list[str]:
    """The dumped stages of attention that can be judged."""
    return [name for name in run.dumped if run.known[name].group != "codes" and name not in run.unjudgeable]


def rows_of(run: Observed) -> np.ndarray:
    """The queries that are looked at; of a stage of which only some elements were given those of these."""
    some = [
        np.unique(np.nonzero(~np.isnan(errors))[run.axes(name).index("q")])
        for name, errors in run.trace.sparse.items()
        if "q" in run.axes(name)
    ]
    if not some:
        return sampled(run.case, ROWS)
    rows = np.unique(np.concatenate(some))
    return rows[np.linspace(0, rows.size - 1, min(rows.size, ROWS)).round().astype(int)]


def wrong_at(run: Observed, names: Sequence[str], rows: np.ndarray) -> set[str]:
    """Those of the stages `names` of which an element at `rows` is outside its budget."""
    return {name for name, found in at_rows(run, names, rows) if np.isin(found.state, WRONG).any()}
