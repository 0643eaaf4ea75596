"""A part of what a kernel reads: some heads, sequences, queries, keys or dims, in any order, and the case of it.

Indices along an axis are [n], the same for all sequences; or, of queries and keys, [b, n], those of each, with -1
behind the last of a sequence that has fewer.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, NamedTuple

import numpy as np

from workbench.case.case import Case
from workbench.case.mods import function_of
from workbench.case.stages import INPUTS, MASKS

Arrays = Mapping[str, np.ndarray]
#: axes of q, k and v: g is the kv head, d the dim of q and k, e that of v
_AXES: Mapping[str, str] = {"q": "bhqd", "k": "bgkd", "v": "bgke"}
#: axis -> the field of a case that is its size
_SIZES = {"b": "batch", "h": "heads", "g": "kv_heads", "q": "seqlen_q", "k": "seqlen_k"}


class Alike(NamedTuple):
    """Sequences of the same lengths: all of a batch, or one of a ragged one."""

    b: Sequence[int]
    q: int  #: queries of each
    k: int


def sequences(case: Case) -> list[Alike]:
    """The sequences of a case, those together that have the same lengths because no others can be."""
    if not case.ragged:
        return [Alike(range(case.batch), case.seqlen_q, case.seqlen_k)]
    lengths = zip(case.lengths_q.tolist(), case.lengths_k.tolist(), strict=True)
    return [Alike([b], q, k) for b, (q, k) in enumerate(lengths)]


def own(case: Case, some: Sequence[Sequence[int] | np.ndarray]) -> np.ndarray:
    """The indices of each of `sequences`, as one array."""
    if not case.ragged:
        return np.array(some[0], np.int64)
    found = np.full((len(some), max(1, *map(len, some))), -1, np.int64)
    for row, indices in zip(found, some, strict=True):
        row[: len(indices)] = indices
    return found


def each(case: Case, axis: str, choose: Callable[[int], Sequence[int] | np.ndarray]) -> np.ndarray:
    """What `choose` makes of the number of queries (`axis` q) or keys (k) of each sequence."""
    if getattr(case, f"seqlens_{axis}") is None:
        return np.array(choose(getattr(case, f"seqlen_{axis}")), np.int64)
    return own(case, [choose(getattr(one, axis)) for one in sequences(case)])


def taken(inputs: Arrays, **some: Any) -> dict[str, np.ndarray]:
    """The indices `some` of inputs, copied."""
    found = {}
    for name, x in inputs.items():
        axes = _axes(name, x)
        for axis, indices in some.items():
            if axis in axes:
                x = _along(x, np.asarray(indices), axes.index(axis))
        found[name] = x
    return found


def part_of(case: Case, **some: Any) -> Case:
    """The case of the indices `some` of its inputs."""
    indices = {axis: np.asarray(x) for axis, x in some.items()}
    changes: dict[str, Any] = {field: indices[x].shape[-1] for x, field in _SIZES.items() if x in indices}
    if "b" in indices:
        kept = {name: x for name in ("seqlens_q", "seqlens_k") if (x := getattr(case, name)) is not None}
        changes |= {name: tuple(x[b] for b in indices["b"]) for name, x in kept.items()}
    if "h" in indices:
        changes |= {name: tuple(x[indices["h"]].tolist()) for name, x in case.of_heads.items()}
    for axis in {"q", "k"} & {*indices}:
        if indices[axis].ndim == 2:
            changes[f"seqlens_{axis}"] = tuple((indices[axis] >= 0).sum(-1).tolist())
    tables = {axis: x for axis, x in indices.items() if axis in "bhqk" and not _as_they_are(x)}
    mods = {name: x for name in ("score_mod", "mask_mod") if (x := getattr(case, name)) is not None}
    return case.but(**changes, **{name: _with_indices(mod, name, tables) for name, mod in mods.items() if tables})


def _axes(name: str, x: np.ndarray) -> str:
    """The axes of what attention reads; those of a block's scales end with a letter of no other axis."""
    if name in MASKS:
        return "bhqk"
    of = _AXES[name[-1]]
    if name in INPUTS or name.startswith("codes"):
        return of
    return of[1] if x.ndim == 1 else f"{of[:3]}s"


def _along(x: np.ndarray, indices: np.ndarray, axis: int) -> np.ndarray:
    if indices.ndim == 1:
        return x.take(indices, axis)
    return np.stack([one.take(some, axis - 1) for one, some in zip(x, indices, strict=True)])


def _as_they_are(indices: np.ndarray) -> bool:
    """Whether these are the first ones, in order."""
    return bool(np.all((indices == np.arange(indices.shape[-1])) | (indices == -1)))


def _with_indices(mod: Any, field: str, tables: Arrays) -> Callable[..., Any]:
    """A function of FlexAttention that is called with the indices that a part has in the whole."""
    function = function_of(mod, field)

    @wraps(function)
    def called(*given: Any) -> Any:
        *score, b, h, q, k = given
        indices = {"b": b, "h": h, "q": q, "k": k}
        return function(*score, *(_looked_up(tables.get(axis), b, i) for axis, i in indices.items()))

    return called


def _looked_up(table: np.ndarray | None, b: Any, index: Any) -> Any:
    if table is None:
        return index
    found: Any = table
    if not isinstance(index, np.ndarray | int):
        import torch

        found = torch.as_tensor(table, device=index.device)
    return found[index] if table.ndim == 1 else found[b, index]
