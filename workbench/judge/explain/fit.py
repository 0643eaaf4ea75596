"""Whether a hypothesis reproduces a kernel's wrong numbers: coarsely for all of them, and within error budgets."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from workbench.expectation.elements import Compared, State
from workbench.floats import largest
from workbench.judge.explain.coded import Coded
from workbench.judge.explain.hypothesis import Hypothesis
from workbench.judge.explain.scene import Scene, mismatched

#: of what was wrong this share may be left unexplained, beside what storing rounds: what changes nothing leaves all
UNEXPLAINED = 0.2
#: share that is none: float32 rounds as much
NOTHING = 2.0**-20
#: the same on another run, where one hypothesis is asked and not thousands: a cast that turns the other way in a large
#: score moves a row by as much as the fault does
LEFT_ELSEWHERE = 0.5
#: share of elements that may be off where a narrow cast turned the other way
FLIPS = 0.005
#: numbers as near below the largest of a dtype may round to infinity or not, relative: an ulp of bfloat16
OVERFLOW = 2.0**-8
#: relative error of a number that is as predicted where the budget would pass anything
CLOSE = 1e-4
#: reproduced values that make a proof: fewer fit by coincidence
PROOF = 100


@dataclass(frozen=True, eq=False)
class Fit:
    """A hypothesis that was held against the stages that it touches."""

    hypothesis: Hypothesis
    stages: tuple[str, ...]  #: wrong stages that it reproduces
    over_budget: float  #: the largest x of budget, of what is reproduced
    residual: float  #: root mean square of x of budget: how near
    unexplained: float  #: share of the error that is left
    off: int  #: elements that are not as predicted, of `of`
    of: int
    values: int  #: numbers that the fault moves and the prediction hits
    nan: int  #: elements that are NaN, all of which it predicts and no other: a pattern, and no number

    @property
    def of_nan_alone(self) -> bool:
        """Whether it reproduces no number, but only where NaN is."""
        return self.values == 0


def unexplained(scene: Scene | Coded, name: str, predicted: np.ndarray, wrong: np.ndarray) -> float:
    """Share of the error of a stage, at its wrong elements, that a prediction leaves: ||actual - predicted|| over
    ||actual - expected||, less what storing rounds. 1 or more where NaN and infinities are elsewhere.
    """
    actual, expected, stored, y = (
        x[wrong] for x in (scene.actual[name], scene.expected[name], scene.stored[name], predicted)
    )
    if not y.size:
        return 1.0
    top = _top(scene, name)
    finite = (abs(actual) < top) & (abs(y) <= top)  # more than `top` the kernel's own dtype cannot hold
    if not finite.all():
        both_infinite = (abs(actual) >= top) & (abs(y) > top) & (np.sign(actual) == np.sign(y))
        agree = finite | (np.isnan(actual) & np.isnan(y)) | both_infinite | _overflowed(actual, y, top)
        if (_infinite_once(actual, y) & ~agree).any() or (~agree).sum() > FLIPS * agree.size:
            return 1.0
    finite &= np.isfinite(expected)
    if not finite.all():
        actual, expected, stored, y = (x[finite] for x in (actual, expected, stored, y))
    if not y.size:
        return 0.0
    left, error = abs(actual - y), abs(actual - expected)
    # products of large numbers must not overflow
    size = max(float(error.max()), np.finfo(np.float64).tiny)
    rest = _norm(np.maximum(left - stored, 0.0) / size)
    return float(rest / max(_norm(error / size), np.finfo(np.float64).tiny))


def _top(scene: Scene | Coded, name: str) -> float:
    """The largest number that a stage can hold; every code is one."""
    dtype = scene.trace.stages[name].dtype
    return float(np.finfo(np.float64).max) if dtype == np.uint8 else float(largest(dtype))


def _infinite_once(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Where one of the two is infinite, and the other a number."""
    return (np.isinf(x) & np.isfinite(y)) | (np.isinf(y) & np.isfinite(x))


def _overflowed(actual: np.ndarray, predicted: np.ndarray, top: float) -> np.ndarray:
    """Where one is infinite, and the other a rounding away from what overflows."""
    near = (1 - OVERFLOW) * top
    return (abs(actual) >= near) & (abs(predicted) >= near) & (np.sign(actual) == np.sign(predicted))


def missed(scene: Scene | Coded, name: str, predicted: np.ndarray, allowed: np.ndarray) -> float:
    """Share of the elements of a stage that a prediction does not hit to some digits; `allowed`: of a right kernel."""
    actual = scene.actual[name]
    hit = abs(actual - predicted) <= allowed + CLOSE * abs(predicted)
    return float(np.mean(~(hit | (actual == predicted) | (np.isnan(actual) & np.isnan(predicted)))))


def _norm(x: np.ndarray) -> float:
    return float(np.sqrt(x @ x / x.size))


def _contradicted(scene: Scene | Coded, name: str, one: Compared, bad: np.ndarray) -> bool:
    """Whether a number is infinite or NaN on one side alone, or all of a stage NaN."""
    infinite = bad & _infinite_once(one.actual, one.expected)
    if (infinite & ~_overflowed(one.actual, one.expected, _top(scene, name))).any():
        return True
    nan = np.isnan(one.actual)
    return bool((bad & (nan ^ np.isnan(one.expected))).any() or (nan.size and nan.all()))


def _one_number(x: np.ndarray) -> bool:
    """Whether a stage holds one number everywhere, as where nothing was computed: many a fault before it makes that."""
    return bool(np.all(x == x.flat[0]))


def _widened(scene: Scene | Coded, name: str, one: Compared, moved: np.ndarray) -> float:
    """By how much the budgets of a kernel with the fault are wider than those of a right one, where numbers are hit: so
    many times as much is within them by chance. As a whole or in the median, whichever is less: a fault that makes a
    few numbers huge makes their budgets huge, and one that keeps what should be dropped has budgets where a right
    kernel has none; neither widens all others.
    """
    if not moved.any():
        return 1.0
    right = scene.allowed(name)[moved] * abs(scene.run.unit(name))
    tiny = np.finfo(np.float64).tiny
    whole = _norm(one.budget[moved]) / max(_norm(right), tiny)
    return max(1.0, min(whole, float(np.median(one.budget[moved] / np.maximum(right, tiny)))))


@np.errstate(all="ignore")
def fit(
    scene: Scene | Coded, hypothesis: Hypothesis, wrong: Mapping[str, np.ndarray], *, elsewhere: bool = False
) -> Fit | None:
    """The hypothesis held against every stage that it touches, within the budgets of a kernel with this fault: None
    where it reproduces no wrong stage, or not all that it touches, or breaks one that is right. A rounding may turn the
    other way in a few elements; a number where an infinity or NaN was predicted, or the other way round, is no
    rounding, and one such element refutes it. So does a stage that is nothing but NaN, which whatever reads NaN makes.
    Where the fault's own budgets are several times those of a right kernel, it must leave as many times less. A stage
    that is one number everywhere supports only what changes that stage itself.

    `wrong`: wrong stages -> which of their elements. `elsewhere`: of a hypothesis that was found in another run, of
    which less is asked; budgets that would pass anything count neither for it nor against it there.
    """
    touched = scene.touched(hypothesis)
    comparisons = scene.compared(hypothesis, touched)
    if comparisons is None:
        return None
    hits: list[str] = []
    off = of = hit = nan = 0
    farthest, squares, numbers, rest = 0.0, 0.0, 0, 0.0
    for name, one in comparisons.items():
        bad = mismatched(one, scene.of_empty)
        if _contradicted(scene, name, one, bad):
            return None
        aside = (State.VACUOUS, State.ABSENT, *(() if scene.of_empty else (State.EMPTY,)))
        judged = ~np.isin(one.state, aside)
        if name not in wrong:
            if bad.sum() > FLIPS * max(judged.sum(), 1):
                return None
            continue
        un = unexplained(scene, name, one.expected / scene.run.unit(name), wrong[name])
        # where no budget tells, a number that is hit to some digits does, and an infinity that was predicted
        near = abs(one.actual - one.expected) <= CLOSE * abs(one.expected)
        told = (judged | near | (one.actual == one.expected))[wrong[name]].mean()
        moved = wrong[name] & judged & ~bad & ~np.isnan(one.actual)
        nan += int((wrong[name] & ~bad & np.isnan(one.actual)).sum())
        # few values must be hit the better: of thousands of hypotheses one comes near a dozen of them by chance
        most = LEFT_ELSEWHERE
        if not elsewhere:
            most = UNEXPLAINED * min(1.0, np.sqrt(moved.sum() / PROOF)) / _widened(scene, name, one, moved)
        if bad.sum() > FLIPS * judged.sum() or un > most:
            return None
        if told < 0.5 and not elsewhere:
            return None
        hits.append(name)
        off, of = off + int(bad.sum()), of + int(judged.sum())
        hit += int(moved.sum())
        ratio = one.over_budget[np.isfinite(one.over_budget) & ~bad & judged]
        farthest = max(farthest, float(ratio.max(initial=0.0)))
        squares, numbers = squares + float((ratio**2).sum()), numbers + ratio.size
        rest = max(rest, un)
    if all(_one_number(scene.actual[name]) and name not in hypothesis.stages for name in hits):
        return None
    residual = float(np.sqrt(squares / max(numbers, 1)))
    return Fit(hypothesis, tuple(hits), farthest, residual, rest, off, of, hit, nan)
