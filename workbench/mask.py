"""Which keys the queries of a run see, and what is added to their scores: causal, in a window, or as put in."""

from collections.abc import Mapping

import numpy as np

from workbench.case import Case
from workbench.refusal import Refusal
from workbench.trace import Trace, to_float64

Arrays = Mapping[str, np.ndarray]


def visible(case: Case, inputs: Arrays, queries: slice | np.ndarray = slice(None)) -> np.ndarray:
    """Which keys some queries see, bool [q, k], or [b, h, q, k] where a mask was put in."""
    if "mask" not in inputs:
        return case.mask(queries)
    given = spread(case, inputs["mask"])[:, :, queries]
    return given & case.mask(queries)


def bias(case: Case, inputs: Arrays) -> np.ndarray | None:
    """What is added to scaled scores, a view of [b, h, q, k] in the dtype of the bias; None without one."""
    return spread(case, inputs["bias"]) if "bias" in inputs else None


def check_sentinel(trace: Trace) -> None:
    """Refusal where a bias is as low as what the kernel holds in place of -inf, so that its scores look masked."""
    sentinel = trace.contract.mask_sentinel
    if "bias" not in trace.inputs or not np.isfinite(sentinel):
        return
    values = to_float64(trace.inputs["bias"])
    lowest = values.min(initial=0.0, where=np.isfinite(values))
    if lowest <= sentinel / 2:  # a score is a bias and more
        raise Refusal(
            f"{trace.target}: scores of the contract's mask_sentinel={sentinel:g} or less are masked ones, and the "
            f"bias holds {lowest:g}: give -inf or a mask in its place"
        )


def spread(case: Case, array: np.ndarray) -> np.ndarray:
    """A mask or a bias with an axis for batches, heads, queries and keys each, of which parts are views."""
    return np.broadcast_to(array, (case.batch, case.heads, case.seqlen_q, case.seqlen_k))
