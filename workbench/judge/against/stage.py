"""One stage of two runs held against each other: how far apart they are, and how much of that arises there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from workbench.expectation.elements import UNJUDGED, WRONG, Comparison, Elements, State
from workbench.expectation.observed import Observed
from workbench.floats import ulp_error, unit_roundoff


@dataclass(frozen=True)
class Point:
    """One element in both runs, in natural units."""

    index: Mapping[str, int]  #: axis letter -> index
    a: float
    b: float
    expected_a: float  #: what float64 makes of the stages before it, as A dumped them
    expected_b: float  #: as B dumped them
    budget: float  #: sum of both: how much of a - b may arise here


@dataclass(frozen=True)
class StageAgainst:
    """One stage of two runs, its elements compared in natural units."""

    name: str
    axes: str  #: one letter an axis, as in `stages.py`
    tiles: tuple[int, ...] | None  #: key tiles that are compared; None: all
    given: tuple[str, ...]  #: nearest stages before it that both have, from which it is judged; () for q, k and v
    size: int  #: elements that both gave
    judged: int  #: of them, those that were judged in both
    differing: int  #: those that are not the same bit for bit
    outside: int  #: those of which more arises here than both budgets allow
    wrong: tuple[int, int]  #: of the ones outside, those beyond A's budget and those beyond B's
    carried: int  #: not outside, but farther apart than both budgets from q, k and v allow
    over_budgets: float  #: largest |own| / sum of budgets; inf for a NaN or another class, nan where nothing was judged
    max_abs: float  #: largest |a - b| that is a number; nan where none is
    max_own: float  #: largest part of it that arises here
    max_ulp: float  #: largest |a - b| in ulps at b, of the coarser of both dtypes
    worst: Point | None  #: where most arises here, in units of the budgets, else where they differ most; None: nowhere

    @property
    def verdict(self) -> str:
        """diverges, carried, untestable, identical or rounding."""
        if self.outside:
            return "diverges"
        if self.carried:
            return "carried"
        if not self.judged:
            return "untestable"
        return "rounding" if self.differing else "identical"


@dataclass(frozen=True)
class Side:
    """A stage of one run in float64, in natural units: the elements that are compared."""

    actual: np.ndarray
    expected: np.ndarray
    budget: np.ndarray
    state: np.ndarray
    dtype: np.dtype  #: in which the stage is stored

    @property
    def judged(self) -> np.ndarray:
        """Which elements were judged, bool."""
        return ~np.isin(self.state, UNJUDGED)

    @property
    def wrong(self) -> np.ndarray:
        """Which elements are beyond their budget, bool."""
        return np.isin(self.state, WRONG)

    @property
    def error(self) -> np.ndarray:
        """actual - expected. Of an element that is right at most its budget, whatever convention made it so: an
        infinity after an overflow, the kernel's own value for a row without keys.
        """
        error = np.where(self.actual == self.expected, 0.0, self.actual - self.expected)
        right = np.where(
            np.isfinite(error), np.where(abs(error) > self.budget, np.sign(error) * self.budget, error), 0.0
        )
        return np.where(self.wrong, error, right)


@np.errstate(all="ignore")
def side(run: Observed, name: str, comparison: Comparison, axes: str, keep: Mapping[str, np.ndarray]) -> Side:
    """A compared stage of a run; of axes in `keep` the indices that are True there."""
    elements: Elements = comparison.load()
    factor = 1 / run.unit(name)

    def cut(array: np.ndarray) -> np.ndarray:
        for i, axis in enumerate(axes):
            array = np.compress(keep[axis], array, axis=i) if axis in keep else array
        return array

    return Side(
        run.natural(name, cut(elements.actual)),
        cut(elements.expected) * factor,
        cut(elements.budget) * factor,
        cut(elements.state),
        elements.actual.dtype,
    )


@np.errstate(all="ignore")
def parting(a: Side, b: Side) -> tuple[np.ndarray, np.ndarray]:
    """What of a - b arises in the stage, and that in units of both budgets: inf where one is NaN or of another class
    than it should be and the other is not alike, nan where either was not judged. Above 1 only where one is wrong,
    since the error of what is right is at most its budget.
    """
    own = a.error - b.error
    alike = (np.isnan(a.actual) & np.isnan(b.actual)) | ((a.actual == b.actual) & np.isinf(a.actual))
    own = np.where(alike | (a.error == b.error), 0.0, own)
    over = np.where(own == 0, 0.0, abs(own) / (a.budget + b.budget))
    over = np.where(np.isnan(over), np.inf, over)
    return own, np.where(a.judged & b.judged, over, np.nan)


@np.errstate(all="ignore")
def stage_against(
    name: str, axes: str, tiles: np.ndarray | None, keep: Mapping[str, np.ndarray], given: Sequence[str],
    here: tuple[Side, Side], from_inputs: tuple[Side, Side],
) -> StageAgainst:  # fmt: skip
    """A stage of two runs: judged from the stages `given`, `here`, and from q, k and v."""
    a, b = here
    (own, over), (_, over_all) = parting(*here), parting(*from_inputs)
    outside, judged = over > 1, ~np.isnan(over)
    carried = (over_all > 1) & ~outside
    equal = (a.actual == b.actual) & (np.signbit(a.actual) == np.signbit(b.actual))
    present = (a.state != State.ABSENT) & (b.state != State.ABSENT)
    same = equal | (np.isnan(a.actual) & np.isnan(b.actual)) | ~present
    apart = np.where(same, 0.0, abs(a.actual - b.actual))
    ulps = abs(ulp_error(a.actual, b.actual, max((a.dtype, b.dtype), key=unit_roundoff)))
    return StageAgainst(
        name=name,
        axes=axes,
        tiles=None if tiles is None else tuple(int(t) for t in np.flatnonzero(tiles)),
        given=tuple(given),
        size=int(present.sum()),
        judged=int(judged.sum()),
        differing=int((~same).sum()),
        outside=int(outside.sum()),
        wrong=(int((outside & a.wrong).sum()), int((outside & b.wrong).sum())),
        carried=int(carried.sum()),
        over_budgets=_largest(over[judged]),
        max_abs=_largest(apart[np.isfinite(apart)]),
        max_own=_largest(abs(own)[judged & np.isfinite(own)]),
        max_ulp=_largest(np.where(same, 0.0, ulps)[same | np.isfinite(ulps)]),
        worst=_worst(a, b, axes, keep, over, apart),
    )


def _largest(values: np.ndarray) -> float:
    return float(values.max()) if values.size else float("nan")


def _worst(
    a: Side, b: Side, axes: str, keep: Mapping[str, np.ndarray], over: np.ndarray, apart: np.ndarray
) -> Point | None:
    """The element of which most arises here, in units of the budgets; where nothing does, that farthest apart."""
    for measure in (over, np.where(np.isnan(apart), np.inf, apart)):
        ranked = np.where(np.isnan(measure), 0.0, measure)
        if ranked.size and ranked.max() > 0:
            at = np.unravel_index(int(ranked.argmax()), ranked.shape)
            kept = {axis: np.flatnonzero(mask) for axis, mask in keep.items()}
            index = {axis: int(kept[axis][i] if axis in kept else i) for axis, i in zip(axes, at, strict=True)}
            values = (a.actual, b.actual, a.expected, b.expected, a.budget + b.budget)
            return Point(index, *(float(array[at]) for array in values))
    return None
