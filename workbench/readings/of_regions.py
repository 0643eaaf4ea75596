"""Kernels that make some rows and dims of the user's own run, where the rest is as it should be: paths of a kernel that
some tiles take, warps that race, slots that are overwritten.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from workbench.readings.casts import Narrow
from workbench.readings.finding import Finding
from workbench.readings.known_wrong_kernels import BEST, LEFT, STAGES, AnyKernel, Run, of_casts, of_loops, of_merges
from workbench.readings.model import Model
from workbench.readings.regions import Piece, Pieces, WithoutSinks, completed
from workbench.readings.taken import Taken, nearest
from workbench.readings.target import Target

#: share of the error of the worst dim of which a dim has less that is right
LEAST_OF_DIMS = 0.02
#: rows of a sample; pieces of a run, at most; share of the error of the rest that each has to make
ROWS, MOST, LEAST = 8, 4, 0.1


def in_regions(target: Target, model: Model) -> tuple[Model, list[Finding]]:
    """Kernels that make the wrong rows and dims of the natural run, each some of them, and together all but a tenth of
    the error; elsewhere it is as it should be.
    """
    answer = target.natural
    if model.kept is not None or model.by_query or model.mixed is not None or model.kernel is not None:
        return model, []
    if model.place is not None or model.columns is not None or not answer.wrong.any():
        return model, []
    target.computes("regions")
    model = model.but(step=None, denominator=None, flush=-np.inf)
    apart = np.where(np.isfinite(answer.out), (answer.out - model.predicted(answer)) ** 2, 0.0)
    of_dims = apart.sum((0, 1, 2))
    dims = np.asarray(of_dims > LEAST_OF_DIMS * of_dims.max())
    off = apart[..., dims].sum(-1)
    noise = 2 * model.rounding(answer) ** 2 * dims.sum()
    left, whole = np.asarray(answer.wrong.any(-1)), float(off.sum())
    pieces: list[Piece] = []
    while left.any() and len(pieces) < MOST:
        run = Run(target, model, left[..., None] & dims, ROWS)
        best: tuple[float, AnyKernel, np.ndarray] | None = None
        before = [one.kernel for one in pieces if isinstance(one.kernel, Taken)]
        for family in (_without_sinks, of_loops, of_merges, partial(_taken, first=before), of_casts):
            for one in family(run):
                with np.errstate(all="ignore"):
                    apart = ((run.out - one(run.parts)[0]) ** 2)[..., dims].sum(-1)
                gain = float(off[left & (apart <= LEFT**2 * off + noise)].sum())
                if best is None or gain > 1.05 * best[0]:
                    best = gain, one, apart
        if best is None or best[0] <= LEAST * off[left].sum():
            break
        _, kernel, apart = best
        told = np.any([one.rows for one in pieces], axis=0) if pieces else np.zeros_like(left)
        may = ~left & ~told & (apart <= 4 * off + noise + 1e-12 * whole)
        rows = completed(left & (apart <= LEFT**2 * off + noise), may)
        pieces.append(Piece(kernel, rows, dims))
        left = left & ~rows
    if not pieces or float(off[left].sum()) > LEFT**2 * whole:
        return model, []
    return model.but(kernel=Pieces(tuple(pieces))), [_found(one) for one in pieces]


def _found(piece: Piece) -> Finding:
    text, stage = f"{piece.kernel.words}{piece.where}", STAGES[type(piece.kernel)]
    reading = "cast" if isinstance(piece.kernel, Narrow) else "piece"
    return Finding(reading, stage, text, int(piece.rows.sum()), piece.rows.size, {"piece": piece})


def _taken(run: Run, first: Sequence[Taken]) -> Sequence[AnyKernel]:
    h, q = np.meshgrid(run.of_heads, np.arange(run.rows.start, run.rows.stop), indexing="ij")
    at = tuple(x.reshape(-1) for x in (np.full_like(h, run.batch), h, q))
    at = tuple(x[run.known[at].any(-1)] for x in at)
    parts = run.parts.but(values=run.parts.values[..., run.dims])
    out = np.where(run.known, run.out, np.nan)[at][..., run.dims]
    return nearest(parts, at, out, run.tiles, BEST, first)


def _without_sinks(run: Run) -> Sequence[AnyKernel]:
    return [] if run.parts.sinks is None else [WithoutSinks()]
