"""A stage held against what it should be: the verdict on every element, and what the elements add up to."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np

from workbench.arrays import on_cpu
from workbench.floats import array_namespace, largest, round_to, to_float64, ulp, ulp_error
from workbench.reference.bound import Budget


class State(IntEnum):
    """The verdict on an element."""

    EXACT = 0  #: the correct rounding of what it should be
    ROUNDING = 1  #: within its statistical budget
    SUSPICIOUS = 2  #: within its budget, but beyond the statistical one
    OUTSIDE = 3  #: beyond its budget
    NAN = 4  #: NaN, or of another class (finite, +inf, -inf) than expected
    UNWRITTEN = 5  #: the slot still holds what it was filled with before the run
    POISONED = 6  #: the element's own dumped inputs turn into NaN: not judged
    VACUOUS = 7  #: the budget is not finite or as large as the terms themselves, so it would pass anything: not judged
    ABSENT = 8  #: nobody gave the element: neither judged nor counted
    EMPTY = 9  #: of a row without keys, and not what the contract says of these


#: states outside their budget, and states without a judgement
WRONG = (State.OUTSIDE, State.NAN, State.UNWRITTEN, State.EMPTY)
UNJUDGED = (State.POISONED, State.VACUOUS, State.ABSENT)
#: upper edges of the bins that x of budget is counted in, after the one for 0; inf has a bin of its own
BINS = (0.01, 0.1, 0.5, 1.0, 2.0, 10.0, np.finfo(np.float64).max)


@dataclass(frozen=True)
class Elements:
    """A comparison element by element: arrays of the stage's shape, as they are kept and shown. What they add up to is
    its `Summary`.
    """

    actual: np.ndarray  #: as dumped, in the stage's dtype
    expected: np.ndarray  #: float64
    budget: np.ndarray  #: float64, forward error bound: largest |actual - expected| of a kernel that keeps its contract
    statistical: np.ndarray  #: float32, the probabilistic bound in units of the budget, at most 1
    over_budget: np.ndarray  #: float32, |actual - expected| / budget; inf where NAN or UNWRITTEN, nan where not judged
    state: np.ndarray  #: uint8, a State each


@dataclass(frozen=True, repr=False)
class Element:
    """One element of a stage."""

    place: tuple[int, ...]  #: index in the whole stage, as it was dumped
    actual: float
    expected: float
    budget: float
    over_budget: float
    state: State
    index: Mapping[str, int] = field(default_factory=dict)  #: axis letter -> index in the run, where the axes are told

    def __repr__(self) -> str:
        place = " ".join(f"{axis}={i}" for axis, i in self.index.items())
        values = f"actual {self.actual:.9g}, expected {self.expected:.9g}, {self.over_budget:.3g}x its budget"
        return f"<Element {place}: {values}, {self.state.name.lower()}>"


@dataclass(frozen=True)
class Summary:
    """What the elements of a comparison add up to; summaries of parts add up to that of the whole."""

    states: np.ndarray  #: elements in each State
    bins: np.ndarray  #: judged elements by x of budget: 0, then up to each edge of BINS, then inf
    sum_signed: float  #: of the signed errors that are numbers
    numbers: int  #: how many these are
    max_abs: float  #: largest |error| that is a number; nan where none is
    max_ulp: float  #: the same in ulps of the stage's dtype
    #: the element with the largest x of budget in float32, which is equal where float64 sums differ in their order
    #: alone, and of equals the first in C order; one of a row without keys where no other is wrong; None where nothing
    #: was judged
    worst: "Element | None"

    @property
    def size(self) -> int:
        """Elements that were given."""
        return int(self.states.sum() - self.states[State.ABSENT])

    def count(self, *states: State) -> int:
        """Elements in any of the states."""
        return int(sum(self.states[state] for state in states))

    @property
    def outside(self) -> int:
        """Elements outside their budget."""
        return self.count(*WRONG)

    @property
    def judged(self) -> int:
        """Elements that were judged."""
        return int(self.states.sum()) - self.count(*UNJUDGED)

    @property
    def mean_signed(self) -> float | None:
        """Mean of the signed errors that are numbers; None where none is."""
        return self.sum_signed / self.numbers if self.numbers else None

    def __add__(self, other: "Summary") -> "Summary":
        pairs = [worst for worst in (self.worst, other.worst) if worst is not None]
        return Summary(
            self.states + other.states,
            self.bins + other.bins,
            self.sum_signed + other.sum_signed,
            self.numbers + other.numbers,
            float(np.fmax(self.max_abs, other.max_abs)),
            float(np.fmax(self.max_ulp, other.max_ulp)),
            min(pairs, key=lambda worst: (_place(worst), -_rank(worst.over_budget), worst.place), default=None),
        )


def _place(worst: "Element") -> int:
    """0 where a row with keys is wrong; 1 where one without is, which is no error of arithmetic; 2 where nothing is."""
    return 1 if worst.state == State.EMPTY else 0 if worst.state in WRONG else 2


@np.errstate(over="ignore")
def _rank(over_budget: float) -> np.float32:
    return np.float32(over_budget)


@dataclass(frozen=True)
class Comparison:
    """A stage against one expectation."""

    summary: Summary
    load: Callable[[], Elements] = field(repr=False)  #: the elements, kept or computed again

    @cached_property
    def elements(self) -> Elements:
        """Every element; those of a large trace are computed when they are first asked for."""
        return self.load()

    @property
    def actual(self) -> np.ndarray:
        """As dumped, in the stage's dtype."""
        return self.elements.actual

    @property
    def expected(self) -> np.ndarray:
        """What the stage should be, float64."""
        return self.elements.expected

    @property
    def budget(self) -> np.ndarray:
        """The largest |actual - expected| of a correct kernel, float64."""
        return self.elements.budget

    @property
    def statistical(self) -> np.ndarray:
        """The statistical budget in units of the budget, float32."""
        return self.elements.statistical

    @property
    def over_budget(self) -> np.ndarray:
        """|actual - expected| / budget, float32; inf where NAN or UNWRITTEN, nan where not judged."""
        return self.elements.over_budget

    @property
    def state(self) -> np.ndarray:
        """A State each, uint8."""
        return self.elements.state

    @property
    def outside(self) -> np.ndarray:
        """Which elements are judged and outside their budget, bool; of rows without keys where no others are: these
        follow conventions, and would hide what is wrong elsewhere.
        """
        wrong = np.isin(self.state, WRONG)
        empty = self.state == State.EMPTY
        return wrong & ~empty if (wrong & ~empty).any() else wrong

    @property
    def judged(self) -> np.ndarray:
        """Which elements were judged, bool."""
        return ~np.isin(self.state, UNJUDGED)

    @property
    def error(self) -> np.ndarray:
        """Signed error actual - expected, float64; 0 for equal infinities, NaN where the classes differ."""
        actual = to_float64(self.actual)
        with np.errstate(invalid="ignore"):
            error = np.where(actual == self.expected, 0.0, actual - self.expected)
        return np.where(np.isfinite(error) & (self.state != State.ABSENT), error, np.nan)

    @property
    def error_ulp(self) -> np.ndarray:
        """Signed error in ulps of the dtype that stores the stage, fractional; NaN where the classes differ."""
        return ulp_error(to_float64(self.actual), self.expected, self.actual.dtype)

    @property
    def exact(self) -> bool:
        """Whether every judged element is the correct rounding of its expectation to the stage's dtype."""
        return 0 < self.summary.judged == self.summary.count(State.EXACT)


def whole(elements: Elements) -> Comparison:
    """The comparison of a stage all of whose elements are at hand."""
    found = Compared(
        to_float64(elements.actual), elements.expected, elements.budget, elements.statistical, elements.over_budget,
        elements.state, ulp(elements.expected, elements.actual.dtype),
    )  # fmt: skip
    return Comparison(summary(found, (0,) * elements.actual.ndim), lambda: elements)


@dataclass(frozen=True)
class Compared:
    """Some elements of a stage compared, on their way to a Summary: as Elements, but all in float64 (`state` as uint8)
    and on the device on which they are compared.
    """

    actual: np.ndarray
    expected: np.ndarray
    budget: np.ndarray
    statistical: np.ndarray
    over_budget: np.ndarray
    state: np.ndarray
    spacing: np.ndarray  #: an ulp of the stage's dtype at the expectation


def kept(stage: np.ndarray, found: Compared) -> Comparison:
    """The comparison of a `stage` as it was dumped, whose elements all were `found`, on any device; there they stay
    until they are asked for.
    """

    @np.errstate(over="ignore")  # of x of budget in float32
    def load() -> Elements:
        parts = (found.expected, found.budget, found.statistical, found.over_budget, found.state)
        expected, budget, statistical, over, state = map(on_cpu, parts)
        return Elements(stage, expected, budget, statistical.astype(np.float32), over.astype(np.float32), state)

    elements = load() if isinstance(found.state, np.ndarray) else None
    return Comparison(summary(found, (0,) * stage.ndim), load if elements is None else lambda: elements)


@np.errstate(all="ignore")
def compare(
    actual: np.ndarray, unwritten: np.ndarray, expected: np.ndarray, budget: Budget, dtype: Any, saturates: bool = False
) -> Compared:
    """`actual` (float64, of `dtype`) against `expected` within `budget`; arrays of one shape, of NumPy or torch.

    Class before size: an unwritten slot, then a NaN expectation (poisoned), then a NaN or another class than expected,
    then the budget. Half an ulp of the dtype is always allowed, so an exact stage allows what rounds to it and nothing
    else. Where |expected| + budget reaches beyond the largest value of the dtype, an infinity is right, or that value
    where casts saturate.
    """
    xp = array_namespace(actual)
    spacing = ulp(expected, dtype)
    bound = xp.maximum(budget.bound, spacing / 2)
    likely = bound if budget.statistical is budget.bound else xp.maximum(budget.statistical, spacing / 2)
    error = abs(actual - expected)
    over = error / bound
    inexact = actual != xp.round(expected / spacing) * spacing
    state = xp.astype(inexact, xp.uint8) + xp.astype(error > likely, xp.uint8) + xp.astype(over > 1, xp.uint8)
    over, state = xp.asarray(over), xp.asarray(state)  # NumPy makes numbers of arrays without axes
    share = likely / bound
    top = largest(dtype)
    size: Any = budget.size
    limit: Any = np.inf if isinstance(size, float) else xp.maximum(size, spacing)
    # whatever is not a plain number within the range of its dtype is looked at in full; the rest is not touched again
    plain = (bound < limit) & (abs(expected) + bound <= top)
    if not isinstance(size, float):
        plain &= (size <= top) | (size == np.inf)
    odd = ~(plain & xp.isfinite(actual)) | unwritten
    if bool(xp.any(odd)):
        one = Compared(actual[odd], expected[odd], bound[odd], likely[odd], over[odd], state[odd], spacing[odd])
        reach = (np.inf, np.inf) if isinstance(size, float) else (size[odd], limit[odd])
        over[odd], state[odd] = _in_full(one, unwritten[odd], budget.bound[odd], reach, dtype, saturates)
    return Compared(actual, expected, bound, share, over, state, spacing)


def _in_full(
    found: Compared, unwritten: np.ndarray, bare: np.ndarray, reach: tuple[Any, Any], dtype: Any, saturates: bool
) -> tuple[np.ndarray, np.ndarray]:
    """x of budget and State of elements that may be infinite, NaN, unwritten or without a meaningful budget; `bare` is
    the budget without the half ulp, `reach` the size from which on it is vacuous (`Budget.size`), and the same with an
    ulp at least.
    """
    size, limit = reach
    xp = array_namespace(found.actual)
    value, expected, bound, top = found.actual, found.expected, found.budget, largest(dtype)
    equal = value == expected
    over = xp.where(equal, 0.0, abs(value - expected) / bound)
    overflows = xp.isfinite(expected) & (abs(expected) + bound > top)
    beyond = overflows & ((abs(value) == top) if saturates else xp.isinf(value))
    beyond = beyond & (xp.sign(value) == xp.sign(expected))
    allowed = (xp.isfinite(value) & xp.isfinite(expected)) | equal | beyond
    # where the terms themselves overflow, inf - inf may make a NaN of a correct sum
    terms_overflow = xp.zeros_like(equal) | ((size < np.inf) & (size > top))
    vacuous = terms_overflow | ~xp.isfinite(bare) | (bare >= limit)
    over = xp.where(beyond, xp.minimum(xp.where(xp.isnan(over), 1.0, over), 1.0), over)

    rounded = round_to(expected, dtype, saturates=saturates)
    state = xp.where(value == rounded, float(State.EXACT), float(State.ROUNDING))
    state = xp.where(abs(value - expected) > found.statistical, float(State.SUSPICIOUS), state)
    state = xp.where(beyond, xp.where(value == rounded, float(State.EXACT), float(State.ROUNDING)), state)
    state = xp.where(equal, float(State.EXACT), state)
    state = xp.where(over > 1, float(State.OUTSIDE), state)
    state = xp.where(vacuous & ~(over > 1), float(State.VACUOUS), state)
    state = xp.where(~allowed & ~terms_overflow, float(State.NAN), state)
    state = xp.where(xp.isnan(expected), float(State.POISONED), state)
    state = xp.where(unwritten, float(State.UNWRITTEN), state)
    over = xp.where((state == State.NAN) | (state == State.UNWRITTEN), np.inf, over)
    over = xp.where((state == State.POISONED) | (state == State.VACUOUS), np.nan, over)
    return over, xp.astype(state, xp.uint8)


def element(of: "Compared | Comparison", place: tuple[int, ...], offset: Sequence[int] = ()) -> Element:
    """The element at a place of what was compared, which begins at an offset in its stage."""
    return Element(
        place=tuple(i + first for i, first in zip(place, offset or (0,) * len(place), strict=True)),
        actual=float(of.actual[place]),
        expected=float(of.expected[place]),
        budget=float(of.budget[place]),
        over_budget=float(of.over_budget[place]),
        state=State(int(of.state[place])),
    )


@np.errstate(all="ignore")
def summary(found: Compared, offset: tuple[int, ...]) -> Summary:
    """What a part of a stage adds up to; `offset` is the index of its first element in the whole."""
    xp = array_namespace(found.state)
    states = np.array([int(xp.count_nonzero(found.state == state)) for state in State])
    error = found.actual - found.expected
    over, size = found.over_budget, states.sum()
    clean = states[[State.NAN, State.UNWRITTEN, *UNJUDGED]].sum() == 0
    known = xp.isfinite(error)
    numbers = int(xp.count_nonzero(known))
    finite = numbers == size
    if not finite:
        equal = found.actual == found.expected  # infinities
        error, known = xp.where(equal | ~known, 0.0, error), known | equal
        numbers = int(xp.count_nonzero(known))
    size_of_error = abs(error)
    ulps = size_of_error / found.spacing
    if not finite:
        ulps = xp.where(xp.isfinite(ulps), ulps, 0.0)
    ranked = xp.astype(over if clean else xp.where(xp.isnan(over), -1.0, over), xp.float32)
    worst, top = None, -1.0
    if size:
        top = float(np.nextafter(np.float32(float(xp.max(ranked))), np.float32(np.inf)))
        if states[State.EMPTY]:
            others = any(states[state] for state in WRONG if state != State.EMPTY)
            ranked = xp.where((found.state == State.EMPTY) == others, -1.0, ranked)
        flat = int(xp.argmax(xp.reshape(ranked, (-1,))))
        place = tuple(int(i) for i in np.unravel_index(flat, tuple(ranked.shape)))
        if ranked[place] >= 0:
            worst = element(found, place, offset)
    # no bin above the largest is counted, which is at most the float32 after its own
    judged = int(size - states[list(UNJUDGED)].sum())
    below = [int(xp.count_nonzero(over == 0))] if top > 0 else [judged]
    below += [int(xp.count_nonzero(over <= edge)) if top > edge else judged for edge in BINS]
    bins = np.array([*np.diff(below, prepend=0), judged - below[-1]])
    return Summary(
        states,
        bins,
        float(xp.sum(error)) if numbers else 0.0,
        numbers,
        float(xp.max(size_of_error)) if numbers else float("nan"),
        float(xp.max(ulps)) if numbers else float("nan"),
        worst,
    )
