"""Which keys the queries of a run see, and what is added to their scores: causal, or as put in."""

import numpy as np

from workbench.refusal import Refusal
from workbench.trace import Trace, to_float64


def visible(trace: Trace) -> np.ndarray:
    """Which keys a query sees, bool [q, k], or [b, h, q, k] where a mask was put in, of which a part is a view."""
    causal = trace.case.mask()
    if "mask" not in trace.inputs:
        return causal
    mask = trace.inputs["mask"]
    return _spread(trace, mask & causal if trace.case.causal else mask)


def bias(trace: Trace) -> np.ndarray | None:
    """What is added to scaled scores, a view of [b, h, q, k] in the dtype of the bias; None without one."""
    return _spread(trace, trace.inputs["bias"]) if "bias" in trace.inputs else None


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


def _spread(trace: Trace, array: np.ndarray) -> np.ndarray:
    case = trace.case
    return np.broadcast_to(array, (case.batch, case.heads, case.seqlen_q, case.seqlen_k))
