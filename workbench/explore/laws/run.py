"""A run as laws look at it: some of its rows, their values, and how far those of a right kernel may be off."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from workbench.case.box import Box
from workbench.case.case import Case
from workbench.case.masks import visible
from workbench.case.stages import ALGORITHMS, PROBE_SETS, RESULTS
from workbench.expectation.elements import Elements, State
from workbench.expectation.observed import Observed
from workbench.floats import largest, to_float64
from workbench.judge.blocks import placed
from workbench.judge.diff import comparisons
from workbench.trace.dont_care import DontCare, of_case
from workbench.trace.narrow import narrowed
from workbench.trace.trace import Trace

#: scores of a run beyond which budgets, which are float64's, are of a part of it alone
LARGE = 2**22


class Rows(NamedTuple):
    """Rows of a run: batches and query heads in the order in which they are compared, and queries that follow each
    other.
    """

    b: Sequence[int]
    h: Sequence[int]
    q: range

    @classmethod
    def all(cls, case: Case) -> "Rows":
        """Every row of a case, in order."""
        return cls(range(case.batch), range(case.heads), range(case.seqlen_q))

    def of(self, array: np.ndarray, axes: str = "bhq") -> np.ndarray:
        """These rows of an array whose axes are `axes`; one without queries keeps what it has."""
        for axis, some in zip("bhq", self, strict=True):
            if axis in axes:
                array = _along(array, some, axes.index(axis))
        return array

    def of_one_head(self, most: int) -> "Rows":
        """Those of the first head, `most` around the middle."""
        first = max(0, (len(self.q) - most) // 2)
        return Rows(self.b[:1], self.h[:1], self.q[first : first + most])


def _along(array: np.ndarray, some: Sequence[int], axis: int) -> np.ndarray:
    """Some of an array along an axis: a view where they follow each other."""
    low = min(some, default=0)
    if list(some) != list(range(low, low + len(some))):
        return array.take(some, axis)
    return array[(slice(None),) * axis + (slice(low, low + len(some)),)]


class Bounded(NamedTuple):
    """Values, and how far a right kernel may be from what they should be; both float64."""

    value: np.ndarray
    off: np.ndarray  #: NaN where a right kernel may give anything

    def plus(self, number: float | np.ndarray) -> "Bounded":
        """All values moved by an exact number."""
        return Bounded(self.value + number, self.off)

    def times(self, factor: float) -> "Bounded":
        """All values times an exact factor."""
        return Bounded(self.value * factor, self.off * abs(factor))


@dataclass(frozen=True, eq=False)
class Run:
    """What one run of a kernel left."""

    trace: Trace

    @property
    def stages(self) -> tuple[str, ...]:
        """Those of out and lse that the kernel gave."""
        return tuple(name for name in RESULTS if name in self.trace.stages)

    @property
    def large(self) -> bool:
        """Whether its budgets are of a part alone."""
        case = self.trace.case
        return case.score_count > LARGE

    @property
    def most_rows(self) -> int:
        """Rows whose budgets are found at once."""
        return max(1, LARGE // self.trace.case.seqlen_k)

    def values(self, name: str, rows: Rows) -> np.ndarray:
        """A stage in float64 at some rows."""
        return to_float64(rows.of(self.trace.stages[name]))

    def there(self, name: str, rows: Rows) -> np.ndarray | None:
        """Which slots of a stage at some rows are of queries and keys that exist, bool; None for all."""
        stage = ALGORITHMS[self.trace.algorithm][name]
        open_ = None if self._dont_care is None else self._dont_care.mask(stage)
        return None if open_ is None else ~rows.of(np.broadcast_to(open_, self.trace.stages[name].shape), stage.axes)

    @cached_property
    def _dont_care(self) -> DontCare | None:
        """Of a ragged batch."""
        trace = self.trace
        if not trace.case.ragged:
            return None
        return of_case(trace.case, trace.contract, visible(trace.case, trace.inputs))

    def bounded(self, name: str, rows: Rows) -> Bounded:
        """Out or lse at some rows, with its error budget from what the kernel read; anything goes in rows without keys,
        and where a right kernel overflows.
        """
        if not self.large:
            return Bounded(self.values(name, rows), rows.of(self._offs[name]))
        first = min(rows.q)
        off = offs(self.narrowed(rows))[name]
        return Bounded(self.values(name, rows), off.take([row - first for row in rows.q], 2))

    def narrowed(self, rows: Rows) -> Trace:
        """The trace, of a large run that of some rows of one head, as `smaller` leaves them."""
        if not self.large:
            return self.trace
        (b,), (h,) = rows.b, rows.h
        return narrowed(self.trace, Box(slice(b, b + 1), slice(h, h + 1), slice(min(rows.q), max(rows.q) + 1)))

    @cached_property
    def _offs(self) -> dict[str, np.ndarray]:
        return offs(self.trace)


def smaller(rows: Rows, *runs: Run) -> Rows:
    """The rows; where one of the runs is large as many as budgets of all are found of."""
    if not any(run.large for run in runs):
        return rows
    return rows.of_one_head(min(run.most_rows for run in runs))


def offs(trace: Trace) -> dict[str, np.ndarray]:
    """How far out and lse of a trace may be off, of its shape, as `Bounded` has it."""
    found = {}
    case, sees = trace.case, visible(trace.case, trace.inputs).any(-1)
    sees = np.broadcast_to(sees, (case.batch, case.heads, case.seqlen_q))
    for name, one in elements(trace).items():
        top = largest(one.actual.dtype)
        judged = ~np.isin(one.state, (State.POISONED, State.VACUOUS, State.ABSENT)) & np.isfinite(one.budget)
        judged &= abs(one.expected) + one.budget <= top
        judged &= sees if name == "lse" else sees[..., None]
        found[name] = np.where(judged, one.budget, np.nan)
    return found


def elements(trace: Trace) -> dict[str, Elements]:
    """Out and lse of a trace against what they should be given what the kernel read: q, k and v, its codes and scales,
    or stages that were put in. Casts of probs and of partial results are in the budgets.
    """
    kept = {*PROBE_SETS["output"], *trace.put_in}
    # casts that the reference could repeat, tile by tile, would make what should come out depend on the tiles
    promise = replace(trace.contract, assumed=(*trace.contract.assumed, "probs_rounding", "partials_rounding"))
    stages = {name: x for name, x in trace.stages.items() if name in kept}
    cut = Observed(replace(trace, stages=stages, contract=promise, requested=(), rerun=None))
    names = [name for name in RESULTS if name in cut.dumped]
    # put in stages are what the kernel read
    which = 0 if {*trace.put_in} & {*ALGORITHMS["split_k"]} else 1
    pairs = comparisons(cut, names, placed(cut, "auto"))
    found = {name: pair[which] or pair[1 - which] for name, pair in pairs.items()}
    return {name: one.elements for name, one in found.items() if one is not None}
