"""Which keys the queries of a run see, and what is added to their scores: causal, in a window, or as put in."""

from collections.abc import Mapping

import numpy as np

from workbench.case.case import Case

Arrays = Mapping[str, np.ndarray]


def visible(case: Case, inputs: Arrays, queries: slice | np.ndarray = slice(None)) -> np.ndarray:
    """Which keys some queries see, bool [q, k], or [b, h, q, k] where a mask was put in."""
    if "mask" not in inputs:
        return case.mask(queries)
    given = spread(case, inputs["mask"])[:, :, queries]
    return given & case.mask(queries)


def attn_bias(case: Case, inputs: Arrays) -> np.ndarray | None:
    """What is added to scaled scores, a view of [b, h, q, k] in its own dtype; None without one."""
    return spread(case, inputs["bias"]) if "bias" in inputs else None


def spread(case: Case, array: np.ndarray) -> np.ndarray:
    """A mask or a bias with an axis for batches, heads, queries and keys each, of which parts are views."""
    return np.broadcast_to(array, (case.batch, case.heads, case.seqlen_q, case.seqlen_k))
