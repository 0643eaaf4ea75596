"""Whether all of out is too large, or too small, by one factor: no kernel's roundings do that, however wide the budget
of one that tells nothing of itself.
"""

from dataclasses import dataclass

import numpy as np

from workbench.case.stages import OUT
from workbench.expectation.elements import UNJUDGED
from workbench.expectation.observed import Observed
from workbench.judge.bias import FEWEST_ROWS, Z, by_row
from workbench.judge.control import at_rows, sampled

#: what a cast that cuts off takes from a number on the average, half an ulp: of bfloat16, and of float16 and TF32
_CUT = {"bfloat16": 2.0**-8}
_CUT_OF_OTHERS = 2.0**-11
#: casts on the way to out: of probs, of partial results, of out
_CASTS = 3


@dataclass(frozen=True)
class Factor:
    """A factor of out, by least squares."""

    value: float
    z: float  #: of what of it is beyond `most`, clustered by row
    rows: int
    most: float  #: by how much casts that cut off may move it

    @property
    def words(self) -> str:
        """The factor in words."""
        return (
            f"out is {self.value:.4g} times its expected value ({self.rows} rows, z = {self.z:.3g}); truncating casts "
            f"explain only factors within {self.most:.2g} of 1"
        )


@np.errstate(all="ignore")
def factor(run: Observed) -> Factor | None:
    """The factor of out, where it is beyond doubt that it is farther from 1 than casts move it; None elsewhere.

    Of rows that share their inputs each is one observation, as in `bias`.
    """
    if OUT not in run.whole:
        return None
    ((_, found),) = at_rows(run, [OUT], sampled(run.case))
    seen = ~np.isin(found.state, UNJUDGED) & np.isfinite(found.expected) & np.isfinite(found.actual)
    right, off = (by_row(np.where(seen, x, 0.0), "bhqd") for x in (found.expected, found.actual - found.expected))
    size, along = (right * right).sum(axis=1), (off * right).sum(axis=1)
    rows = int((size > 0).sum())
    if rows < FEWEST_ROWS:
        return None
    excess = along.sum() / size.sum()
    error = np.sqrt(rows / (rows - 1) * ((along - excess * size) ** 2).sum()) / size.sum()
    most = _CASTS * _CUT.get(run.case.dtype, _CUT_OF_OTHERS)
    beyond = abs(excess) - most
    if not beyond > Z * error:
        return None
    return Factor(float(1 + excess), float(beyond / error) if error else float("inf"), rows, most)
