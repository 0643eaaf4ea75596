"""Conventions of a kernel's dumps that nobody declared, or a preset alone, read off what it dumped: the number that
stands for -inf, the units of scores and maxima, the order of tiles, what rows without keys hold.

No arithmetic hangs on them: a stage in another unit is as right, and what is wrong in every unit stays wrong.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from workbench.case.box import WHOLE, Box
from workbench.case.case import Case
from workbench.case.contract import Contract
from workbench.case.presets import words
from workbench.case.stages import OUT, RESULTS
from workbench.expectation.elements import WRONG
from workbench.expectation.expectation import Expectation
from workbench.expectation.observed import Observed
from workbench.floats import smallest_normal, smallest_subnormal, to_float64, unit_roundoff
from workbench.judge.control import at_rows, sampled
from workbench.judge.sensitivity import fits
from workbench.reference.losses import U
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
UNITS = ({"base2": False, "scores_scaled": True}, {"base2": True, "scores_scaled": True}, {"scores_scaled": False})


def recognised(run: Observed) -> Observed:
    """The run with what its dumps show of conventions that nobody declared, and a note of each."""
    if not run.contract.open or run.trace.requested:
        return run
    run = _told(run, {**_masked(run), **_without_keys(run)})
    return _read_otherwise(_told(run, _tried(run)))


def _told(run: Observed, told: Mapping[str, Any]) -> Observed:
    """The run, and what its kernel runs again, of a kernel of which the fields `told` were seen."""
    told = {name: value for name, value in told.items() if not _same(value, getattr(run.contract, name))}
    if not told:
        return run
    before, trace, rerun = run.contract, run.trace, run.trace.rerun
    seen = {name: value for name, value in told.items() if name in before.open}
    contract = replace(
        before,
        **told,
        assumed=(*before.assumed, *(name for name in seen if name in before.of_preset)),
        of_preset=tuple(name for name in before.of_preset if name not in seen),
    )

    def again(case: Case, inputs: Mapping[str, np.ndarray] | None = None) -> Trace:
        assert rerun is not None
        return _told(Observed(rerun(case, inputs)), told).trace

    said = {name: getattr(before, name) for name in seen if name in before.of_preset}
    note = f"read off what was dumped: {words(told)}{f' (the preset says {words(said)})' if said else ''}"
    notes, rerun = (*trace.notes, note), None if rerun is None else again
    return Observed(replace(trace, contract=contract, notes=notes, rerun=rerun))


def _same(a: Any, b: Any) -> bool:
    return bool(a == b or (a != a and b != b))  # NaN is itself


def _given(run: Observed, name: str) -> np.ndarray:
    """A dumped stage in float64, NaN where it was not given."""
    sparse = run.trace.sparse.get(name)
    values = to_float64(run.dumped[name])
    return values if sparse is None else np.where(np.isnan(sparse), np.nan, values)


def _dont_care(run: Observed) -> DontCare:
    """Which keys each row sees; of a bias of -inf it sees none."""
    visible = WHOLE.visible(run.case, run.trace.inputs)
    added = run.trace.added(WHOLE)
    if added is not None:
        visible = visible & (added.bias != -np.inf)
    return DontCare(run.contract, run.tiling, lambda: visible, WHOLE.present(run.case))


def _masked(run: Observed) -> dict[str, Any]:
    """The number that most hidden scores, maxima and lse hold, or are near where a mask was added to them: HUGE or lower,
    and lower than most visible ones. What is hidden and holds another number, or is visible and holds this one, is
    wrong.
    """
    if "mask_sentinel" not in run.contract.open:
        return {}
    bias = to_float64(run.trace.inputs["bias"]) if "bias" in run.trace.inputs else np.zeros(1)
    lowest = bias.min(initial=0.0, where=np.isfinite(bias))
    found, see = [], _dont_care(run)
    for name in run.dumped:
        stage = run.known[name]
        if not stage.unit or name in run.unjudgeable:
            continue
        values = _given(run, name)
        hidden = np.broadcast_to(see.hidden(stage), values.shape)
        some = (..., slice(None, None, -(-values.size // ENOUGH)), slice(None))  # of 10^9 scores a median takes a minute
        values, hidden = values[some], hidden[some]
        numbers, visible = (values[of & np.isfinite(values)] for of in (hidden, ~hidden))
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
        if field not in run.contract.of_preset:
            continue
        values = _given(run, name)
        empty = _dont_care(run).hidden(run.known[name])
        held = np.unique(values[np.broadcast_to(empty[..., None] if name == OUT else empty, values.shape)])
        if held.size == 1 and held[0] in (usual, -usual):
            found[field] = float(held[0])
    return found


def _tried(run: Observed) -> dict[str, Any]:
    """The conventions under which the fewest stages are wrong, none where no others make fewer so. Of conventions that
    are not those of the vocabulary a stage has to tell that has no units itself: scores alone may be wrong by as much.
    """
    judged = [name for name in run.dumped if run.known[name].group != "codes" and name not in run.unjudgeable]
    telling = [name for name in judged if run.known[name].unit or run.known[name].by_tile]
    rows = _rows(run)
    if not telling or not _wrong(run, telling, rows):
        return {}
    found: dict[str, Any] = {}
    wrong = _wrong(run, judged, rows)
    while wrong:
        best: dict[str, Any] = {}
        for change in _changes(run.contract):
            other = run.under(replace(run.contract, **change))
            if not fits(run, judged, other.contract):
                continue
            still = _wrong(other, [name for name in run.dumped if name not in other.unjudgeable], rows)
            told = any(not run.known[name].unit for name in wrong - still)
            if len(still) < len(wrong) and (told or change.items() <= PLAIN.items()):
                best, wrong = change, still
        if not best:
            break
        found |= best
        run = run.under(replace(run.contract, **best))
    return found


def _changes(contract: Contract) -> Iterator[dict[str, Any]]:
    """Other conventions than those of a contract, one at a time, of fields that nobody declared."""
    for unit in UNITS:
        change = {name: value for name, value in unit.items() if getattr(contract, name) != value}
        if change and {*change} <= contract.open:
            yield change
    if contract.block_k is not None and "tile_order" in contract.open:
        yield {"tile_order": "ascending" if contract.tile_order == "descending" else "descending"}
    if "partial_stats" in contract.of_preset and contract.stores_lse:
        yield {"partial_stats": "max,sum", "partials": "unnormalised"}
        yield {"partial_stats": "max,sum"}


def _rows(run: Observed) -> np.ndarray:
    """The queries that are looked at; of a stage of which only some elements were given those of these."""
    given = [
        np.unique(np.nonzero(~np.isnan(errors))[run.axes(name).index("q")])
        for name, errors in run.trace.sparse.items()
        if "q" in run.axes(name)
    ]
    if not given:
        return sampled(run.case, ROWS)
    rows = np.unique(np.concatenate(given))
    return rows[np.linspace(0, rows.size - 1, min(rows.size, ROWS)).round().astype(int)]


def _wrong(run: Observed, names: Sequence[str], rows: np.ndarray) -> set[str]:
    """Those of the stages `names` of which an element at `rows` is outside its budget."""
    return {name for name, found in at_rows(run, names, rows) if np.isin(found.state, WRONG).any()}


def _read_otherwise(run: Observed) -> Observed:
    """The run without dumps that are right in a convention of their own, where all else is right without them: scores
    and maxima in units that the others do not have, probs below the last maximum of their row or divided by their sum.
    """
    names = [name for name in run.dumped if run.known[name].group != "codes" and name not in run.unjudgeable]
    rows = _rows(run)
    suspects = [name for name in _wrong(run, names, rows) if name not in RESULTS]
    said = {name: why for name in run.dumped if name in suspects and (why := _other_words(run, name))}
    if not said:
        return run
    rest = run.only(name for name in run.dumped if name not in said)
    telling = [name for name in rest.dumped if not rest.known[name].unit and name not in rest.unjudgeable]
    left = [name for name in rest.dumped if rest.known[name].group != "codes" and name not in rest.unjudgeable]
    if not telling or _wrong(rest, left, rows):
        return run
    again = run.trace.rerun

    def rerun(case: Case, inputs: Mapping[str, np.ndarray] | None = None) -> Trace:
        assert again is not None
        made = Observed(again(case, inputs))
        return made.only(name for name in made.dumped if name not in said).trace

    notes = (*run.trace.notes, *(f"{name} is not judged: {why}" for name, why in said.items()))
    return Observed(replace(rest.trace, notes=notes, rerun=None if again is None else rerun))


def _other_words(run: Observed, name: str) -> str:
    """In which convention a stage is right in every element, in words; empty for none."""
    every = np.arange(run.case.seqlen_q)
    if run.known[name].unit in ("scores", "statistic"):
        alone = run.only([name])
        orders = ("ascending", "descending") if "tile_order" in run.contract.open else (run.contract.tile_order,)
        texts = ("in natural units", "in base 2", "without the scale")
        for (unit, text), order in product(zip(UNITS, texts, strict=True), orders):
            other = alone.under(replace(run.contract, **unit, tile_order=order))
            open_ = {x for x, value in unit.items() if getattr(run.contract, x) != value} <= run.contract.open
            if open_ and fits(alone, [name], other.contract) and not _wrong(other, [name], every):
                return f"it is {text}, and right so, while other stages are not"
    if name == "probs":
        whole = _in_one_tile(run)
        if not _wrong(whole, [name], every):
            return "they are right as exp(scores - the maximum of the row), not of the tile"
        if _are_shares(whole, every):
            return "they are right as weights that add up to 1, divided by row_sum"
    return ""


def _in_one_tile(run: Observed) -> Observed:
    """The probs of a run, and its scores, as those of a kernel with all keys of a row in one tile."""
    kept = [name for name in ("scores", "probs") if name in run.dumped]
    one = replace(run.contract, block_k=run.case.seqlen_k, splits=1, split_bounds=None, tile_order="ascending")
    return run.only(kept).under(one)


def _are_shares(run: Observed, rows: np.ndarray) -> bool:
    """Whether the dumped probs of a run of one tile are those divided by their sum: off by what both may be, and by the
    quotient, which is rounded to their dtype.
    """
    run = run.attention
    e = Expectation(run, {name: x for name, x in run.readable.items() if name == "scores"}, Box(q=rows), statistics=False)
    bounds = e.budgets(("probs", "row_sum"))
    probs, total = e.computed["probs"], e.computed["row_sum"][..., -1:]
    actual, dtype = e.part.of(_given(run, "probs"), run.axes("probs")), run.dumped["probs"].dtype
    with np.errstate(all="ignore"):
        share = np.where(total == 0, 0.0, probs / total)
        of_sum = bounds["row_sum"].bound[..., -1:] if np.ndim(bounds["row_sum"].bound) else bounds["row_sum"].bound
        allowed = (bounds["probs"].bound + share * of_sum) / total
        u, least = unit_roundoff(dtype), smallest_subnormal(dtype) + smallest_normal("float32")
        allowed = np.where(total == 0, 0.0, allowed * (1 + u) + (4 * U + u) * share) + least
    return bool(np.all(np.isnan(actual) | (abs(actual - share) <= allowed)))
