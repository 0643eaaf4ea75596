"""Drop a cause if another unexplained stage has NaN or inf in the same rows: one fault made both."""

from collections.abc import Sequence

import numpy as np

from workbench.floats import to_float64
from workbench.judge.explain.cause import Cause
from workbench.judge.stage import StageDiff
from workbench.reference.dataflow import upstream
from workbench.reference.stage import Table


def possible(causes: Sequence[Cause], origins: Sequence[StageDiff], table: Table) -> list[Cause]:
    """The causes but for those beside which another stage, that none explains, has infinities or NaN in the same rows:
    one thing made both, and no stage behind a wrong one is right by what was dumped of that.
    """
    explained = {name for cause in causes for name in cause.fit.stages}
    broken = {
        stage.name: rows for stage in origins if stage.name not in explained and (rows := _broken_rows(stage)).any()
    }

    def stands(cause: Cause) -> bool:
        own = [stage for stage in origins if stage.name in cause.fit.stages]
        return not any(
            name not in upstream(table, stage.name, ()) and np.any(rows & _rows(stage, stage.decisive.outside))
            for stage in own
            if stage.decisive is not None
            for name, rows in broken.items()
        )

    return [cause for cause in causes if stands(cause)]


def _broken_rows(stage: StageDiff) -> np.ndarray:
    """The rows [b, h, q] in which a stage is wrong and no number."""
    found = stage.decisive
    if found is None:
        return np.zeros((1, 1, 1), bool)
    return _rows(stage, found.outside & ~np.isfinite(to_float64(found.actual)))


def _rows(stage: StageDiff, mask: np.ndarray) -> np.ndarray:
    """The rows [b, h, q] of a stage that have one of the elements of a mask; of axes that it lacks, all."""
    some = np.asarray(mask.any(tuple(i for i, axis in enumerate(stage.axes) if axis not in "bhq")))
    return np.asarray(some[tuple(slice(None) if axis in stage.axes else None for axis in "bhq")])
