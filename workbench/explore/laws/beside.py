"""What makes weights beside the products of q and k: masks, biases, ALiBi, a score_mod; and sinks."""

import numpy as np

from workbench.case import masks
from workbench.case.case import Case
from workbench.explore.laws.part import Arrays
from workbench.explore.laws.run import Rows
from workbench.explore.laws.subject import seen
from workbench.floats import to_float64


def beside(case: Case, inputs: Arrays, rows: Rows) -> np.ndarray:
    """The scores of some rows where all products of q and k are 0, float64 [b, h, q, k]; -inf where no key is seen."""
    b, h, q = (np.array(some, np.int64) for some in rows)
    found = np.zeros((len(b), len(h), len(q), case.seqlen_k))
    if case.score_mod is not None:
        found = masks.modified(case, found, b, h, q)
    if "bias" in inputs:
        found = found + to_float64(rows.of(inputs["bias"]))
    if (of_alibi := masks.alibi(case, b, h, q)) is not None:
        found = found + of_alibi
    return np.where(rows.of(seen(case, inputs)), found, -np.inf)


def of_heads(logits: np.ndarray | None, rows: Rows) -> np.ndarray:
    """The sinks of some rows, float64 [1, h, 1]; -inf where there are none."""
    some = np.array(rows.h, np.int64)
    found = np.full(len(some), -np.inf) if logits is None else logits.astype(np.float64)[some]
    return found[None, :, None]
