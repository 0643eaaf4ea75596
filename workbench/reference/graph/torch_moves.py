"""ATen's views and copies, as plain code on arrays of a run. A view shares memory, as in torch."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.lib.array_utils import normalize_axis_index

from workbench.reference.graph import functions
from workbench.reference.graph.arrays import Traced, held
from workbench.reference.graph.torch_elementwise import noting, promoted
from workbench.reference.graph.torch_tensor import DTYPES


def _along(x: Traced, dim: int, part: Any) -> Traced:
    last = (...,) if x.ndim == 1 and isinstance(part, int) else ()  # one element as an array, which shares memory
    return x[(slice(None),) * normalize_axis_index(dim, x.ndim) + (part, *last)]


def _whole(shape: Sequence[Any]) -> tuple[int, ...]:
    return tuple(int(n) for n in shape)


def view(x: Traced, shape: Sequence[int]) -> Traced:
    """Another shape of the same memory; torch's error where strides do not allow it."""
    if isinstance(shape, torch.dtype):
        x.run.refuse(f"no rule for the bits of a tensor as another dtype, {shape}")
    made = functions.reshape(x, _whole(shape))
    if x.size and not np.may_share_memory(made.value, x.value):
        raise RuntimeError(f"view size is not compatible with strides of shape {x.shape}. Use .reshape(...) instead.")
    return made


def expand(x: Traced, shape: Sequence[int], *, implicit: bool = False) -> Traced:
    """One element in several places; -1 keeps a size."""
    lead = len(shape) - x.ndim
    wanted = tuple(x.shape[i - lead] if n == -1 else int(n) for i, n in enumerate(shape))
    return x if wanted == x.shape else functions.broadcast_to(x, wanted)


def slice_(x: Traced, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Traced:
    """Every `step`-th from start to end; x itself where that is all."""
    part = slice(start, end, step)
    n = x.shape[dim]
    return x if part.indices(n) == (0, n, 1) else _along(x, dim, part)


def squeeze(x: Traced, dim: Any = None) -> Traced:
    """Without axes of size 1, those of `dim` alone if it is given."""
    listed = range(x.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    gone = {normalize_axis_index(a, x.ndim) for a in listed} if x.ndim else set()
    return functions.reshape(x, tuple(n for a, n in enumerate(x.shape) if a not in gone or n != 1))


def unsqueeze(x: Traced, dim: int) -> Traced:
    """One more axis of size 1."""
    at = normalize_axis_index(dim, x.ndim + 1)
    return functions.reshape(x, (*x.shape[:at], 1, *x.shape[at:]))


def split(x: Traced, size: Any, dim: int = 0) -> list[Traced]:
    """Parts of one size, or of the sizes listed."""
    n = x.shape[dim]
    sizes = list(size) if isinstance(size, list | tuple) else [size] * max(-(-n // max(size, 1)), 1)
    ends = np.cumsum(sizes).tolist()
    return [_along(x, dim, slice(end - one, end)) for one, end in zip(sizes, ends, strict=True)]


def unfold(x: Traced, dim: int, size: int, step: int) -> Traced:
    """Windows along an axis, as a copy that nothing may be written to."""
    at = normalize_axis_index(dim, x.ndim)
    places = step * np.arange((x.shape[at] - size) // step + 1)[:, None] + np.arange(size)
    return frozen(functions.moveaxis(_along(x, at, places), at + 1, -1))


def diagonal(x: Traced, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Traced:
    """A copy of it, which nothing may be written to."""
    return frozen(functions.diagonal(x, offset, dim1, dim2))


def frozen(x: Traced) -> Traced:
    """A copy in the place of a view: a write to it, which torch would pass on, is refused."""
    x.value.flags.writeable = False
    return x


def clone(x: Traced) -> Traced:
    """Memory of its own, in the order that it has, unless elements stand in several places."""
    spread = any(step == 0 and n > 1 for step, n in zip(x.value.strides, x.shape, strict=True))
    return Traced(x.run, x.value.copy(order="C" if spread else "K"), x.node_of_run, x.dtype, x.fixed)


def cast(x: Traced, *, dtype: Any = None) -> Traced:
    """A copy of another dtype."""
    wanted = x.dtype if dtype is None else DTYPES.get(dtype)
    if wanted is None:
        x.run.refuse(f"no rule for a cast to {dtype}")
    return clone(x) if wanted == x.dtype else x.astype(wanted)


def cat(x: Sequence[Traced], dim: int = 0) -> Traced:
    """One behind the other; what is empty and flat has no say."""
    parts = [one for one in x if one.shape != (0,)] or list(x)
    return noting(functions.joined(parts, dim), promoted(*x))


def stack(x: Sequence[Traced], dim: int = 0) -> Traced:
    """Along a new axis."""
    return cat([unsqueeze(one, dim) for one in x], dim)


def repeat(x: Traced, reps: Sequence[int]) -> Traced:
    """Several copies along each axis."""
    wide = functions.reshape(x, (1,) * (len(reps) - x.ndim) + x.shape)
    return functions.tile(wide, tuple(reps)) if any(n != 1 for n in reps) else clone(wide)


def flip(x: Traced, dims: Sequence[int]) -> Traced:
    """A copy, backwards along dims."""
    return clone(functions.FUNCTIONS[np.flip](x, axis=tuple(normalize_axis_index(a, x.ndim) for a in dims)))


def roll(x: Traced, shifts: Any, dims: Any = ()) -> Traced:
    """Moved along axes, or flat without one."""
    if not dims:
        return functions.FUNCTIONS[np.roll](x, _one(shifts))
    return functions.FUNCTIONS[np.roll](x, shift=tuple(shifts), axis=tuple(dims))


def _one(x: Any) -> Any:
    return x[0] if isinstance(x, list | tuple) else x


def pad(x: Traced, pad: Sequence[int], value: Any = 0) -> Traced:
    """With a constant around it, the last axis first; negative widths cut off."""
    widths = [(0, 0)] * (x.ndim - len(pad) // 2) + [(pad[i], pad[i + 1]) for i in range(len(pad) - 2, -1, -2)]
    part = tuple(slice(max(-a, 0), n - max(-b, 0)) for (a, b), n in zip(widths, x.shape, strict=True))
    inner = x[part] if min(pad, default=0) < 0 else x
    shape = tuple(n + max(a, 0) + max(b, 0) for (a, b), n in zip(widths, inner.shape, strict=True))
    kind = x.value.dtype if x.whole else np.float64
    made = held(x.run, np.full(shape, value, kind), x.dtype)
    made[tuple(slice(max(a, 0), max(a, 0) + n) for (a, _), n in zip(widths, inner.shape, strict=True))] = inner
    return made


def repeat_interleave(repeats: Traced, *, output_size: int | None = None) -> Traced:
    """Place i so many times as repeats[i]: a decision."""
    value = repeats._taken("repeat_interleave")
    return held(repeats.run, np.repeat(np.arange(len(value)), value), np.int64)


VIEWS: Mapping[str, Callable[..., Any]] = {
    "view": view, "_unsafe_view": view, "_reshape_alias": lambda x, shape, strides: view(x, shape),
    "reshape": functions.reshape,
    "permute": lambda x, dims: functions.transpose(x, tuple(dims)),
    "transpose": lambda x, a, b: functions.swapaxes(x, a, b) if x.ndim else x,
    "t": lambda x: functions.transpose(x) if x.ndim > 1 else x,
    "expand": expand, "slice": slice_, "select": lambda x, dim, index: _along(x, dim, int(index)),
    "unsqueeze": unsqueeze, "squeeze": squeeze,
    "unbind": lambda x, dim=0: [_along(x, dim, i) for i in range(x.shape[dim])],
    "split": split, "split_with_sizes": split, "unfold": unfold, "diagonal": diagonal,
    "alias": lambda x: x, "detach": lambda x: x, "lift_fresh": lambda x: x, "lift": lambda x: x,
}  # fmt: skip
COPIES: Mapping[str, Callable[..., Any]] = {
    "clone": clone, "contiguous": lambda x: x.copy(), "_to_copy": cast, "cat": cat, "stack": stack, "repeat": repeat,
    "flip": flip, "roll": roll,
    "tril": lambda x, diagonal=0: functions.FUNCTIONS[np.tril](x, diagonal),
    "triu": lambda x, diagonal=0: functions.FUNCTIONS[np.triu](x, diagonal),
    "constant_pad_nd": pad, "repeat_interleave": repeat_interleave,
    "expand_copy": lambda x, shape: expand(x, shape).copy(), "view_copy": lambda x, shape: view(x, shape).copy(),
    "unsafe_split": lambda x, size, dim=0: [one.copy() for one in split(x, size, dim)],
}  # fmt: skip
