"""Which keys the queries of a run see, and what is added to their scores: causal, in a window, of sequences of several
lengths, by ALiBi, or as put in.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from workbench.case.case import Case
from workbench.case.mods import evaluated
from workbench.floats import to_float64

Arrays = Mapping[str, np.ndarray]
#: some of an axis
Some = slice | np.ndarray
ALL = slice(None)


class Added(NamedTuple):
    """What is added to scaled scores."""

    bias: np.ndarray  #: [b, h, q, k] or what broadcasts to it, float64 where it was not put in
    computed: np.ndarray | None = None  #: what of it a kernel computes itself, ALiBi's part; None: nothing


def visible(case: Case, inputs: Arrays, queries: Some = ALL) -> np.ndarray:
    """Which keys some queries see, bool [q, k], or [b, h, q, k] where a mask was put in or sequences are ragged."""
    seen = case.mask(queries)
    return spread(case, inputs["mask"])[:, :, queries] & seen if "mask" in inputs else seen


def attn_bias(case: Case, inputs: Arrays) -> Added | None:
    """What is added to scaled scores; None without anything."""
    given = spread(case, inputs["bias"]) if "bias" in inputs else None
    return added(given, alibi(case))


def added(given: np.ndarray | None, of_alibi: np.ndarray | None) -> Added | None:
    """The sum of what was put in and of what a kernel computes."""
    if of_alibi is None:
        return None if given is None else Added(given)
    return Added(of_alibi if given is None else of_alibi + to_float64(given), of_alibi)


def alibi(case: Case, b: Some = ALL, h: Some = ALL, q: Some = ALL) -> np.ndarray | None:
    """What ALiBi adds to the scaled scores of some batches, heads and queries, float64 [b or 1, h, q, k]."""
    if (slopes := case.slopes) is None:
        return None
    return slopes.astype(np.float64)[h][None, :, None, None] * _distances(case, b, q)


def _distances(case: Case, b: Some, q: Some) -> np.ndarray:
    """What slopes are multiplied by, [b or 1, 1, q, k]: minus the distance of a key from the diagonal; or its index."""
    keys = np.arange(case.seqlen_k)[None, None, None]
    if case.alibi_form == "column":
        return keys
    diagonals = case.diagonals[b] if case.ragged else case.diagonals[:1]
    return -abs(keys - np.arange(case.seqlen_q)[q][:, None] - diagonals[:, None, None, None])


def mask_of_mod(case: Case) -> np.ndarray:
    """What the mask_mod of a case says, bool [b, h, q, k]."""
    found: np.ndarray = evaluated(case.mask_mod, "mask_mod", _indices(case, ALL, ALL, ALL)).astype(bool)
    return found


def modified(case: Case, scores: np.ndarray, b: Some = ALL, h: Some = ALL, q: Some = ALL) -> np.ndarray:
    """The scores of some batches, heads and queries, float64 [b, h, q, k], as the score_mod of a case makes them."""
    return evaluated(case.score_mod, "score_mod", _indices(case, b, h, q), scores)


def _indices(case: Case, b: Some, h: Some, q: Some) -> tuple[np.ndarray, ...]:
    """Indices of batches, heads, queries and keys, which broadcast to [b, h, q, k]."""
    sizes, some = (case.batch, case.heads, case.seqlen_q, case.seqlen_k), (b, h, q, ALL)
    return tuple(np.ix_(*(np.arange(size)[one] for size, one in zip(sizes, some, strict=True))))


def spread(case: Case, array: np.ndarray) -> np.ndarray:
    """A mask or a bias with an axis for batches, heads, queries and keys each, of which parts are views."""
    return np.broadcast_to(array, (case.batch, case.heads, case.seqlen_q, case.seqlen_k))
