"""Budgets drawn by samples, for elements that have no worst case, or one that says nothing.

A worst case decides wherever there is one. Behind a division by about 0 there is none, and a forward bound of a long
recurrence is so far from what roundings do that it passes anything.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from workbench.arrays import on_cpu
from workbench.floats import array_namespace
from workbench.judge.reference.sharper import MOST
from workbench.reference.bound import Budget
from workbench.reference.graph import Contract, Graph
from workbench.reference.graph.drawn import Drawn, drawn, in_common
from workbench.reference.graph.expected import placed
from workbench.reference.graph.shapes import spread

#: samples of a first pass, and of the one that elements beyond LIKELY are asked again with: of the smallest of a
#: million deviations 16 samples see a third, and 64 two thirds
FIRST, AGAIN = 16, 64
#: deviations beyond which an element is wrong, and suspicious. Of 535 results of 334 right runs the worst elements are
#: 1.2 deviations off in the median, and 4.5 at most (`python -m campaigns.drawn_budgets 3`): roundings of hardware have
#: 0.74 of what is drawn, of a million elements the largest is then 3.7, and 64 samples see no less than two thirds of a
#: deviation. The other half of LIKELY is for roundings that are alike; WRONG is twice that, since it has no other proof
WRONG, LIKELY = 16.0, 8.0
#: samples of a screening, and deviations of theirs beyond which no others would excuse an element: of the smallest of
#: ten million deviations four samples see a sixtieth, and errors within LIKELY of the true one are then 480 of these
SCREENED, HOPELESS = 4, 512.0
#: deviations of FIRST beyond which an element is not LIKELY by the true one: they see no less than a third of it
SURELY = 3 * LIKELY
#: a worst case of more deviations than this says nothing of an element. The worst case of a sum of a million equal
#: roundings is 1,700 deviations, and a forward bound is up to 6 times that of reverse mode unless it explodes
USELESS = 2.0**14
#: deviations up to which a statistical budget of reverse mode decides: that of a million elements is 13 of them, where
#: first order is all. Beyond, as of a recurrence that amplifies its roundings, samples do
SHARP = 32.0
#: elements that are asked in reverse mode first: where half of them are not SHARP, others would not be
FEW = 4
#: root mean square of errors, in deviations, that roundings of a contract have at least. Those of hardware have 0.74 of
#: what is drawn, a kernel that does half of what it may 0.5
SMALL = 1 / 8
#: share of the largest errors that are not looked at for that: a few wrong elements, or a row of 16, are no roundings
OUTLIERS = 1 / 16
#: errors share at most so many times the factor, or offset, that samples share: 16 samples and one rounding more are
#: beyond it once in 8,000 times, and roundings of hardware once in 200,000
COMMON = 5.0
#: where the exact value is 0, as of a first token's gradient, the least deviation, as a share of a typical one
OF_ZERO = 0.1


@dataclass(frozen=True)
class BySamples:
    """What samples say of elements of a stage, arrays of its shape, on the device of the graph's values."""

    where: Any  #: bool
    decides: Any  #: of these, which have no worst case that says anything
    blind: Any  #: elements without a useful worst case whose drawn budget would pass anything
    deviations: Any  #: how far each is off, beyond half an ulp of what it is stored in; NaN elsewhere
    samples: Any  #: of how many


class Samples:
    """Runs of a graph under one contract, with dumps in place of stages; made when they are asked for first. `trial`:
    whether it is enough to know that a contract does not explain an element.
    """

    def __init__(
        self, graph: Graph, contract: Contract, dumps: Mapping[str, Any], nodes: Collection[int], trial: bool = False
    ) -> None:
        self.graph, self.contract, self.nodes, self.trial = graph, contract, tuple(sorted(set(nodes))), trial
        self._dumps = dumps

    @cached_property
    def _first(self) -> dict[int, Drawn]:
        return self._drawn(FIRST, 0)

    @cached_property
    def _again(self) -> dict[int, Drawn]:
        return self._drawn(AGAIN, 1)

    def _drawn(self, samples: int, seed: int) -> dict[int, Drawn]:
        return drawn(self.graph, self.contract, self.nodes, placed(self.graph, self._dumps), samples, seed)

    def deviation(self, nodes: Sequence[int], again: bool = False) -> Any:
        """That of every element, several turns along a first axis."""
        found = self._again if again else self._first
        parts = [floored(found[i]) for i in nodes]
        return parts[0] if len(parts) == 1 else array_namespace(*parts).stack(parts)

    def value(self, nodes: Sequence[int]) -> Any:
        """What is exact, several turns along a first axis."""
        parts = [self._first[i].value for i in nodes]
        return parts[0] if len(parts) == 1 else array_namespace(*parts).stack(parts)

    def screened(self) -> dict[int, Drawn]:
        """The nodes over a few of them."""
        return self._drawn(SCREENED, 2)

    def is_chance(self, nodes: Sequence[int], errors: Sequence[np.ndarray], stored: Sequence[np.ndarray]) -> bool:
        """Whether errors of several turns look like those of samples: most as large, and with no more in common.
        stored: of each, half an ulp of what the values were rounded to when they were stored, 0 of what was not.
        """
        parts = zip(nodes, errors, stored, strict=True)
        return all(_is_alike(self._first[i], error, half) for i, error, half in parts)


@np.errstate(all="ignore")
def _is_alike(one: Drawn, error: np.ndarray, stored: np.ndarray) -> bool:
    figures = np.abs(error) / on_cpu(one.deviation)
    figures = np.sort(figures[np.isfinite(figures)])
    usual = figures[: figures.size - max(1, int(OUTLIERS * figures.size))] if figures.size > 1 else figures
    large = usual.size > 0 and float(np.sqrt(np.mean(usual**2))) >= SMALL
    value = on_cpu(one.value)
    common = zip(in_common(error, value), one.common, _of_storage(stored, value), strict=True)
    most = COMMON * _of_equals(value)
    return large and all(abs(x) <= most * np.hypot(drawn, own) for x, drawn, own in common)


def _of_equals(value: np.ndarray) -> float:
    """How many times as large as drawn ones what errors have in common may be, since equal numbers are rounded alike:
    the root of the sum of squares of what equal elements add to it over that of what each adds.
    """
    size = np.abs(value[np.isfinite(value) & (value != 0)])
    of_each, place = size * size, np.unique(size, return_inverse=True)[1]
    whole = np.bincount(place.ravel(), of_each)
    return float(np.sqrt(np.sum(whole**2) / np.sum(of_each**2))) if size.size else 1.0


def _of_storage(half: np.ndarray, value: np.ndarray) -> tuple[float, float]:
    """The deviations of the factor and the mean of `in_common` that rounding to nearest makes, which is uniform."""
    known = np.isfinite(half) & np.isfinite(value)
    half, value = half[known], value[known]
    size = float(np.sum(value**2))
    factor = float(np.sum((half * value) ** 2) / 3) ** 0.5 / size if size else 0.0
    return factor, float(np.sum(half**2) / 3) ** 0.5 / max(half.size, 1)


def floored(one: Drawn) -> Any:
    """The deviation; where the exact value is 0 at least a share of a typical one."""
    value, deviation = one.value, one.deviation
    xp, zero = array_namespace(deviation), value == 0
    if not bool(xp.any(zero)):
        return deviation
    least = OF_ZERO * _median(deviation[~zero & xp.isfinite(value) & xp.isfinite(deviation)])
    return xp.where(zero, xp.clip(deviation, least), deviation)


def _median(x: Any) -> float:
    """The middle one; the mean of the two middle ones; 0 of none."""
    if not prod(x.shape):
        return 0.0
    if isinstance(x, np.ndarray):
        return float(np.median(x))
    return float((x.median() - (-x).median()) / 2)  # torch's is the lower of two


#: bounds the n farthest elements in reverse mode: (distance, budget, n) -> the tightened budget, and which it answered
Reverse = Callable[[Any, Budget, int], tuple[Budget, Any]]


@np.errstate(all="ignore")
def judged_by_samples(
    samples: Samples, nodes: Sequence[int], error: Any, value: Any, budget: Budget,
    reverse: Reverse | None, dear: bool = False,
) -> tuple[Budget, BySamples | None]:  # fmt: skip
    """The budget with drawn ones in it, and where.

    error: of each element, beyond half an ulp of what it is stored in. reverse: None: samples judge
    only what has no worst case. dear: whether reverse mode is so costly that only elements beyond LIKELY ask for it.
    """
    xp = array_namespace(value)
    size = spread(budget.size, value)
    lacking = xp.isfinite(value) & (~xp.isfinite(budget.bound) | (budget.bound >= size))
    asked = lacking if reverse is None else xp.isfinite(value)
    if not bool(xp.any(asked)):
        return budget, None
    deviation, sharp, useless = samples.deviation(nodes), xp.zeros_like(value, dtype=xp.bool), reverse is not None
    if reverse is not None and not (dear and not bool(xp.any(error > LIKELY * deviation))):
        off, most = xp.where(xp.isfinite(budget.bound), error / deviation, 0.0), FEW
        while True:
            budget, answered = reverse(off, budget, most)
            sharp = answered & (budget.statistical <= SHARP * deviation)
            if most == MOST or 2 * int(sharp.sum()) < int(answered.sum()):
                break
            most = MOST
        # where reverse mode tells, the others have a worst case, too, which nobody asked for
        useless = not bool(xp.any(sharp)) or 2 * int(sharp.sum()) < int(answered.sum())
    asked = asked & ~sharp
    beyond = asked & (error > LIKELY * deviation)
    known = samples.trial and bool(xp.any(beyond & (error > SURELY * deviation)))
    if not known and bool(xp.any(beyond)):
        deviation = xp.where(beyond, samples.deviation(nodes, again=True), deviation)
    count = FIRST + (0 if known else AGAIN - FIRST) * xp.astype(beyond, xp.int64)
    # a budget as large as the values themselves would pass a 0
    reach = xp.minimum(xp.maximum(abs(value), _typical(value)), size)
    tells = xp.isfinite(deviation) & (WRONG * deviation < reach)
    says_nothing = asked & useless & ~(budget.bound <= USELESS * deviation)
    blind, asked = says_nothing & ~tells, asked & tells
    lacking = lacking & asked
    decides = lacking | (asked & says_nothing)
    bound = xp.where(blind, np.inf, xp.where(decides, WRONG * deviation, budget.bound))
    likely = xp.where(asked, LIKELY * deviation, budget.statistical)
    likely = xp.where(lacking, likely, xp.minimum(likely, budget.statistical))
    figures = xp.where(asked, xp.where(error > 0, error / deviation, 0.0), np.nan)
    return Budget(bound, likely, xp.where(lacking, np.inf, size)), BySamples(asked, decides, blind, figures, count)


def _typical(value: Any) -> float:
    """The median size of what is not 0."""
    return _median(abs(value[(value != 0) & array_namespace(value).isfinite(value)]))
