"""Sequences that lie behind each other, as boxes: q, k, v and what was made of them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from workbench.arrays import as_numpy
from workbench.case.memory import unpacked
from workbench.case.stages import INPUT_AXES, RESULTS
from workbench.refusal import Refusal

Arrays = Mapping[str, np.ndarray]
#: axes of arrays in boxes; the third one has the lengths of sequences
_AXES = {**INPUT_AXES, **{name: stage.axes for name, stage in RESULTS.items()}}


def unpacked_all(
    inputs: Mapping[str, Any], stages: Arrays, ends: Mapping[str, Any], where: str
) -> tuple[dict[str, Any], dict[str, np.ndarray], dict[str, tuple[int, ...]]]:
    """Inputs and stages with q, k, v and out [b, h, rows, d] and lse [b, h, rows], and the fields of a case that tell
    their lengths.

    q, k, v and out are [total, h, d], lse [h, total], or in boxes already; `ends`: cu_seqlens of q and of k, int [b +
    1]. Refusal for what is no such array, which `where` names in messages.
    """
    lengths = {of: _lengths(x, f"{where}: cu_seqlens_{of}") for of, x in ends.items()}
    if len(lengths["q"]) != len(lengths["k"]):
        raise Refusal(
            f"{where}: cu_seqlens_q and cu_seqlens_k must have as many sequences; got {len(lengths['q'])} and "
            f"{len(lengths['k'])}"
        )
    boxes = {**inputs, **stages}
    for name, axes in _AXES.items():
        if name in boxes:
            boxes[name] = _boxed(name, as_numpy(boxes[name], f"{where}: {name}"), lengths[axes[2]], where)
    told = {f"seqlens_{of}": tuple(x.tolist()) for of, x in lengths.items()}
    return {name: boxes[name] for name in inputs}, {name: boxes[name] for name in stages}, told


def _lengths(ends: Any, what: str) -> np.ndarray:
    """The lengths of sequences that end there."""
    found = as_numpy(ends, what, (np.dtype(np.int32), np.dtype(np.int64))).astype(np.int64)
    if found.ndim != 1 or len(found) < 2 or found[0] != 0 or np.any(np.diff(found) < 0):
        raise Refusal(f"{what} must have shape [batch + 1], begin with 0 and never decrease; got {found.tolist()}")
    return np.diff(found)


def _boxed(name: str, x: np.ndarray, lengths: np.ndarray, where: str) -> np.ndarray:
    total, rows, flat = int(lengths.sum()), max(1, int(lengths.max())), "d" not in _AXES[name]
    if flat and x.ndim == 3 and x.shape[0] == len(lengths) and x.shape[2] == rows:
        return x
    axes = "[heads, total]" if flat else "[total, heads, dim]"
    if x.ndim != (2 if flat else 3) or x.shape[flat] != total:
        raise Refusal(
            f"{where}: {name} of packed sequences is {axes}, with a total of {total} by cu_seqlens_{_AXES[name][2]}; "
            f"got shape {list(x.shape)}"
        )
    return unpacked(x.T if flat else x, lengths, rows)
