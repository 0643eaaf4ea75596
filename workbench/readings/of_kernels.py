"""What no weight of its own tells: which loop, merge, buffer or cast makes the natural run, of those that kernels are
known to get wrong. A kernel is kept where it leaves less than a tenth of the error of the user's own run.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from workbench.readings.casts import OF_TILES, Narrow, fixed, narrow, with_sizes
from workbench.readings.finding import Finding
from workbench.readings.lanes import Lanes, lanes
from workbench.readings.merges import Merge, MergeOfOthers, merges, nearest_of_others
from workbench.readings.model import Model
from workbench.readings.online import Loop, nearest
from workbench.readings.parts import Parts
from workbench.readings.stale import NotCleared, Skipped, left_over
from workbench.readings.steps import sizes
from workbench.readings.target import Target

#: share of the error that a kernel may leave of the user's own run
LEFT = 0.1
#: rows of a head of which kernels are tried first, where rows count by themselves
SAMPLE = 32
#: heads of these
HEADS = 2
#: error, as a share of out, above which no cast is tried
LARGE = 0.3
#: kernels of a sample that are tried on the whole run
BEST = 8

_Any = Loop | Merge | MergeOfOthers | NotCleared | Skipped | Lanes | Narrow
_STAGES: dict[type, str] = {
    Loop: "correction", Merge: "out", MergeOfOthers: "out", NotCleared: "acc", Skipped: "probs", Lanes: "row_sum", Narrow: "out",
}  # fmt: skip


class _Run:
    """The user's own run, what is known of it, and what each kernel leaves."""

    def __init__(self, target: Target, model: Model) -> None:
        answer = target.natural
        self.parts = model.parts(answer)
        self.out = model.result(answer.out)
        self.known = np.isfinite(self.out)
        base = model.but(place=None, columns=None, added=0.0, lost=None).predicted(answer)
        self.off = np.where(self.known, (self.out - base) ** 2, 0.0)
        rows = self.out.shape[2]
        by_row = self.off.sum((0, 1, 3))
        first = max(range(0, rows, SAMPLE), key=lambda i: by_row[i : i + SAMPLE].sum())
        self.rows = slice(first, min(first + SAMPLE, rows))
        heads = self.off[:, :, self.rows].sum((2, 3))
        self.batch = int(heads.sum(1).argmax())
        self.of_heads = np.sort(np.argsort(-heads[self.batch])[:HEADS])
        self.sample = self._sampled()
        at = np.ix_([self.batch], self.of_heads)
        out, known, off = (x[:, :, self.rows][at] for x in (self.out, self.known, self.off))
        self.of_sample = out, known, max(float(off.sum()), 1e-300)
        size = np.where(self.known, self.out, 0.0) ** 2
        #: whether the error is larger than casts make one
        self.large = bool(self.off.sum() > LARGE**2 * size.sum())

    def _sampled(self) -> Parts:
        p = self.parts.of_rows(self.rows)
        at = np.ix_([self.batch], self.of_heads)
        return p.but(
            q=p.q[at], k=p.k[at], values=p.values[at], start=p.start[at],
            fixed=None if p.fixed is None else p.fixed[at],
            factor=p.factor if np.ndim(p.factor) < 2 else np.broadcast_to(p.factor, (*p.q.shape[:2], *p.factor.shape[2:]))[at],
            sinks=None if p.sinks is None else np.broadcast_to(p.sinks, (*p.q.shape[:2], 1))[at],
        )  # fmt: skip

    def left(self, kernel: _Any) -> float:
        """Share of the square of the error that it leaves."""
        return _left(kernel, self.parts, self.out, self.known, self.off)

    def left_of_sample(self, out: np.ndarray) -> float:
        """The same of out of the sample."""
        share = float(np.where(self.of_sample[1], (self.of_sample[0] - out) ** 2, 0.0).sum() / self.of_sample[2])
        return share if np.isfinite(share) else np.inf

    def near(self, told: Sequence[_Any]) -> list[_Any]:
        """Those that leave least of the sample."""
        with np.errstate(all="ignore"):
            some = [self.left_of_sample(one(self.sample)[0]) for one in told]
        return [told[i] for i in sorted(np.argsort(some, kind="stable")[:BEST])]

    def best(self, told: Sequence[_Any]) -> tuple[float, _Any] | None:
        """The first of those that leave as little as any."""
        found = [(self.left(one), one) for one in told]
        least = min((left for left, _ in found), default=np.inf)
        return next(((left, one) for left, one in found if left <= 1.5 * least + 1e-12), None)


def _left(kernel: _Any, parts: Parts, out: np.ndarray, known: np.ndarray, off: np.ndarray) -> float:
    with np.errstate(all="ignore"):
        made = kernel(parts)[0]
        share = float(np.where(known, (out - made) ** 2, 0.0).sum() / max(off.sum(), 1e-300))
    return share if np.isfinite(share) else np.inf


def kernels(
    target: Target, model: Model, *, stale: bool = False, casts: bool = True
) -> tuple[Model, list[Finding]]:
    """A kernel that leaves less than a tenth of the error, of one family after the other; `stale`: of buffers alone."""
    if model.kept is not None or model.by_query or model.mixed is not None or model.kernel is not None:
        return model, []
    model = model.but(step=None, denominator=None, flush=-np.inf)
    run = _Run(target, model)
    keys, rows = target.case.seqlen_k, target.case.seqlen_q
    tiles = sizes(target)
    hidden = not np.isfinite(model.start).all()
    for family in (_loops, _merges, _left_over, _others, _lanes):
        if stale and family is not _left_over:
            continue
        one = run.best(family(run, tiles, keys, rows, hidden))
        if one is not None and one[0] < LEFT**2:
            return _found(target, model, one[1], one[0])
    return (model, []) if stale or run.large or not casts else _narrow(target, model, run, [keys, *tiles])


def _loops(run: "_Run", tiles: list[int], keys: int, rows: int, hidden: bool) -> Sequence[_Any]:
    return nearest(run.sample, tiles, run.left_of_sample, BEST)


def _merges(run: "_Run", tiles: list[int], keys: int, rows: int, hidden: bool) -> Sequence[_Any]:
    return run.near(list(merges(tiles)))


def _left_over(run: "_Run", tiles: list[int], keys: int, rows: int, hidden: bool) -> Sequence[_Any]:
    return list(left_over(tiles, rows, hidden))


def _others(run: "_Run", tiles: list[int], keys: int, rows: int, hidden: bool) -> Sequence[_Any]:
    rows = np.arange(run.rows.start, run.rows.stop)
    at = np.ix_([run.batch], run.of_heads, rows)
    return nearest_of_others(run.parts, at, tiles, run.left_of_sample, BEST)


def _lanes(run: "_Run", tiles: list[int], keys: int, rows: int, hidden: bool) -> Sequence[_Any]:
    return run.near(list(lanes(tiles, keys)))


def _narrow(target: Target, model: Model, run: _Run, tiles: Sequence[int]) -> tuple[Model, list[Finding]]:
    """A cast: its site and format first, with two tiles, then with all."""
    case, dims = target.case, run.parts.q.shape[-1]
    two = (tiles[0], 16)
    tried = [
        one
        for size in tiles
        for one in narrow(case.dtype, dims, size)
        if size in two or one.site in OF_TILES
    ]  # fmt: skip
    tried += list(fixed(case.dtype, tiles[0]))
    some = dict.fromkeys(x for one in run.near(tried)[:8] for x in with_sizes(one, tiles, case.dtype))
    one = run.best(run.near(list(some)))
    if one is None or one[0] >= LEFT**2:
        return model, []
    return _found(target, model, one[1], one[0])


def _found(target: Target, model: Model, kernel: _Any, left: float) -> tuple[Model, list[Finding]]:
    wrong = target.natural.wrong
    data = {"kernel": kernel, "left": float(np.sqrt(left))}
    reading = "cast" if isinstance(kernel, Narrow) else type(kernel).__name__.lower()
    found = Finding(reading, _STAGES[type(kernel)], kernel.words, int(wrong.sum()), wrong.size, data)
    return model.but(kernel=kernel), [found]
