"""Whether a wrong function gives other numbers when it is run again: by random numbers, or by a race."""

from collections.abc import Sequence

import numpy as np

from workbench.arrays import own_random
from workbench.case.fields import GIVEN
from workbench.expectation.observed import Observed
from workbench.floats import to_float64
from workbench.judge.stage import StageDiff
from workbench.readings.finding import spans
from workbench.refusal import Refusal, Unavailable
from workbench.trace.trace import Trace

#: begins what is said of a function that draws random numbers, of which no other cause is looked for
RANDOM = "a second call on the same inputs gives different numbers; resetting the random seed gives the same numbers"


def unstable(run: Observed, wrong: Sequence[StageDiff]) -> str:
    """In words: which of the wrong stages differs between two runs on the same inputs, and what is wrong alike in both;
    "" where none does, and of what is no function that can be run again.
    """
    trace = run.trace
    if trace.rerun is None or trace.backend != "foreign" or trace.box is not None or trace.ranks:
        return ""
    try:
        again = _again(trace)
        for stage in wrong:
            if stage.decisive is None or (same := _same(trace, again, stage.name)) is None or same.all():
                continue
            if _draws(trace, stage.name):
                return f"{RANDOM}: dropout is on"
            alike = same & stage.decisive.outside
            said = f"{int((~same).sum())} of {same.size} elements of {stage.name}{_rows(stage, ~same)}"
            which, where = f"{int(alike.sum())} elements have", _rows(stage, alike)
            if not alike.any():
                which, where = "no element has", ""
            return (
                f"two runs on the same inputs differ in {said}: a race, uninitialised memory, or state kept between "
                f"calls; {which} the same wrong value in both{where}"
            )
    except (Refusal, Unavailable):
        return ""
    return ""


def _again(trace: Trace) -> Trace:
    """The run on the same inputs: drawn by the same seed, or given."""
    assert trace.rerun is not None
    return trace.rerun(trace.case, trace.inputs if trace.case.distribution == GIVEN else None)


def _draws(trace: Trace, stage: str) -> bool:
    """Whether it draws random numbers: two runs from one seed agree, a third from another seed does not."""
    runs = []
    for seed in (0, 0, 1):
        with own_random(seed):
            runs.append(_again(trace))
    first, same, other = runs
    alike, unlike = _same(first, same, stage), _same(first, other, stage)
    return alike is not None and unlike is not None and bool(alike.all()) and not unlike.all()


def _same(one: Trace, other: Trace, stage: str) -> np.ndarray | None:
    """Which elements of a stage are the same in two runs; None where it is in one alone."""
    first, second = one.stages.get(stage), other.stages.get(stage)
    if first is None or second is None or first.shape != second.shape:
        return None
    return np.isclose(to_float64(first), to_float64(second), 0, 0, equal_nan=True)


def _rows(stage: StageDiff, which: np.ndarray) -> str:
    return f", in rows {spans(np.nonzero(which)[stage.axes.index('q')])}" if "q" in stage.axes else ""
