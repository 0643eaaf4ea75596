"""Keys whose weight is multiplied by another key's values, in some rows: a tile that was not loaded, a slot that was
overwritten. Where all scores are 0, a key then weighs nothing, and another one twice.
"""

import numpy as np

from workbench.readings.finding import Finding, spans
from workbench.readings.model import Model

#: how far ln of a weight may be from that of a whole number of keys
NEAR = 0.05


def moved(model: Model, found: Finding) -> tuple[Model, list[Finding]]:
    """The same of what was read where all scores are 0, `found` by `of_scores.start`."""
    table = np.asarray(found.data["table"])
    seen = np.isfinite(model.start)
    lost = seen & np.isneginf(table)
    with np.errstate(all="ignore"):
        times = np.where(seen & ~lost, np.exp(table - model.start), 1.0)
    whole = np.round(times)
    if not lost.any() or np.any(table[~seen] != -np.inf) or np.any(abs(times - whole) > NEAR * whole):
        return model, []
    if np.any(lost.sum(-1) != (whole - 1).sum(-1)):
        return model, []
    if np.array_equal(lost, seen & lost.any((0, 1, 2))):
        return model, []  # all rows that see these keys: rows of V stand elsewhere, which its map tells in full
    source = np.broadcast_to(np.arange(table.shape[-1]), table.shape).copy()
    for b, h, i in np.argwhere(lost.any(-1)):
        of = np.repeat(np.arange(table.shape[-1]), (whole[b, h, i] - 1).astype(int))
        source[b, h, i, lost[b, h, i]] = of  # in the order in which they stand
    rows = lost.any(-1)
    of_heads = "" if rows.any((0, 2)).all() else f" of heads {spans(np.flatnonzero(rows.any((0, 2))))}"
    first = np.unravel_index(int(lost.sum(-1).argmax()), rows.shape)
    one = np.flatnonzero(lost[first])
    text = (
        f"in rows {spans(np.flatnonzero(rows.any((0, 1))))}{of_heads} values of keys are those of others: in row "
        f"{first[2]} of keys {spans(one)} those of keys {spans(source[first][one])}"
    )
    made = Finding("moved", "out", text, int(lost.sum()), lost.size, {"moved": source})
    return model.but(moved=source), [made]
