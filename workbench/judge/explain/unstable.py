"""Whether a wrong function gives other numbers when it is run again, and what is wrong alike in both runs."""

from collections.abc import Sequence

import numpy as np

from workbench.expectation.observed import Observed
from workbench.floats import to_float64
from workbench.judge.stage import StageDiff
from workbench.readings.finding import spans
from workbench.refusal import Refusal, Unavailable


def unstable(run: Observed, wrong: Sequence[StageDiff]) -> str:
    """In words: which of the wrong stages differs between two runs on the same inputs, and what is wrong alike in both;
    "" where none does, and of what is no function that can be run again.
    """
    trace = run.trace
    if trace.rerun is None or trace.backend != "foreign" or trace.box is not None or trace.ranks:
        return ""
    try:
        again = trace.rerun(trace.case)
    except (Refusal, Unavailable):
        return ""
    for stage in wrong:
        first, second = trace.stages.get(stage.name), again.stages.get(stage.name)
        if first is None or second is None or first.shape != second.shape or stage.decisive is None:
            continue
        same = np.isclose(to_float64(first), to_float64(second), 0, 0, equal_nan=True)
        if same.all():
            continue
        alike = same & stage.decisive.outside
        said = f"{int((~same).sum())} of {same.size} elements of {stage.name}{_rows(stage, ~same)}"
        rest = f"{int(alike.sum())} elements are wrong alike in both{_rows(stage, alike)}" if alike.any() else ""
        return (
            f"two runs on the same inputs differ in {said}: a race, or memory that nobody wrote; "
            f"{rest or 'nothing is wrong alike in both'}"
        )
    return ""


def _rows(stage: StageDiff, which: np.ndarray) -> str:
    return f", in rows {spans(np.nonzero(which)[stage.axes.index('q')])}" if "q" in stage.axes else ""
