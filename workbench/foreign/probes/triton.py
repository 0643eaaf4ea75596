"""Probes for kernels in Triton: `probe` stores a tile of a stage, and leaves nothing of itself where it has no buffer.

A kernel takes all its buffers as one argument, which `buffers` makes, and its function returns `stages` of them:

    probe(probes.scores, (b, h, rows[:, None], keys[None, :]), scores)
"""

from collections import namedtuple
from typing import Any

import triton
import triton.language as tl

from workbench.arrays import handed_over, module
from workbench.case.stages import STAGES, axis_sizes, shape
from workbench.floats import DTYPES
from workbench.refusal import Refusal
from workbench.trace.trace import blank

#: a field for each stage: None, or its buffer and the size of each of its axes
Probes: Any = namedtuple("Probes", tuple(STAGES), defaults=(None,) * len(STAGES))  # type: ignore[misc]


@triton.jit
def probe(buffer, index, value):  # type: ignore[no-untyped-def]
    """Store `value`, a tile of a stage, unless `buffer` is None: Triton then drops the call while it compiles.

    `index` has an entry for each axis of the stage, in its order: numbers, and blocks that broadcast to the shape of
    `value`. What lies outside of the stage, such as a tile's padding, is not stored.
    """
    if buffer is not None:
        tl.static_assert(len(index) == len(buffer[1]), "a probe takes an index for each axis of its stage")
        tl.static_assert(
            (value.dtype == buffer[0].dtype.element_ty)
            or (value.dtype.primitive_bitwidth < buffer[0].dtype.element_ty.primitive_bitwidth),
            "the dtype of the buffer would round the value of a probe",
        )
        offset = tl.full((), 0, tl.int64)  # dumps of more than 2^31 elements are usual
        inside = tl.full((), 1, tl.int1)
        for axis in tl.static_range(len(index)):
            offset = offset * buffer[1][axis] + index[axis]
            inside = inside & (index[axis] >= 0) & (index[axis] < buffer[1][axis])
        tl.store(buffer[0] + offset, value, mask=inside)


def buffers(
    names: str,
    q: Any,
    k: Any,
    *,
    block_k: int | None = None,
    splits: int | None = None,
    head_dim_v: int | None = None,
    on: bool = True,
) -> Any:
    """Buffers of unwritten slots on q's device for the stages `names` ("scores,acc"); other probes are not compiled.

    q is [batch, heads, seqlen_q, head_dim] and k [batch, kv_heads, seqlen_k, head_dim], torch tensors; `head_dim_v`
    is that of v where it is another. probs_cast has the dtype of q, other stages float32. Refusal for an unknown stage,
    and for one with tiles or splits where `block_k` or `splits` does not tell how many. No buffers at all unless `on`.
    """
    if not on:
        return Probes()
    sizes = axis_sizes(q.shape, k.shape, (*k.shape[:3], head_dim_v or q.shape[3]), block_k, splits)
    made = {}
    for name in map(str.strip, names.split(",")):
        if name not in STAGES:
            raise Refusal(f"unknown stage {name!r}; stages are: {', '.join(STAGES)}")
        for axis, option in (("t", "block_k"), ("s", "splits")):
            if axis in STAGES[name].axes and axis not in sizes:
                raise Refusal(
                    f"the buffer of {name} needs {option}, since its axes are [{' '.join(STAGES[name].axes)}]"
                )
        dims = shape(STAGES[name], sizes)
        made[name] = (_blank(dims, str(q.dtype)[6:] if name == "probs_cast" else "float32", q.device), dims)
    return Probes(**made)


def stages(probes: Any) -> dict[str, Any]:
    """The buffers by the name of their stage, as a function under test returns them."""
    return {name: one[0] for name, one in probes._asdict().items() if one is not None}


def _blank(dims: tuple[int, ...], dtype: str, device: Any) -> Any:
    """What `trace.blank` makes, as a torch tensor that was filled on its device."""
    torch = module("torch")
    slot = handed_over(blank((1,), DTYPES[dtype]), "torch", "cpu")
    whole = {4: torch.int32, 2: torch.int16}[slot.itemsize]  # bits, lest a fill in floating point makes its NaN quiet
    return torch.full(dims, slot.view(whole).item(), dtype=whole, device=device).view(slot.dtype)
