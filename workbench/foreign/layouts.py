"""How q, k, v and results lie in the arrays of a call: a letter for each axis.

b batch, h head, s query or key, d dim; n: the rows of all sequences behind each other (flash-attn's varlen). A layout
without b or s holds one sequence or one query of each.
"""

import math
from collections.abc import Mapping

import numpy as np

from workbench.case.case import Case
from workbench.case.memory import packed, padded, unpacked
from workbench.case.stages import LSE
from workbench.refusal import Refusal

BOX, PACKED = "bhsd", "nhd"


def laid(x: np.ndarray, axes: str, lengths: np.ndarray) -> np.ndarray:
    """An array [b, h, s, d] with the axes `axes`, contiguous; `lengths`: rows of each sequence, which are packed. An
    axis that it lacks has the size 1.
    """
    if "n" in axes:
        return np.ascontiguousarray(packed(x, lengths).transpose([PACKED.index(axis) for axis in axes]))
    kept = "".join(axis for axis in BOX if axis in axes)
    x = x[tuple(slice(None) if axis in axes else 0 for axis in BOX)]
    return np.ascontiguousarray(x.transpose([kept.index(axis) for axis in axes]))


def boxed(x: np.ndarray, axes: str, case: Case, what: str) -> np.ndarray:
    """What came back as out [b, h, s, d] or lse [b, h, s] of an array with the axes `axes`; 0 behind the end of a
    sequence. Refusal, which names it `what`, for another shape than the case's.
    """
    lengths = case.lengths_q
    sizes = {"b": case.batch, "h": case.heads, "s": case.seqlen_q, "d": case.head_dim_v, "n": int(lengths.sum())}
    wanted = tuple(sizes[axis] for axis in axes)
    if x.shape != wanted:
        names = {"b": "batch", "h": "heads", "s": "queries", "d": "head_dim_v", "n": "queries of all sequences"}
        raise Refusal(
            f"{what} has axes [{', '.join(names[axis] for axis in axes)}] and must have shape {list(wanted)} for this "
            f"case; got {list(x.shape)}"
        )
    return unlaid(x, axes, lengths, case.seqlen_q)


def unlaid(x: np.ndarray, axes: str, lengths: np.ndarray, rows: int) -> np.ndarray:
    """The array [b, h, s, d], or [b, h, s] where it has no d, of one that lies as `laid` has it; 0 behind the end of a
    sequence, of which the longest may have `rows`.
    """
    if "n" in axes:
        return unpacked(_ordered(x, axes, PACKED), lengths, rows)
    x = _ordered(x, axes, BOX)
    for place, axis in enumerate(BOX[: 4 if "d" in axes else 3]):
        x = x if axis in axes else np.expand_dims(x, place)
    if np.all(lengths == rows):
        return np.ascontiguousarray(x)
    there = (np.arange(rows) < lengths[:, None])[:, None]
    return np.where(there[..., None] if x.ndim == 4 else there, x, np.zeros((), x.dtype))


def results(
    stages: Mapping[str, np.ndarray], axes: Mapping[str, str], case: Case, name: str, *, base2: bool
) -> dict[str, np.ndarray]:
    """out and lse among `stages` as a trace has them, of arrays with these axes; the lse of `base2` in natural units.

    Boxes of a batch that is not ragged are left to whoever checks a trace. A packed function may return lse in boxes.
    """
    found = {}
    for stage, of in axes.items():
        if stage not in stages or not of:
            continue
        x = stages[stage]
        of = "bhs" if stage == LSE and "n" in of and x.ndim == len("bhs") else of
        if case.ragged or of not in (BOX, "bhs"):
            x = boxed(x, of, case, f"{name}: {stage}")
        found[stage] = x.astype(np.float64) * math.log(2) if base2 and stage == LSE else x
    return found


def check_swapped(out: np.ndarray | None, case: Case, name: str) -> None:
    """Refusal for an out [b, s, h, d] of a function that is given [b, h, s, d], where the sizes tell the two apart."""
    swapped = (case.batch, case.seqlen_q, case.heads, case.head_dim_v)
    if out is not None and out.shape == swapped and case.heads != case.seqlen_q:
        raise Refusal(
            f"{name}: out must have shape {[case.batch, case.heads, case.seqlen_q, case.head_dim_v]} [b h q d] for "
            f"this case; got {list(out.shape)}, which is [b q h d]: pass --arrays layout=bshd"
        )


def _ordered(x: np.ndarray, axes: str, order: str) -> np.ndarray:
    """With those of its axes in the order of `order`."""
    return x.transpose([axes.index(axis) for axis in order if axis in axes])


def poisoned(x: np.ndarray, lengths: np.ndarray, kind: str, seed: int) -> np.ndarray:
    """[b, h, s, d] with poison (`memory.poison`) behind the end of each sequence; itself where none ends before."""
    return x if np.all(lengths == x.shape[2]) else padded(x, lengths, kind, seed)
