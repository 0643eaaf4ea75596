"""Keys with weight 0 were loaded from another key's slot: pair each with a key that counts twice."""

from typing import NamedTuple

import numpy as np

from workbench.readings.finding import Finding, spans
from workbench.readings.maps import in_words
from workbench.readings.model import Model
from workbench.readings.sets import ROW_AXES, of_axes

#: how far ln of a weight may be from that of a whole number of keys
NEAR = 0.05


def of_all_rows(model: Model, found: Finding) -> tuple[Model, list[Finding]]:
    """Rows of V that stand elsewhere, where keys are lost and others doubled alike in all rows that see them: those
    that are doubled in the place of those that are lost, in the order in which they stand.
    """
    told = _lost(model, found)
    if told is None or not told.alike:
        return model, []
    lost, whole, _ = told
    seen = np.isfinite(model.start)
    of_keys = np.asarray(lost.any((0, 1, 2)))
    b, h, i = np.unravel_index(int(seen.sum(-1).argmax()), seen.shape[:3])
    keys, dims = lost.shape[-1], found.data["dims"]
    rows = np.arange(keys)
    rows[of_keys & seen[b, h, i]] = np.repeat(np.arange(keys), (whole[b, h, i] - 1).astype(int))
    index = rows[:, None] * dims + np.arange(dims)
    moved_ = int(of_keys.sum()) * dims
    made = Finding("elements", "out", "V is read wrong: " + in_words(index, dims), moved_, index.size, {"v": index})
    return model.but(sources={**model.sources, "v": index}), [made]


class _Lost(NamedTuple):
    """Keys that weigh nothing in a row, where others count as often more."""

    lost: np.ndarray  #: bool [b, h, q, k]
    times: np.ndarray  #: how often each of the others counts
    alike: bool  #: whether all rows that see these keys lose them


def _lost(model: Model, found: Finding) -> _Lost | None:
    """Those of what was read; None where none are lost, or the others do not count as often more."""
    table = np.asarray(found.data["table"])
    seen = np.isfinite(model.start)
    lost = np.asarray(seen & np.isneginf(table))
    with np.errstate(all="ignore"):
        times = np.where(seen & ~lost, np.exp(table - model.start), 1.0)
    whole = np.round(times)
    if not lost.any() or np.any(table[~seen] != -np.inf) or np.any(abs(times - whole) > NEAR * whole):
        return None
    if np.any(lost.sum(-1) != (whole - 1).sum(-1)):
        return None
    return _Lost(lost, whole, np.array_equal(lost, seen & np.asarray(lost.any((0, 1, 2)))))


def moved(model: Model, found: Finding) -> tuple[Model, list[Finding]]:
    """The same of what was read where all scores are 0, `found` by `of_scores.start`."""
    told = _lost(model, found)
    if told is None or told.alike:  # then a map of V tells in full which of its rows stand elsewhere
        return model, []
    lost, whole, _ = told
    source = np.broadcast_to(np.arange(lost.shape[-1]), lost.shape).copy()
    for b, h, i in np.argwhere(lost.any(-1)):
        of = np.repeat(np.arange(lost.shape[-1]), (whole[b, h, i] - 1).astype(int))
        source[b, h, i, lost[b, h, i]] = of  # in the order in which they stand
    rows = np.asarray(lost.any(-1))
    first = np.unravel_index(int(lost.sum(-1).argmax()), rows.shape)
    one = np.flatnonzero(lost[first])
    text = (
        f"in {of_axes(rows, ROW_AXES)} some keys use another key's V: in row {first[2]}, keys {spans(one)} use the V "
        f"of keys {spans(source[first][one])}"
    )
    made = Finding("moved", "out", text, int(lost.sum()), lost.size, {"moved": source})
    return model.but(moved=source), [made]
