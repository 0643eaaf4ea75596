"""What no weight of its own tells: which loop, merge, buffer or cast makes the natural run, of those that kernels are
known to get wrong. A kernel is kept where it leaves less than a tenth of the error of the user's own run.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from workbench.readings.casts import OF_TILES, Narrow, fixed, narrow, with_sizes
from workbench.readings.finding import Finding
from workbench.readings.lanes import Lanes, lanes
from workbench.readings.merges import Merge, merges
from workbench.readings.model import Model
from workbench.readings.online import Loop, loops
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
#: kernels of a sample that are tried on the whole run
BEST = 12

_Any = Loop | Merge | NotCleared | Skipped | Lanes | Narrow
_STAGES: dict[type, str] = {
    Loop: "correction", Merge: "out", NotCleared: "acc", Skipped: "probs", Lanes: "row_sum", Narrow: "out",
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

    def _sampled(self) -> Parts:
        p = self.parts.of_rows(self.rows)
        at = np.ix_([self.batch], self.of_heads)
        return p.but(
            q=p.q[at], k=p.k[at], values=p.values[at], start=p.start[at],
            fixed=None if p.fixed is None else p.fixed[at],
            factor=p.factor if np.ndim(p.factor) < 2 else np.broadcast_to(p.factor, (*p.q.shape[:2], *p.factor.shape[2:]))[at],
            sinks=None if p.sinks is None else np.broadcast_to(p.sinks, (*p.q.shape[:2], 1))[at],
        )  # fmt: skip

    def left(self, kernel: _Any, *, whole: bool) -> float:
        """Share of the square of the error that it leaves."""
        at = np.ix_([self.batch], self.of_heads)
        out, known, off = self.out, self.known, self.off
        if not whole:
            out, known, off = (x[:, :, self.rows][at] for x in (out, known, off))
        try:
            made = kernel(self.parts if whole else self.sample)[0]
        except (ValueError, IndexError):  # of tiles that do not fit
            return np.inf
        share = float(np.where(known, (out - made) ** 2, 0.0).sum() / max(off.sum(), 1e-300))
        return share if np.isfinite(share) else np.inf

    def best(self, of: Iterable[_Any], *, sampled: bool) -> tuple[float, _Any] | None:
        """The first of those that leave as little as any."""
        told = list(of)
        if sampled and len(told) > BEST:
            some = [self.left(one, whole=False) for one in told]
            order = np.argsort(some, kind="stable")
            nearest = [i for i in order if some[i] <= max(4 * LEFT**2, 4 * some[order[0]])][:BEST]
            told = [told[i] for i in sorted(nearest)]
        found = [(self.left(one, whole=True), one) for one in told]
        least = min((left for left, _ in found), default=np.inf)
        return next(((left, one) for left, one in found if left <= 1.5 * least + 1e-12), None)


def kernels(target: Target, model: Model) -> tuple[Model, list[Finding]]:
    """A kernel that leaves less than a tenth of the error, of one family after the other."""
    if model.kept is not None or model.by_query or model.mixed is not None:
        return model, []
    model = model.but(step=None, denominator=None, flush=-np.inf, kernel=None)
    run = _Run(target, model)
    keys, rows = target.case.seqlen_k, target.case.seqlen_q
    tiles = sizes(target)
    families: list[tuple[Iterable[_Any], bool]] = [
        (loops(tiles, keys), True),
        (merges(tiles), True),
        (left_over(tiles, rows), False),
        (lanes(tiles, keys), True),
    ]
    for family, sampled in families:
        one = run.best(family, sampled=sampled)
        if one is not None and one[0] < LEFT**2:
            return _found(target, model, one[1], one[0])
    return _narrow(target, model, run, [keys, *tiles])


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
    shares = [run.left(one, whole=False) for one in tried]
    order = np.argsort(shares, kind="stable")[:8]
    some = dict.fromkeys(x for i in sorted(order) for x in with_sizes(tried[i], tiles, case.dtype))
    one = run.best(some, sampled=True)
    if one is None or one[0] >= LEFT**2:
        return model, []
    return _found(target, model, one[1], one[0])


def _found(target: Target, model: Model, kernel: _Any, left: float) -> tuple[Model, list[Finding]]:
    wrong = target.natural.wrong
    data = {"kernel": kernel, "left": float(np.sqrt(left))}
    reading = "cast" if isinstance(kernel, Narrow) else type(kernel).__name__.lower()
    found = Finding(reading, _STAGES[type(kernel)], kernel.words, int(wrong.sum()), wrong.size, data)
    return model.but(kernel=kernel), [found]
