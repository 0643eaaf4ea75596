"""Imported by the process from which those are forked that judge: what judging and explaining load and make once is
there in each of them, which would take it half of a second.
"""

import numpy as np

from workbench.case.case import Case
from workbench.foreign.run import run_again
from workbench.judge.diff import diff


def _wrong(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> np.ndarray:
    return q


diff(run_again(_wrong, Case(seqlen=2, head_dim=2))).explained  # noqa: B018 - it is worked out when it is asked for
