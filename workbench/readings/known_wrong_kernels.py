"""Last resort: run every known wrong kernel on the user's inputs; keep the one that leaves < 10 % of the error."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias, TypeVar

import numpy as np

from workbench.readings.added import Added, Smoothed, added
from workbench.readings.beyond import Beyond, beyond
from workbench.readings.casts import OF_TILES, Narrow, fixed, narrow, usual, with_sizes
from workbench.readings.finding import Finding
from workbench.readings.lanes import Lanes, lanes
from workbench.readings.merges import Merge, MergeOfOthers, merges, nearest_of_others
from workbench.readings.model import Model
from workbench.readings.of_rows import CorrectedAs, Kept, of_rows
from workbench.readings.online import Loop, nearest
from workbench.readings.paged import Pitch, pitches
from workbench.readings.parts import Parts
from workbench.readings.regions import Named, WithoutSinks
from workbench.readings.stale import NotCleared, Skipped, left_over
from workbench.readings.steps import sizes
from workbench.readings.taken import Taken
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

AnyKernel: TypeAlias = Named
_One = TypeVar("_One", bound=AnyKernel)
#: out, where it is known, and the square of its error
_Off = tuple[np.ndarray, np.ndarray, float]
STAGES: dict[type, str] = {
    Loop: "correction", Merge: "correction", MergeOfOthers: "correction", NotCleared: "acc", Skipped: "probs",
    Lanes: "row_sum", Narrow: "out", Taken: "acc", WithoutSinks: "row_sum", Beyond: "scores",
    Added: "out", Smoothed: "scores", CorrectedAs: "correction", Kept: "acc",
    Pitch: "scores",
}  # fmt: skip


class Run:
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

    def left(self, kernel: AnyKernel) -> float:
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

    def best(self, told: Sequence[AnyKernel]) -> tuple[float, AnyKernel] | None:
        """The first of those that leave as little as any."""
        found = [(self.left(one), one) for one in told]
        least = min((left for left, _ in found), default=np.inf)
        return next(((left, one) for left, one in found if left <= 1.5 * least + 1e-12), None)


def _share(out: np.ndarray, of: _Off) -> float:
    share = float(np.where(of[1], (of[0] - out) ** 2, 0.0).sum() / of[2])
    return share if np.isfinite(share) else np.inf


def _left(kernel: AnyKernel, parts: Parts, out: np.ndarray, known: np.ndarray, off: np.ndarray) -> float:
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
    target.computes("kernels")
    model = model.but(step=None, denominator=None, flush=-np.inf)
    run = Run(target, model)
    families = (
        [_left_over, _beyond]
        if stale
        else [of_loops, of_merges, _left_over, _others, _lanes, _beyond, _added, _of_rows]
    )
    if target.some is not None:  # of some rows of a large run, whose neighbours are not known, and which cost minutes
        families = [one for one in families if one not in (_left_over, _others, _lanes, _beyond, _added, _of_rows)]
    if casts and not stale and not run.large:
        families.append(of_casts)
    best: tuple[float, AnyKernel] | None = None
    for family in families:
        one = run.best(family(run))
        # a cast counts for what the casts of every kernel leave
        of = run.left_by_casts if family is of_casts else 1.0
        if one is not None and one[0] < (LEFT**2 * of if best is None else best[0] / 2):
            best = one
        if best is not None and best[0] < NOTHING**2:
            break
    return (model, []) if best is None else _found(target, model, best[1], best[0], _words(run, best[1], best[0]))


def _words(run: Run, kernel: AnyKernel, left: float) -> str:
    """What is wrong in it; two formats have the same digits, and differ in what they hold alone."""
    if isinstance(kernel, Narrow) and kernel.format == "TF32":
        if run.left(replace(kernel, format="float16")) <= 1.5 * left + 1e-12:
            return kernel.words.replace("TF32", "TF32 or float16")
    return kernel.words


def of_loops(run: Run) -> Sequence[AnyKernel]:
    return nearest(run.sample, run.tiles, run.left_of_sample, BEST)


def of_merges(run: Run) -> Sequence[AnyKernel]:
    return run.near(list(merges(run.tiles)))


def _left_over(run: Run) -> Sequence[AnyKernel]:
    told = list(left_over(run.tiles, run.out.shape[2], not np.isfinite(run.parts.start).all()))
    skipped = run.near([one for one in told if isinstance(one, Skipped)], rows=True)
    return [*(one for one in told if isinstance(one, NotCleared)), *skipped]


def _others(run: Run) -> Sequence[AnyKernel]:
    at = np.ix_(np.array([run.batch]), run.of_heads, np.arange(run.rows.start, run.rows.stop))
    return nearest_of_others(run.parts, at, run.tiles, run.left_of_sample, BEST)


def _lanes(run: Run) -> Sequence[AnyKernel]:
    return run.near(list(lanes(run.tiles, run.parts.start.shape[-1])))


def _beyond(run: Run) -> Sequence[AnyKernel]:
    batches, _, _, keys = run.parts.start.shape
    return [*beyond(run.parts.start, run.parts.fixed), *pitches(batches, keys)]


def _added(run: Run) -> Sequence[AnyKernel]:
    return [
        *added(run.parts, run.out, run.known),
        *run.near([Smoothed(size, of) for size in run.tiles for of in "kq"], rows=True),
    ]


def _of_rows(run: Run) -> Sequence[AnyKernel]:
    return run.near([*of_rows(run.tiles, run.out.shape[2])], rows=True)


def of_casts(run: Run) -> Sequence[AnyKernel]:
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


def _found(target: Target, model: Model, kernel: AnyKernel, left: float, text: str) -> tuple[Model, list[Finding]]:
    wrong = target.natural.wrong
    data = {"kernel": kernel, "left": float(np.sqrt(left))}
    reading = "cast" if isinstance(kernel, Narrow) else type(kernel).__name__.lower()
    found = Finding(reading, STAGES[type(kernel)], text, int(wrong.sum()), wrong.size, data)
    return model.but(kernel=kernel), [found]
