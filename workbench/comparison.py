"""One stage held against what it should be: every element's error in units of its budget, and why an element was not
judged.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np

from workbench.budget import Budget
from workbench.errors import largest, round_to, ulp, ulp_error
from workbench.refusal import Refusal
from workbench.stages import AXIS_NAMES
from workbench.trace import to_float64, unwritten

#: verdicts of a stage that is wrong on its own inputs
ORIGIN_VERDICTS = ("missing", "bug")


class State(IntEnum):
    """What is known of an element, besides the size of its error."""

    JUDGED = 0  #: actual and expected are finite, or equal infinities
    NAN = 1  #: actual is NaN, or of another class (finite, +inf, -inf) than expected: always outside its budget
    UNWRITTEN = 2  #: the slot still holds what it was filled with before the run: always outside its budget
    POISONED = 3  #: the element's own dumped inputs turn into NaN: not judged
    VACUOUS = 4  #: the budget is not finite or as large as the terms themselves, so it would pass anything: not judged


@dataclass(frozen=True)
class Comparison:
    """A stage against one expectation; all arrays have the stage's shape."""

    actual: np.ndarray  #: as dumped, in the stage's dtype
    expected: np.ndarray  #: float64
    budget: np.ndarray  #: float64, the largest |actual - expected| of a correct kernel
    over_budget: np.ndarray  #: float64, |actual - expected| / budget; inf where NAN or UNWRITTEN, nan where not judged
    state: np.ndarray  #: uint8, a State each

    @property
    def outside(self) -> np.ndarray:
        """Which elements are judged and outside their budget, bool."""
        return self.over_budget > 1

    @property
    def judged(self) -> np.ndarray:
        """Which elements were judged, bool."""
        return ~np.isnan(self.over_budget)

    @property
    def error(self) -> np.ndarray:
        """Signed error actual - expected, float64; 0 for equal infinities, NaN where the classes differ."""
        actual = to_float64(self.actual)
        with np.errstate(invalid="ignore"):
            error = np.where(actual == self.expected, 0.0, actual - self.expected)
        return np.where(np.isfinite(error), error, np.nan)

    @property
    def error_ulp(self) -> np.ndarray:
        """Signed error in ulps of the dtype that stores the stage, fractional; NaN where the classes differ."""
        return ulp_error(to_float64(self.actual), self.expected, self.actual.dtype)

    @property
    def exact(self) -> bool:
        """Whether every judged element is the correct rounding of its expectation to the stage's dtype."""
        rounded = round_to(self.expected, self.actual.dtype)
        return bool(self.judged.any() and np.all(to_float64(self.actual)[self.judged] == rounded[self.judged]))


def compare(actual: np.ndarray, expected: np.ndarray, budget: Budget) -> Comparison:
    """`actual`, as dumped, against `expected` (float64) within `budget`; arrays of one shape.

    Class before size: an unwritten slot, then a NaN expectation (poisoned), then a NaN or another class than expected,
    then the budget. Half an ulp of the dtype is always allowed, so an exact stage allows what rounds to it and nothing
    else. An infinity is right where |expected| + budget reaches beyond the largest value of the dtype.
    """
    value, expected = to_float64(actual), np.asarray(expected, np.float64)
    with np.errstate(all="ignore"):
        bound = np.maximum(budget.bound, ulp(expected, actual.dtype) / 2)
        error = np.where(value == expected, 0.0, np.abs(value - expected))
        over = np.where(error == 0, 0.0, error / bound)
        overflows = np.isfinite(expected) & (np.abs(expected) + bound > largest(actual.dtype))
        allowed = (np.isfinite(value) & np.isfinite(expected)) | (value == expected)
        allowed |= overflows & np.isinf(value) & (np.sign(value) == np.sign(expected))
        # where the terms themselves overflow, inf - inf may make a NaN of a correct sum
        terms_overflow = np.isfinite(budget.size) & (budget.size > largest(actual.dtype))
        vacuous = (
            terms_overflow
            | ~np.isfinite(budget.bound)
            | (budget.bound >= np.maximum(budget.size, ulp(expected, actual.dtype)))
        )
    state = np.select(
        [unwritten(actual), np.isnan(expected), ~allowed & ~terms_overflow, vacuous & ~(over > 1)],
        [State.UNWRITTEN, State.POISONED, State.NAN, State.VACUOUS],
        State.JUDGED,
    ).astype(np.uint8)
    over = np.where(overflows & np.isinf(value), 1.0, over)
    over = np.where((state == State.NAN) | (state == State.UNWRITTEN), np.inf, over)
    over = np.where((state == State.POISONED) | (state == State.VACUOUS), np.nan, over)
    return Comparison(actual, expected, np.broadcast_to(bound, actual.shape), over, state)


@dataclass(frozen=True)
class Element:
    """One element of a stage."""

    index: Mapping[str, int]  #: axis letter -> index
    actual: float
    expected: float
    budget: float
    over_budget: float
    state: State


@dataclass(frozen=True)
class Profile:
    """A stage along one axis; arrays have one entry for each index of the axis."""

    axis: str
    outside: np.ndarray  #: elements outside their budget
    over_budget: np.ndarray  #: largest x of budget; NaN where nothing was judged
    mean_signed: np.ndarray  #: mean signed error; NaN where no element has one


@dataclass(frozen=True)
class StageDiff:
    """The judgement of one stage."""

    name: str
    axes: str  #: one letter an axis, as in `stages.py`
    verdict: str  #: exact, rounding, suspicious, biased, bug, untestable, missing; "not judged" where it cannot be
    isolated: Comparison | None  #: against the stage's own dumped inputs
    propagated: Comparison | None  #: against q, k, v
    judged_from: tuple[str, ...] = ()  #: nearest dumped ancestors, where a direct input was not dumped
    upstream: tuple[str, ...] = ()  #: stages that nobody saw, where the verdict covers them too
    reason: str = ""  #: why the stage is missing, untestable or not judged

    @property
    def decisive(self) -> Comparison | None:
        """The comparison that the verdict rests on: the isolated one where it exists."""
        return self.isolated if self.isolated is not None else self.propagated

    @property
    def role(self) -> str:
        """origin: wrong by its own verdict; victim: only its propagated error is outside; not judged; or clean."""
        if self.verdict in ORIGIN_VERDICTS:
            return "origin"
        if self.propagated is not None and self.propagated.outside.any():
            return "victim"
        return "not judged" if self.decisive is None or self.verdict == "untestable" else "clean"

    def worst(self, n: int = 1) -> list[Element]:
        """The n elements farthest outside their budget, the farthest first; fewer where fewer were judged."""
        return self.worst_of(self._judged(), n)

    def worst_of(self, comparison: Comparison, n: int) -> list[Element]:
        """As `worst`, of one of the stage's two comparisons."""
        over = comparison.over_budget.ravel()
        candidates = np.flatnonzero(~np.isnan(over))
        order = candidates[np.argsort(-over[candidates], kind="stable")[:n]]
        return [self._element(comparison, int(flat)) for flat in order]

    def at(self, **index: int) -> "StageDiff":
        """The stage narrowed to the given indices, by axis letter (b h q k d t s); the axes named go away.

        >>> d["acc"].at(b=0, q=63).worst(10)  # doctest: +SKIP
        """
        where: list[Any] = [slice(None)] * len(self.axes)
        for axis, i in index.items():
            if axis not in self.axes:
                raise Refusal(f"stage {self.name} has the axes {' '.join(self.axes)}; got {axis!r}")
            size = self._judged().actual.shape[self.axes.index(axis)]
            if not -size <= i < size:
                raise Refusal(f"stage {self.name}: {AXIS_NAMES[axis]} {axis} is 0 to {size - 1}; got {i}")
            where[self.axes.index(axis)] = i

        def narrowed(c: Comparison | None) -> Comparison | None:
            if c is None:
                return None
            parts = (c.actual, c.expected, c.budget, c.over_budget, c.state)
            return Comparison(*(np.asarray(part[tuple(where)]) for part in parts))

        axes = "".join(axis for axis in self.axes if axis not in index)
        return replace(self, axes=axes, isolated=narrowed(self.isolated), propagated=narrowed(self.propagated))

    def profile(self, axis: str) -> Profile:
        """Errors along one axis (a letter): where along it elements are outside, how far, and to which side."""
        if axis not in self.axes:
            raise Refusal(f"stage {self.name} has the axes {' '.join(self.axes)}; got {axis!r}")
        comparison = self._judged()
        others = tuple(i for i, other in enumerate(self.axes) if other != axis)
        over = comparison.over_budget
        error, known = comparison.error, np.isfinite(comparison.error)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.where(known, error, 0.0).sum(axis=others) / known.sum(axis=others)
        largest_over = np.where(np.isnan(over), -1.0, over).max(axis=others)
        return Profile(
            axis, comparison.outside.sum(axis=others), np.where(largest_over < 0, np.nan, largest_over), mean
        )

    def plot(self) -> Any:
        """The histogram of errors in units of budget, a matplotlib Figure."""
        from workbench.report.plots import histogram

        return histogram(self)

    def _judged(self) -> Comparison:
        if self.decisive is None:
            raise Refusal(f"stage {self.name} was not judged: {self.reason}")
        return self.decisive

    def _element(self, comparison: Comparison, flat: int) -> Element:
        index = np.unravel_index(flat, comparison.actual.shape)
        return Element(
            index={axis: int(i) for axis, i in zip(self.axes, index, strict=True)},
            actual=float(to_float64(comparison.actual)[index]),
            expected=float(comparison.expected[index]),
            budget=float(comparison.budget[index]),
            over_budget=float(comparison.over_budget[index]),
            state=State(int(comparison.state[index])),
        )
