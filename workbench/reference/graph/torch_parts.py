"""Gradients of parts of an array, as of k[t] in a loop: torch makes each as large as the array, and adds them up.

Here a part is written to its place. So a loop of n turns costs n parts and not n arrays, and no 0 that is added counts
as a rounding.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from workbench.reference.graph.arrays import Traced, held
from workbench.reference.graph.recording import Recording

Index = tuple[int | slice, ...]
Key = tuple[int, ...]
Add = Callable[[Traced, Traced], Traced]


@dataclass(eq=False)
class _Parts:
    """What an array is made of, and 0 elsewhere: parts that do not overlap."""

    at: dict[Key, tuple[Index, Traced]]
    shape: tuple[int, ...]

    @cached_property
    def taken(self) -> np.ndarray:
        """Where they are."""
        made = np.zeros(self.shape, bool)
        for index, _ in self.at.values():
            made[index] = True
        return made


class Parts:
    """Of the arrays of one run."""

    def __init__(self, run: Recording) -> None:
        self.run = run
        self._of: dict[int, _Parts] = {}  #: by node
        self._zeros: dict[tuple[tuple[int, ...], Any], int] = {}

    def of_slice(self, g: Traced, shape: Sequence[int], dim: int, start: int, end: int, step: int) -> Traced:
        """0 of a shape, with g at every `step`-th place from start to end."""
        dim = normalize_axis_index(dim, len(shape))
        ends = slice(start, end, step).indices(shape[dim])
        return self._placed(g, tuple(shape), (dim, *ends), (*[slice(None)] * dim, slice(*ends)))

    def of_select(self, g: Traced, shape: Sequence[int], dim: int, index: int) -> Traced:
        """0 of a shape, with g at one place of an axis."""
        dim = normalize_axis_index(dim, len(shape))
        index %= shape[dim]
        return self._placed(g, tuple(shape), (dim, index), (*[slice(None)] * dim, index))

    def added(self, a: Traced, b: Traced, add: Add) -> Traced:
        """a + b: where one of them is made of parts, these in their places of the other."""
        if a.shape != b.shape or a.dtype != b.dtype:
            return add(a, b)
        known, others = (self._of.pop(x.node_of_run, None) for x in (a, b))  # a sum is taken on once
        if others is None or (known is not None and len(known.at) < len(others.at)):
            a, b, known, others = b, a, others, known
        if others is None:
            return add(a, b)
        value, node = a.value.copy(), a.node_of_run
        for key, (index, part) in others.at.items():
            if known is not None and key in known.at:
                part = self.added(known.at[key][1], part, add)
            elif known is None or known.taken[index].any():
                part, known = add(Traced(self.run, value, node, a.dtype)[index], part), None
            if known is not None:
                known.at[key] = index, part
                known.taken[index] = True
            node = self._write(value, node, index, part)
        if known is not None:
            self._of[node] = known
        return Traced(self.run, value, node, a.dtype)

    def _placed(self, g: Traced, shape: tuple[int, ...], key: Key, index: Index) -> Traced:
        if (shape, g.dtype) not in self._zeros:
            zero = held(self.run, np.zeros(()), g.dtype)
            wide = np.broadcast_to(zero.value, shape)
            how: Mapping[str, Any] = {"shape": shape}
            self._zeros[shape, g.dtype] = self.run.add("broadcast", (zero.node_of_run,), how, wide, g.dtype)
        value = np.zeros(shape)
        node = self._write(value, self._zeros[shape, g.dtype], index, g)
        self._of[node] = _Parts({key: (index, g)}, shape)
        return Traced(self.run, value, node, g.dtype)

    def _write(self, value: np.ndarray, node: int, index: Index, part: Traced) -> int:
        """`part` at an index of a value, whose node that was."""
        value[index] = part.value
        how = {"step": "index", "how": {"index": index}}
        return self.run.add("write", (node, part.node_of_run), how, value, part.dtype)
