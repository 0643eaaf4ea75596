"""How the arrays of a case lie in memory for the kernels on floats, and the strides with which these index them.

Kernels index q, k, v and out as [b, h, row, d] whatever the memory, as FlashAttention-2's do: sequences that lie behind
each other have a batch stride of 0 (`BlockInfo` there), pages are batches, and v may be some dims of k.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from workbench.case import memory
from workbench.case.case import Case
from workbench.case.stages import MASKS
from workbench.cuda import compiler  # noqa: F401 - Unavailable where numba cannot be imported
from workbench.cuda.flash_build import packs_keys
from workbench.floats import DTYPES

Arrays = dict[str, np.ndarray]


class View(NamedTuple):
    """An argument of a kernel that is a view of an array, from its start on."""

    array: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]  #: in bytes


def laid(case: Case, inputs: Mapping[str, np.ndarray]) -> tuple[Arrays, dict[str, View]]:
    """The arrays that a kernel reads by name, contiguous, and those of its arguments that are views of them.

    `inputs`: q, k, v as boxes [b, h, rows, d], and mask, bias, dropout_mask. Where a kernel has nothing to read, behind
    the end of a sequence and in pages that it does not own, is poison (`memory.poison_of`).
    """
    arrays = {name: np.ascontiguousarray(inputs[name]) for name in "qkv"}
    views: dict[str, View] = {}
    kind, lengths_k = memory.poison_of(case), case.lengths_k
    if case.seqlens_q is not None:
        arrays["q"], views["q"] = _behind_each_other("q", inputs["q"], case.lengths_q)
        arrays["cu_seqlens_q"] = memory.cu_seqlens(case.lengths_q)
    if case.page_size is not None:
        cache = memory.paged(case, inputs["k"], inputs["v"], kind)
        arrays |= {"k": cache.k, "v": cache.v, "block_table": cache.block_table}
        if case.kv_layout == "NHD":
            views |= {name: _swapped(name, arrays[name]) for name in "kv"}
    elif packs_keys(case):
        for name in "kv":
            arrays[name], views[name] = _behind_each_other(name, inputs[name], lengths_k)
        arrays["cu_seqlens_k"] = memory.cu_seqlens(lengths_k)
    elif case.seqlens_k is not None:
        arrays |= {name: memory.padded(inputs[name], lengths_k, kind, case.seed) for name in "kv"}
    if case.page_size is not None or case.seqlens_k is not None:
        arrays["cache_seqlens"] = lengths_k.astype(np.int32)
    if case.shared_kv:
        del arrays["v"]
        k = views.get("k", View("k", arrays["k"].shape, arrays["k"].strides))
        views["v"] = k._replace(shape=(*k.shape[:-1], case.head_dim_v))
    arrays |= {name: _four_axes(name, inputs[name]) for name in MASKS if name in inputs}
    return arrays | case.of_heads, views


def results(case: Case, out: np.ndarray, lse: np.ndarray) -> tuple[Arrays, dict[str, View]]:
    """As `laid`, of what a kernel writes where queries lie behind each other; `out` and `lse` are boxes."""
    packed = {"out": memory.packed(out, case.lengths_q), "lse": memory.packed(lse, case.lengths_q).T.copy()}
    total, heads, dims = packed["out"].shape
    width = lse.itemsize
    return packed, {
        "out": _behind("out", packed["out"], case.batch),
        "lse": View("lse", (case.batch, heads, total), (0, total * width, width)),
    }


def unpack(case: Case, packed: Mapping[str, np.ndarray], boxes: Mapping[str, np.ndarray]) -> None:
    """Put what `results` laid out into the boxes that there are: 0 and -inf behind the end of each sequence."""
    for name, fill in (("out", 0.0), ("lse", -np.inf)):
        if name in boxes:
            box, x = boxes[name], packed[name] if name == "out" else packed[name].T
            box[...] = memory.unpacked(x.view(box.dtype), case.lengths_q, case.seqlen_q, fill)


def bits(array: np.ndarray) -> np.ndarray:
    """The array as kernels take it: bfloat16 as uint16 bits, which share the array's memory."""
    return array.view(np.uint16) if array.dtype == DTYPES["bfloat16"] else array


def viewed(arrays: Arrays, views: Mapping[str, View]) -> Arrays:
    """The arguments of kernels on the host."""
    strided = np.lib.stride_tricks.as_strided
    return arrays | {name: strided(arrays[x.array], x.shape, x.strides) for name, x in views.items()}


def _behind_each_other(name: str, x: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, View]:
    found = memory.packed(x, lengths)
    return found, _behind(name, found, len(lengths))


def _behind(name: str, packed: np.ndarray, batch: int) -> View:
    """[b, h, row, d] of [row, h, d], the same rows for every b."""
    (rows, heads, dims), (of_row, of_head, of_dim) = packed.shape, packed.strides
    return View(name, (batch, heads, rows, dims), (0, of_head, of_row, of_dim))


def _swapped(name: str, pages: np.ndarray) -> View:
    """[page, h, key, d] of [page, key, h, d]."""
    swapped = pages.swapaxes(1, 2)
    return View(name, swapped.shape, swapped.strides)


def _four_axes(name: str, x: np.ndarray) -> np.ndarray:
    """A mask as uint8, a bias as float32, [b, h, q, k], of size 1 along axes where they are the same."""
    made = x.astype(np.float32 if name == "bias" else np.uint8)
    return np.ascontiguousarray(made.reshape((1,) * (4 - x.ndim) + x.shape))
