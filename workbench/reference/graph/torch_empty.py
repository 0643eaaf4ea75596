"""Memory that a reference took and has not yet written: reading it is refused."""

from typing import Any

import numpy as np

from workbench.reference.graph.arrays import Traced
from workbench.reference.graph.recording import Recording


class Empty:
    """Which elements of `torch.empty` of a run are not written yet."""

    def __init__(self, run: Recording) -> None:
        self.run = run
        self.unwritten: dict[int, tuple[Traced, np.ndarray]] = {}  #: by the array that has the memory

    def add(self, x: Traced) -> None:
        """All of it is unwritten."""
        self.unwritten[id(x)] = (x, np.ones(x.shape, bool))

    def read_all(self, listed: list[Any]) -> None:
        """Refuses what is read before it is written."""
        if self.unwritten:
            for x in listed:
                if isinstance(x, Traced):
                    self.read(x)

    def read(self, x: Traced) -> None:
        """Refuses what is read before it is written."""
        there = self._of(x)
        if there is not None and there.any():
            self.run.refuse(
                f"{int(there.sum())} of {there.size} elements of a torch.empty are read before they are written."
                " Write them, or use torch.zeros"
            )

    def write(self, x: Traced) -> None:
        """All of x is written."""
        there = self._of(x)
        if there is not None:
            there[...] = False
            self._done(x)

    def write_at(self, x: Traced, indices: list[Any]) -> None:
        """Places of x that no rounding moves are written."""
        there = self._of(x)
        if there is None:
            return
        if any(one is not None and not one.fixed for one in indices):
            self.read(x)  # so that all of it is written
            return
        there[tuple(slice(None) if one is None else one.value for one in indices)] = False
        self._done(x)

    def _done(self, x: Traced) -> None:
        if not self.unwritten[id(x._whole())][1].any():
            del self.unwritten[id(x._whole())]

    def _of(self, x: Traced) -> np.ndarray | None:
        """The marks of x: those of its root, at the same places in memory."""
        found = self.unwritten.get(id(x._whole()))
        if found is None:
            return None
        root, marks = found
        first = (x.value.ctypes.data - root.value.ctypes.data) // root.value.itemsize
        strides = tuple(n // x.value.itemsize for n in x.value.strides)
        return np.lib.stride_tricks.as_strided(marks.reshape(-1)[first:], x.shape, strides)
