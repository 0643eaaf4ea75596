"""The numbers of a run around a wrong stage: what it is computed from, and the other stages, as it met them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from workbench.case.box import WHOLE, Box
from workbench.case.stages import INPUT_AXES
from workbench.expectation.expectation import Expectation
from workbench.expectation.observed import Observed
from workbench.judge.stage import StageDiff
from workbench.reference.dataflow import direct, upstream
from workbench.reference.problem import Problem
from workbench.reference.tables import definition
from workbench.reference.walk import values

#: splits of which each is looked at
SLICES = 16


@dataclass(frozen=True, eq=False)
class Tensors:
    """The stages and inputs of a run at some queries, float64: as dumped where the stage was judged from them, else as
    the reference computes them.
    """

    run: Observed
    stage: StageDiff
    rows: np.ndarray | None = None  #: indices of q; None: all

    @cached_property
    def problem(self) -> Problem:
        """What the stage was judged from."""
        run = self.run
        if self.stage.name in run.before_attention:
            return run.decoding()
        run = run.dequantised
        box = WHOLE if self.rows is None else Box(q=self.rows)
        return Expectation(run, run.readable if self.stage.isolated else {}, box, statistics=False).problem

    @cached_property
    def _computed(self) -> Mapping[str, np.ndarray]:
        return values(self.problem)

    def read(self) -> Mapping[str, np.ndarray]:
        """What the stage reads, as far as it broadcasts against the stage."""
        return self._fitting(direct(self.problem.table, self.stage.name))

    def others(self) -> Mapping[str, np.ndarray]:
        """The inputs and all stages that are not computed from this one, as far as they broadcast against it."""
        table, name = self.problem.table, self.stage.name
        return self._fitting([*INPUT_AXES, *(x for x in table if table[x].dumped and name not in upstream(table, x))])

    def value(self, name: str) -> np.ndarray:
        """A stage or an input, as the wrong stage met it."""
        for known in (self.problem.given, self.problem.inputs, self._computed):
            if name in known:
                return known[name]
        return values(self.problem, [name])[name]  # a parameter

    def last(self, name: str) -> np.ndarray:
        """A value, of a running state that after the last tile."""
        value, axes = self.value(name), self.axes(name)
        return value.take(self.problem.tiling.last, axis=axes.index("t")) if "t" in axes else value

    def words(self, name: str) -> str:
        """The name of a stage; what a parameter is made of."""
        table = self.problem.table
        return name if name not in table or table[name].dumped else definition(table, name)

    def axes(self, name: str) -> str:
        """The axes of a stage or a parameter."""
        return self.problem.table[name].axes

    def _fitting(self, names: Sequence[str]) -> Mapping[str, np.ndarray]:
        """Those of `names` that broadcast against the stage, and have as many heads; what has splits beside
        its axes one by one, of what has tiles the last.
        """
        table, axes = self.problem.table, self.stage.axes
        sizes = dict(zip(axes, self.stage.judged.expected.shape, strict=True))
        if self.rows is not None:
            sizes["q"] = len(self.rows)
        found = {}
        for name in names:
            letters = table[name].axes if name in table else INPUT_AXES.get(name, "?")
            if name == self.stage.name or not {*letters} - {"t", "s"} <= {*axes}:
                continue
            for words, value, left in self._sliced(name, self.value(name), letters):
                if all(sizes[axis] == n for axis, n in zip(left, value.shape, strict=True)):
                    found[words] = aligned(value, left, axes)
        return found

    def _sliced(self, name: str, value: np.ndarray, letters: str) -> Iterator[tuple[str, np.ndarray, str]]:
        """A value; of one that has tiles beside the stage's axes that of each key's tile, or the last; of one that has
        splits each.
        """
        beside = [axis for axis in letters if axis not in self.stage.axes]
        tiling = self.problem.tiling
        if beside == ["t"] and "k" in self.stage.axes:
            of_key = np.repeat(np.arange(len(tiling.keys)), [keys.stop - keys.start for keys in tiling.keys])
            yield name, value.take(of_key, axis=letters.index("t")), letters.replace("t", "k")
        elif beside == ["t"] and len(tiling.splits) == 1:
            yield f"the last {name}", value.take(tiling.last, axis=letters.index("t")), letters.replace("t", "")
        elif beside == ["s"]:
            for split, own in enumerate(np.moveaxis(value, letters.index("s"), 0)[:SLICES]):
                yield f"{name} of split {split}", own, letters.replace("s", "")
        elif not beside:
            yield name, value, letters


def aligned(array: np.ndarray, letters: str, axes: str) -> np.ndarray:
    """`array` with the axes `letters` as one that broadcasts against a stage with the axes `axes`."""
    order = sorted(range(len(letters)), key=lambda i: axes.index(letters[i]))
    sizes = dict(zip(letters, array.shape, strict=True))
    return array.transpose(order).reshape([sizes.get(axis, 1) for axis in axes])
