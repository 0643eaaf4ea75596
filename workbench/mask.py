"""Which keys the queries of a run see, and what is added to their scores: causal, or as put in."""

import numpy as np

from workbench.trace import Trace, to_float64


def visible(trace: Trace) -> np.ndarray:
    """Which keys a query sees, bool [q, k], or [b, h, q, k] where a mask was put in, of which a part is a view."""
    causal = trace.case.mask()
    if "mask" not in trace.inputs:
        return causal
    mask = trace.inputs["mask"]
    return _spread(trace, mask & causal if trace.case.causal else mask)


def bias(trace: Trace) -> np.ndarray | None:
    """What is added to scaled scores, float64 [b, h, q, k] of few numbers where these repeat; None without a bias."""
    return _spread(trace, to_float64(trace.inputs["bias"])) if "bias" in trace.inputs else None


def _spread(trace: Trace, array: np.ndarray) -> np.ndarray:
    case = trace.case
    return np.broadcast_to(array, (case.batch, case.heads, case.seqlen_q, case.seqlen_k))
