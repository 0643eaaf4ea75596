"""What no weight of its own tells: which loop, merge, buffer or cast makes the natural run, of those that kernels are
known to get wrong. A kernel is kept where it leaves less than a tenth of the error of the user's own run.
"""

from collections.abc import Sequence
from functools import partial
from typing import TypeAlias, TypeVar

import numpy as np

from workbench.readings.beyond import Beyond, beyond
from workbench.readings.casts import OF_TILES, Narrow, fixed, narrow, usual, with_sizes
from workbench.readings.finding import Finding
from workbench.readings.lanes import Lanes, lanes
from workbench.readings.merges import Merge, MergeOfOthers, merges, nearest_of_others
from workbench.readings.model import Model
from workbench.readings.online import Loop, nearest
from workbench.readings.parts import Parts
from workbench.readings.regions import Piece, Pieces, WithoutSinks, completed
from workbench.readings.stale import NotCleared, Skipped, left_over
from workbench.readings.steps import sizes
from workbench.readings.taken import Taken
from workbench.readings.taken import nearest as nearest_taken
from workbench.readings.target import Target

#: share of the error that a kernel may leave of the user's own run
LEFT = 0.1
#: the same where no other is looked for
NOTHING = 0.02
#: rows of a head of which kernels are tried first, where rows count by themselves
SAMPLE = 32
#: heads of these
HEADS = 2
#: error, as a share of out, above which no cast is tried
LARGE = 0.3
#: dims of V of these
DIMS = 16
#: kernels of a sample that are tried on the whole run
BEST = 8
#: share of the error of the worst dim of which a dim has less that is right
LEAST_OF_DIMS = 0.02
#: rows of a sample where only some of the rows are wrong; pieces of a run, at most; share of the error of the rest that
#: each has to make
OF_PIECE, MOST_PIECES, LEAST_OF_PIECE = 8, 4, 0.1

_Any: TypeAlias = (
    Loop | Merge | MergeOfOthers | NotCleared | Skipped | Lanes | Beyond | Narrow | Taken | WithoutSinks
)
_One = TypeVar("_One", bound=_Any)
#: out, where it is known, and the square of its error
_Off = tuple[np.ndarray, np.ndarray, float]
_STAGES: dict[type, str] = {
    Loop: "correction", Merge: "correction", MergeOfOthers: "correction", NotCleared: "acc", Skipped: "probs",
    Lanes: "row_sum", Narrow: "out", Taken: "acc", WithoutSinks: "row_sum", Beyond: "scores",
}  # fmt: skip


class _Run:
    """The user's own run, what is known of it, and what each kernel leaves."""

    def __init__(self, target: Target, model: Model, some: np.ndarray | None = None, of: int = SAMPLE) -> None:
        """`some`: bool [b, h, q, d] of out that is looked at, all where None; in samples of `of` rows."""
        answer = target.natural
        self.parts = model.parts(answer)
        self.out = model.result(answer.out)
        self.known = np.isfinite(self.out) & (True if some is None else some)
        self.dims = np.flatnonzero(self.known.any((0, 1, 2)))[:DIMS]
        base = model.but(place=None, columns=None, added=0.0, lost=None).predicted(answer)
        self.off = np.where(self.known, (self.out - base) ** 2, 0.0)
        rows = self.out.shape[2]
        by_row = self.off.sum((0, 1, 3))
        first = max(range(0, rows, of), key=lambda i: by_row[i : i + of].sum())
        self.rows = slice(first, min(first + of, rows))
        heads = self.off[:, :, self.rows].sum((2, 3))
        self.batch = int(heads.sum(1).argmax())
        self.of_heads = np.sort(np.argsort(-heads[self.batch])[:HEADS])
        self.sample, self.of_sample = self._sampled(self.rows)
        self.of_all_rows = self._sampled(slice(None))
        size = np.where(self.known, self.out, 0.0) ** 2
        self.tiles = sizes(target)
        #: whether the error is larger than casts make one
        self.large = bool(self.off.sum() > LARGE**2 * size.sum())

    def _sampled(self, rows: slice) -> tuple[Parts, _Off]:
        """Parts of some rows, heads and dims, and what is known of out there."""
        p = self.parts.of_rows(rows)
        at = np.ix_(np.array([self.batch]), self.of_heads)
        out, known, off = (x[:, :, rows][at][..., self.dims] for x in (self.out, self.known, self.off))
        factor = np.asarray(p.factor)
        if factor.ndim == 4:
            factor = np.broadcast_to(factor, (*p.q.shape[:2], *factor.shape[2:]))[at]
        parts = p.but(
            q=p.q[at], k=p.k[at], values=p.values[at][..., self.dims], start=p.start[at],
            fixed=None if p.fixed is None else p.fixed[at],
            factor=factor,
            sinks=None if p.sinks is None else np.broadcast_to(p.sinks, (*p.q.shape[:2], 1))[at],
        )  # fmt: skip
        return parts, (out, known, max(float(off.sum()), 1e-300))

    def left(self, kernel: _Any) -> float:
        """Share of the square of the error that it leaves."""
        return _left(kernel, self.parts, self.out, self.known, self.off)

    @property
    def left_by_casts(self) -> float:
        """Share of the square of the error that the casts of every kernel leave, with the tiles that fit best."""
        if self.parts.dtype == "float32":
            return 1.0
        return min(self.left(one) for one in usual([self.parts.start.shape[-1], *self.tiles]))

    def left_of_sample(self, out: np.ndarray) -> float:
        """The same of out of the sample."""
        return _share(out[..., self.dims] if out.shape[-1] > len(self.dims) else out, self.of_sample)

    def near(self, told: Sequence[_One], *, rows: bool = False) -> list[_One]:
        """Those that leave least of the sample; `rows`: of all rows, where one counts for another."""
        parts, off = self.of_all_rows if rows else (self.sample, self.of_sample)
        with np.errstate(all="ignore"):
            some = [_share(one(parts)[0], off) for one in told]
        return [told[i] for i in sorted(np.argsort(some, kind="stable")[:BEST])]

    def best(self, told: Sequence[_Any]) -> tuple[float, _Any] | None:
        """The first of those that leave as little as any."""
        found = [(self.left(one), one) for one in told]
        least = min((left for left, _ in found), default=np.inf)
        return next(((left, one) for left, one in found if left <= 1.5 * least + 1e-12), None)


def _share(out: np.ndarray, of: _Off) -> float:
    share = float(np.where(of[1], (of[0] - out) ** 2, 0.0).sum() / of[2])
    return share if np.isfinite(share) else np.inf


def _left(kernel: _Any, parts: Parts, out: np.ndarray, known: np.ndarray, off: np.ndarray) -> float:
    with np.errstate(all="ignore"):
        made = kernel(parts)[0]
        share = float(np.where(known, (out - made) ** 2, 0.0).sum() / max(off.sum(), 1e-300))
    return share if np.isfinite(share) else np.inf


def kernels(target: Target, model: Model, *, stale: bool = False, casts: bool = True) -> tuple[Model, list[Finding]]:
    """The kernel that leaves least of the error, and less than a tenth of it; the first that leaves next to nothing.

    `stale`: of what is left in buffers alone; `casts`: whether these are tried, too.
    """
    if model.kept is not None or model.by_query or model.mixed is not None or model.kernel is not None:
        return model, []
    model = model.but(step=None, denominator=None, flush=-np.inf)
    run = _Run(target, model)
    families = [_left_over] if stale else [_loops, _merges, _left_over, _others, _lanes, _beyond]
    if target.some is not None:  # of some rows of a large run, whose neighbours are not known, and which cost minutes
        families = [one for one in families if one not in (_left_over, _others, _lanes, _beyond)]
    if casts and not stale and not run.large:
        families.append(_narrow)
    best: tuple[float, _Any] | None = None
    for family in families:
        one = run.best(family(run))
        # a cast counts for what the casts of every kernel leave
        of = run.left_by_casts if family is _narrow else 1.0
        if one is not None and one[0] < (LEFT**2 * of if best is None else best[0] / 2):
            best = one
        if best is not None and best[0] < NOTHING**2:
            break
    return (model, []) if best is None else _found(target, model, best[1], best[0])


def _loops(run: _Run) -> Sequence[_Any]:
    return nearest(run.sample, run.tiles, run.left_of_sample, BEST)


def _merges(run: _Run) -> Sequence[_Any]:
    return run.near(list(merges(run.tiles)))


def _left_over(run: _Run) -> Sequence[_Any]:
    told = list(left_over(run.tiles, run.out.shape[2], not np.isfinite(run.parts.start).all()))
    skipped = run.near([one for one in told if isinstance(one, Skipped)], rows=True)
    return [*(one for one in told if isinstance(one, NotCleared)), *skipped]


def _others(run: _Run) -> Sequence[_Any]:
    at = np.ix_(np.array([run.batch]), run.of_heads, np.arange(run.rows.start, run.rows.stop))
    return nearest_of_others(run.parts, at, run.tiles, run.left_of_sample, BEST)


def _lanes(run: _Run) -> Sequence[_Any]:
    return run.near(list(lanes(run.tiles, run.parts.start.shape[-1])))


def _beyond(run: _Run) -> Sequence[_Any]:
    return list(beyond(run.parts.start, run.parts.fixed))


def _narrow(run: _Run) -> Sequence[_Any]:
    """Sites and formats first, with two sizes of tiles where these change little, then with all."""
    parts, tiles = run.parts, [run.parts.start.shape[-1], *run.tiles]
    two = (tiles[0],) if parts.dtype == "float32" else (tiles[0], 16)
    tried: list[Narrow] = [
        one
        for size in tiles
        for one in narrow(parts.dtype, parts.q.shape[-1], tiles[0], size)
        if size in two or one.site in OF_TILES
    ]  # fmt: skip
    tried += fixed(parts.dtype, tiles[0])
    nearest_ = run.near(tried)
    some = dict.fromkeys(x for one in nearest_ for x in with_sizes(one, tiles, parts.dtype))
    return run.near(list(some))


def in_regions(target: Target, model: Model) -> tuple[Model, list[Finding]]:
    """Kernels that make the wrong rows and dims of the natural run, each some of them, and together all but a tenth of
    the error; elsewhere it is as it should be.
    """
    answer = target.natural
    if model.kept is not None or model.by_query or model.mixed is not None or model.kernel is not None:
        return model, []
    if model.place is not None or model.columns is not None or not answer.wrong.any():
        return model, []
    model = model.but(step=None, denominator=None, flush=-np.inf)
    apart = np.where(np.isfinite(answer.out), (answer.out - model.predicted(answer)) ** 2, 0.0)
    of_dims = apart.sum((0, 1, 2))
    dims = of_dims > LEAST_OF_DIMS * of_dims.max()
    off = apart[..., dims].sum(-1)
    noise = 2 * model.rounding(answer) ** 2 * dims.sum()
    left, whole = answer.wrong.any(-1), float(off.sum())
    pieces: list[Piece] = []
    while left.any() and len(pieces) < MOST_PIECES:
        run = _Run(target, model, left[..., None] & dims, OF_PIECE)
        best: tuple[float, _Any, np.ndarray] | None = None
        before = [one.kernel for one in pieces if isinstance(one.kernel, Taken)]
        for family in (_without_sinks, _loops, _merges, partial(_taken, first=before), _narrow):
            for one in family(run):
                with np.errstate(all="ignore"):
                    apart = ((run.out - one(run.parts)[0]) ** 2)[..., dims].sum(-1)
                gain = float(off[left & (apart <= LEFT**2 * off + noise)].sum())
                if best is None or gain > 1.05 * best[0]:
                    best = gain, one, apart
        if best is None or best[0] <= LEAST_OF_PIECE * off[left].sum():
            break
        _, kernel, apart = best
        told = np.any([one.rows for one in pieces], axis=0) if pieces else np.zeros_like(left)
        may = ~left & ~told & (apart <= 4 * off + noise + 1e-12 * whole)
        rows = completed(left & (apart <= LEFT**2 * off + noise), may)
        pieces.append(Piece(kernel, rows, dims))
        left = left & ~rows
    if not pieces or float(off[left].sum()) > LEFT**2 * whole:
        return model, []
    stages = [_STAGES[type(one.kernel)] for one in pieces]
    found = [
        Finding("piece", stage, f"{one.kernel.words}{one.where}", int(one.rows.sum()), one.rows.size, {"piece": one})
        for one, stage in zip(pieces, stages, strict=True)
    ]
    return model.but(kernel=Pieces(tuple(pieces))), found


def _taken(run: _Run, first: Sequence[Taken]) -> Sequence[_Any]:
    h, q = np.meshgrid(run.of_heads, np.arange(run.rows.start, run.rows.stop), indexing="ij")
    at = tuple(x.reshape(-1) for x in (np.full_like(h, run.batch), h, q))
    at = tuple(x[run.known[at].any(-1)] for x in at)
    parts = run.parts.but(values=run.parts.values[..., run.dims])
    out = np.where(run.known, run.out, np.nan)[at][..., run.dims]
    return nearest_taken(parts, at, out, run.tiles, BEST, first)


def _without_sinks(run: _Run) -> Sequence[_Any]:
    return [] if run.parts.sinks is None else [WithoutSinks()]


def _found(target: Target, model: Model, kernel: _Any, left: float) -> tuple[Model, list[Finding]]:
    wrong = target.natural.wrong
    data = {"kernel": kernel, "left": float(np.sqrt(left))}
    reading = "cast" if isinstance(kernel, Narrow) else type(kernel).__name__.lower()
    found = Finding(reading, _STAGES[type(kernel)], kernel.words, int(wrong.sum()), wrong.size, data)
    return model.but(kernel=kernel), [found]
