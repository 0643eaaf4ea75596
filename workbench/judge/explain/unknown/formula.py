"""A formula of what a wrong array holds, and whether it holds."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from workbench.floats import ulp
from workbench.judge.explain.unknown.difference import SEED, Difference, at

#: a formula reproduces this share of the wrong elements that it speaks of, of which so many have numbers of their own
SHARE, INDEPENDENT = 0.99, 100
#: and leaves at most this share of the error, in the Euclidean norm
UNEXPLAINED = 0.1
#: wrong elements on which formulas are tried; what holds there is counted on all
TRIED = 2**14


@dataclass(frozen=True)
class Formula:
    """What the wrong elements of an array are."""

    text: str  #: "actual = expected * 2"
    residual: float  #: largest |actual - formula| of these, in units of the budget times the formula's factor
    of: int  #: elements that it reproduces
    wrong: int  #: wrong elements of the array that it speaks of: the stage, or an operand
    unexplained: float  #: ||actual - formula|| / ||actual - expected||, over the elements that the formula speaks of
    #: map: of other indices; constant: one number; learned: numbers of this run, one for each group
    kind: str = ""

    def __str__(self) -> str:
        return f"{self.text}, at {self.of} of {self.wrong} wrong elements, residual {self.residual:.2g}x its budget"


@dataclass(frozen=True, eq=False)
class Places:
    """Some wrong elements that are numbers, in two halves: from one a formula is learned, on the other it is tried."""

    found: Difference
    where: tuple[np.ndarray, ...]

    @cached_property
    def actual(self) -> np.ndarray:
        return at(self.found.actual, self.where)

    @cached_property
    def expected(self) -> np.ndarray:
        return at(self.found.expected, self.where)

    @cached_property
    def bound(self) -> np.ndarray:
        return at(self.found.bound, self.where)

    @cached_property
    def learned(self) -> np.ndarray:
        """Which of them one learns from."""
        return np.random.default_rng(SEED).random(len(self.where[0])) < 0.5

    def of(self, array: np.ndarray) -> np.ndarray:
        """An array that broadcasts against the stage, at these elements."""
        return at(array, self.where)


def places(found: Difference, few: bool = False) -> Places:
    """The wrong elements of an array but for NaN and infinities, of which no formula speaks; of `few` TRIED."""
    where = np.nonzero(found.wrong & np.isfinite(found.actual))
    if few and len(where[0]) > TRIED:
        some = np.sort(np.random.default_rng(SEED).choice(len(where[0]), TRIED, replace=False))
        where = tuple(i[some] for i in where)
    return Places(found, where)


@np.errstate(all="ignore")
def holds(text: str, some: Places, tried: np.ndarray, growth: np.ndarray | float = 1.0) -> Formula | None:
    """The formula where it reproduces what is wrong; None where it does not. `tried`: what it makes of the elements,
    NaN of those that it does not speak of, of which there are fewer than half. `growth`: by how much it makes their
    budgets larger.
    """
    tried = np.broadcast_to(tried, some.actual.shape)
    said = np.isfinite(tried)
    tolerance = some.bound * np.maximum(growth, 1.0) + ulp(tried, some.found.actual.dtype) / 2
    error = np.abs(some.actual - tried)
    explained, halves = said & (error <= tolerance), (some.learned, ~some.learned)
    if not 2 * said.sum() > len(said):
        return None
    if not all((explained & half).sum() >= SHARE * (said & half).sum() for half in halves):
        return None
    if not _independent(some, tried, explained & ~some.learned) >= INDEPENDENT:
        return None
    known = said & np.isfinite(some.expected)
    left, all_ = (np.linalg.norm((some.actual - x)[known]) for x in (tried, some.expected))
    unexplained = float(left / all_) if known.any() else 0.0
    if not unexplained <= UNEXPLAINED:
        return None
    over = (error / tolerance)[explained & (error > 0)]
    count = int(some.found.wrong.sum())
    return Formula(text, float(over.max(initial=0.0)), int(explained.sum()), count, unexplained)


def _independent(some: Places, tried: np.ndarray, fresh: np.ndarray) -> int:
    """Different numbers among those that the formula makes, or of a constant among those that it makes them of."""
    return max(len(np.unique(tried[fresh])), len(np.unique(some.expected[fresh])))
