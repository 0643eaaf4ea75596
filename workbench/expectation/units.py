"""Units in which kernels store stages, and natural ones: natural logarithms, scaled scores, -inf where masked."""

import math

import numpy as np

from workbench.arrays import in_float64
from workbench.case.contract import Contract
from workbench.floats import array_namespace
from workbench.trace.trace import Trace

#: stages in the units of scores, where -inf may be a sentinel
SCORE_UNITS = ("scores", "row_max", "partial_max", "merge_max")


def unit(trace: Trace, name: str) -> float:
    """What the kernel's scores and maxima are of natural ones: log2(e) times in base 2, without the scale where they
    are raw; of an lse in the place of a maximum, log2(e) times where that is of base 2; 2^probs_offset times of what
    has it; 1 for any other stage.
    """
    if name not in SCORE_UNITS:
        return 2.0 ** _offset(trace.contract, name) if trace.contract.probs_offset else 1.0
    if name in ("partial_max", "merge_max") and trace.contract.stores_lse:
        return math.log2(math.e) if trace.contract.partial_stats == "lse2" else 1.0
    if not trace.contract.scores_scaled:
        return 1 / trace.case.scale
    return math.log2(math.e) if trace.contract.base2 else 1.0


def _offset(contract: Contract, name: str) -> int:
    """The power of two by which what a kernel stores is larger."""
    if name in ("row_sum", "partial_sum", "merge_sum"):
        return contract.offset_of_row_sum
    of_probs = name == "probs" and contract.offset_in == "exp"
    of_sums = name in ("probs_cast", "acc") or (name == "partial_O" and contract.partials == "unnormalised")
    return contract.probs_offset if of_probs or of_sums else 0


def natural(trace: Trace, name: str, stage: np.ndarray, device: str = "cpu") -> np.ndarray:
    """A dumped stage in float64, its scores and maxima in natural units and -inf where the kernel has a sentinel."""
    value, factor = in_stored_units(trace.contract, name, stage, device), unit(trace, name)
    return value if factor == 1 else value / factor


def in_stored_units(contract: Contract, name: str, stage: np.ndarray, device: str) -> np.ndarray:
    """A dumped stage in float64, in the kernel's own units, but -inf where it has a sentinel."""
    value = in_float64(stage, device)
    if name in SCORE_UNITS and np.isfinite(contract.mask_sentinel):
        # a mask that adds the sentinel leaves a score of it
        value = array_namespace(value).where(value <= contract.mask_sentinel / 2, -np.inf, value)
    return value
