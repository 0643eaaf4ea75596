"""With whose lse splits of keys are merged: the share that each split has of a row, looked up among the lse of all."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from workbench.readings.finding import Finding, apart_in_words
from workbench.readings.known import by_tile
from workbench.readings.model import Model
from workbench.readings.of_scores import logs
from workbench.readings.of_values import orders
from workbench.readings.parts import Parts, divided, finite
from workbench.readings.sets import ROW_AXES, of_axes
from workbench.readings.steps import cuts
from workbench.readings.target import Target

#: share of the weights that have to have one factor a row and split, and of the rows whose lse has to be found
ENOUGH, ROWS = 0.98, 0.97
#: how far an lse may be from one that is the same, in units of how far the weights of a split may be off, and at least
TIMES, LEAST = 4.0, 2e-5
#: rows of all heads among which one is told by its lse
MOST = 4096
#: splits, at most; keys by which ranges of them begin and end
SPLITS, RANGES = 16, (16, 32, 64, 8)


@dataclass(frozen=True, eq=False)
class OtherLse:
    """Splits that are merged with the lse of other rows, or of other keys of the row."""

    edges: tuple[int, ...]  #: where splits begin
    rows: Mapping[int, np.ndarray]  #: split -> [b, h, q]: flat index of the row whose lse it has
    keys: Mapping[int, tuple[int, int]]  #: split -> the first key of those whose lse it has, and the first behind

    def __call__(self, of: Parts) -> tuple[np.ndarray, np.ndarray]:
        """out and lse."""
        with np.errstate(all="ignore"):
            found, outs = [], []
            for t, (a, b) in enumerate(zip(self.edges, (*self.edges[1:], of.scores.shape[-1]), strict=True)):
                own = lse_of(of.scores, a, b)
                p = np.exp(of.scores[..., a:b] - finite(own)[..., None])
                outs.append(divided(p @ of.values[:, :, a:b], p.sum(-1)))
                own = lse_of(of.scores, *self.keys[t]) if t in self.keys else own
                found.append(own.reshape(-1)[self.rows[t]] if t in self.rows else own)
            numbers = np.stack(found, -1)
            whole = np.logaddexp.reduce(numbers, -1)
            shares = np.exp(numbers - finite(whole)[..., None])
            return (shares[..., None] * np.stack(outs, -2)).sum(-2), whole

    @property
    def words(self) -> str:
        """What is wrong in it."""
        said = []
        last = len(self.edges) - 1
        for t in sorted({*self.rows, *self.keys}):
            split = f"keys {self.edges[t]}-" + (f"{self.edges[t + 1] - 1}" if t < last else "")
            if t in self.keys:
                said.append(f"{split} are merged with the lse of keys {self.keys[t][0]}-{self.keys[t][1] - 1}")
            else:
                said.append(f"{split} are merged with the lse of other rows: {_rows_in_words(self.rows[t])}")
        return "; ".join(said)


def lse_of(scores: np.ndarray, a: int, b: int) -> np.ndarray:
    """Of keys a to b, [b, h, q]; -inf where none is seen."""
    top, total = by_tile(scores[..., a:b], (0,))
    return np.asarray((top + np.log(total))[..., 0])


def _rows_in_words(place: np.ndarray) -> str:
    own = np.arange(place.size).reshape(place.shape)
    for said, order in zip(ORDERS, orders(place.shape), strict=True):
        if np.array_equal(place.reshape(-1), order):
            return said
    off = np.unique((place - own)[place != own])
    if len(off) == 1:
        return f"{apart_in_words(off[0], 'row')}, in {of_axes(place != own, ROW_AXES)}"
    b, h, i = (int(x[0]) for x in np.nonzero(place != own))
    there = np.unravel_index(int(place[b, h, i]), place.shape)
    return (
        f"row {i} of head {h} uses that of row {there[2]} of head {there[1]}, and {int((place != own).sum()) - 1} more"
    )


#: orders of rows, in words
ORDERS = ("stored as [query, head]", "read as [query, head]")


def of_shares(target: Target, model: Model, read: np.ndarray, allowed: np.ndarray) -> tuple[Model, list[Finding]]:
    """Whose lse the splits of a merge have, where P / e^score is one number a row and split."""
    answer = target.natural
    scores = model.scores(model.memory(answer))
    if model.kept is not None or answer.sinks is not None or read[..., 0].size > MOST:
        return model, []
    target.computes("shares")
    y = logs(read, allowed) - scores
    seen = np.isfinite(y)
    noise = np.maximum(allowed / np.where(read > 0, read, np.inf), LEAST / TIMES)
    for edges in cuts(target, y, seen):
        ends = (*edges[1:], scores.shape[-1])
        if len(edges) > SPLITS:
            continue
        parts = [y[..., a:b] for a, b in zip(edges, ends, strict=True)]
        of_split = np.stack([np.nanmedian(x, -1) for x in parts], -1)
        wide = np.repeat(of_split, np.diff((*edges, scores.shape[-1])), -1)
        if (abs(y - wide) <= TIMES * noise)[seen].mean() < ENOUGH:
            continue
        own = np.stack([lse_of(scores, a, b) for a, b in zip(edges, ends, strict=True)], -1)
        # the median of so many weights is nearer than one of them
        few = min(max(int(np.median(np.isfinite(x).sum(-1))), 1) for x in parts)
        near = TIMES * max(float(np.median(noise[seen])) / np.sqrt(few), LEAST / TIMES)
        found = _looked_up(scores, edges, own, of_split + own, near)
        if found is not None:
            wrong = answer.wrong
            return model.but(kernel=found), [
                Finding("shares", "merge_weight", found.words, int(wrong.sum()), wrong.size, {"kernel": found})
            ]
    return model, []


def _looked_up(
    scores: np.ndarray, edges: tuple[int, ...], own: np.ndarray, shares: np.ndarray, near: float
) -> OtherLse | None:
    """Of the logarithms of shares [b, h, q, split]; one of the splits has the lse that it should have."""
    known = np.isfinite(shares)
    for anchor in range(len(edges)):
        used = shares + (own[..., anchor] - shares[..., anchor])[..., None]
        rows: dict[int, np.ndarray] = {}
        keys: dict[int, tuple[int, int]] = {}
        for t in range(len(edges)):
            mine = known[..., t] & known[..., anchor]
            if not mine.any() or (abs(used[..., t] - own[..., t]) <= near)[mine].mean() >= ROWS:
                continue
            among = _range(scores, used[..., t], mine, near)
            place = None if among else _place(used[..., t], own[..., t], mine, near)
            if among:
                keys[t] = among
            elif place is not None:
                rows[t] = place
            else:
                break
        else:
            if rows or keys:
                return OtherLse(tuple(edges), rows, keys)
    return None


def _range(scores: np.ndarray, used: np.ndarray, known: np.ndarray, near: float) -> tuple[int, int] | None:
    """The keys whose lse each row has."""
    count = scores.shape[-1]
    for size in RANGES:
        cut = [*range(0, count, size), count]
        for n, a in enumerate(cut[:-1]):
            for b in cut[n + 1 :]:
                with np.errstate(invalid="ignore"):
                    if (abs(lse_of(scores, a, b) - used) <= near)[known].mean() >= ROWS:
                        return a, b
    return None


def _place(used: np.ndarray, own: np.ndarray, known: np.ndarray, near: float) -> np.ndarray | None:
    """The row that each row's number is the lse of, [b, h, q]; itself where nothing is known. Orders in which they may
    be stored first, of which numbers in 16 bits tell as well.
    """
    for order in orders(own.shape):
        off = abs(own.reshape(-1)[order].reshape(own.shape) - used)[known]
        if np.quantile(off[np.isfinite(off)], ROWS) <= 2 * near:
            return order.reshape(own.shape)
    table = np.where(np.isfinite(own), own, np.inf).reshape(-1)
    apart = abs(np.where(known, used, 0.0).reshape(-1)[:, None] - table)
    # among many numbers one is always near
    if np.sum(apart <= near, 1)[known.reshape(-1)].mean() > 1.5:
        return None
    nearest = apart.argmin(1)
    found = apart[np.arange(len(nearest)), nearest] <= near
    if found[known.reshape(-1)].mean() < ROWS:
        return None
    return np.where(known.reshape(-1) & found, nearest, np.arange(len(nearest))).reshape(own.shape)
