"""What a right verdict from out alone cannot see: a key that is lost, or counted twice, and weighs too little."""

import math
from collections.abc import Sequence

import numpy as np

from workbench.case.distributions import TELLING
from workbench.case.stages import OUT, RESULTS
from workbench.expectation.elements import State
from workbench.expectation.observed import Observed
from workbench.floats import to_float64
from workbench.judge.control import at_rows, sampled
from workbench.judge.stage import ORIGIN_VERDICTS, RIGHT_VERDICTS, StageDiff

#: rows that are looked at
ROWS = 64


def from_ends(stages: Sequence[StageDiff]) -> bool:
    """Whether nothing wrong was found, in results alone, which tell of what comes before in sums over keys."""
    names = {stage.name for stage in stages if stage.decisive is not None}
    return bool(names) and names <= {*RESULTS} and not any(stage.verdict in ORIGIN_VERDICTS for stage in stages)


def unseen(run: Observed, stages: Sequence[StageDiff]) -> float | None:
    """The share of a row's weight, a power of two, below which a key may be lost in every row and out stays within its
    budget; None where something is not right, where more than out was given, and of inputs that are made to show it.

    A lost key of weight w moves out by w / (1 - w) |v - out|, v its own: no row shows it where the largest |v - out| of
    any key, times w, is below the budget of every dim.
    """
    own = run.dequantised
    blind = [stage.name for stage in stages] == [OUT] and stages[0].verdict in RIGHT_VERDICTS
    if not blind or run.case.distribution in TELLING or "v" not in own.trace.inputs or own.trace.box is not None:
        return None
    rows = sampled(own.case, ROWS)
    ((_, found),) = at_rows(own, [OUT], rows)
    v = to_float64(own.trace.inputs["v"]).repeat(own.case.heads // own.case.kv_heads, axis=1)
    # over keys, for each batch, head and dim
    high, low = (edge(v, axis=2, keepdims=True) for edge in (np.max, np.min))
    reach = np.maximum(high - found.expected, found.expected - low)
    seen = (found.state <= State.SUSPICIOUS) & np.isfinite(found.budget) & (reach > 0)
    if not seen.any():
        return None
    return 2.0 ** math.floor(math.log2(max(float((found.budget[seen] / reach[seen]).min()), 2.0**-60)))
