"""An array of a run held against what it should be: a wrong stage, or an operand as a kernel must have read it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from workbench.floats import to_float64
from workbench.judge.stage import StageDiff

#: elements that are looked at to find what holds; then it is counted on all of them, as many at once
AT_ONCE = 2**18
#: of the choice of elements and rows, the same in every run
SEED = 0


@dataclass(frozen=True, eq=False)
class Difference:
    """Arrays of one shape, or the rows `rows` of the longest axis of it."""

    name: str
    axes: str  #: one letter an axis, as in `stages.py`
    actual: np.ndarray  #: as dumped
    expected: np.ndarray  #: float64
    bound: np.ndarray  #: float64, largest |actual - expected| of what is right
    wrong: np.ndarray  #: bool
    #: bool, wrong, or right where a fault would show: what is expected to be 0 or no number is so whatever was read
    could: np.ndarray
    sizes: Mapping[str, int]  #: axis -> its size in the whole
    first: Mapping[str, int] = field(default_factory=dict)  #: axis -> the first of its indices, where it is not 0
    rows: np.ndarray | None = None  #: indices along the longest axis; None: all

    @cached_property
    def along(self) -> int:
        """The longest axis, of which rows are taken."""
        sizes = self.wrong.shape
        return max(range(len(sizes)), key=lambda i: (self.axes[i] == "q", sizes[i]))

    def index(self, axis: str) -> np.ndarray:
        """The indices of an axis that are here, counted from 0."""
        i = self.axes.index(axis)
        return np.arange(self.wrong.shape[i]) if self.rows is None or i != self.along else self.rows

    def take(self, rows: np.ndarray) -> "Difference":
        """Some rows of the whole."""
        arrays: dict[str, Any] = {name: np.take(getattr(self, name), rows, axis=self.along) for name in _ARRAYS}
        return replace(self, **arrays, rows=rows)

    def sample(self) -> "Difference":
        """Rows drawn at random, as many as are looked at; itself where it has no more."""
        n = self._at_once
        size = self.wrong.shape[self.along]
        if n >= size:
            return self
        return self.take(np.sort(np.random.default_rng(SEED).choice(size, n, replace=False)))

    def parts(self) -> Iterator["Difference"]:
        """All of it, part by part."""
        size, n = self.wrong.shape[self.along], self._at_once
        yield from [self] if n >= size else (self.take(np.arange(i, min(i + n, size))) for i in range(0, size, n))

    @property
    def _at_once(self) -> int:
        size = self.wrong.shape[self.along]
        return max(1, AT_ONCE * size // max(1, self.wrong.size))


_ARRAYS = ("actual", "expected", "bound", "wrong", "could")


def of_stage(stage: StageDiff) -> Difference:
    """A judged stage; refuses one without a comparison."""
    found = stage.judged
    wrong, expected = found.outside, found.expected
    could = wrong | (found.judged & np.isfinite(expected) & (expected != 0))
    sizes = dict(zip(stage.axes, wrong.shape, strict=True))
    return Difference(stage.name, stage.axes, found.actual, expected, found.budget, wrong, could, sizes, stage.first)


def of_operand(name: str, axes: str, actual: np.ndarray, bound: np.ndarray, expected: np.ndarray) -> Difference:
    """An operand as it must have been read, which is known within `bound`."""
    wrong = ~(np.abs(actual - expected) <= bound)
    sizes = dict(zip(axes, wrong.shape, strict=True))
    return Difference(name, axes, actual, expected, bound, wrong, wrong | (expected != 0), sizes)


def at(array: np.ndarray, where: tuple[np.ndarray, ...]) -> np.ndarray:
    """An array, which may be of size 1 along some axes, at places of the whole, float64."""
    index = tuple(np.zeros_like(i) if size == 1 else i for i, size in zip(where, array.shape, strict=True))
    return to_float64(array[index])
