"""Factors that are no round numbers, measured in a run: those of which the library cannot have a list.

A constant factor of a stage is one number, and all that is wrong tells it: it is fitted by least squares (Gauss and
Newton), said in as few digits as leave no more of the error, and then held against every element like any hypothesis.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from workbench.case.stages import RESULTS, STAGES
from workbench.judge.explain.fit import unexplained
from workbench.judge.explain.hypothesis import Hypothesis, altered
from workbench.judge.explain.scene import Scene, touched
from workbench.work import Work

#: sums of weights over keys, of each part of a kernel the numerator first
_SUMS = (x for x in STAGES.values() if x.offset and "k" not in x.axes)
_BY_GROUP = (sorted(some, key=lambda x: "d" not in x.axes) for _, some in groupby(_SUMS, attrgetter("group")))
#: what a kernel may multiply, the plainest first
_STAGES = ("scale", *RESULTS, *(x.name for some in _BY_GROUP for x in some))
#: share of the error that a factor may leave of the stage that tells it best; of all elements, since a few wrong ones
#: have a factor by chance: of factors of 0.95 to 1.3 of scores or out 0.4 % were left at most, in any dtype
LEFT = 0.02
#: where a fit begins, how many steps it takes, and the difference that its slopes are taken over: half the bits of
#: float64 are lost in such a difference, and half are left
BEGINS, STEPS, H = (1.0, 0.5, 2.0, 0.25, 4.0), 6, 2.0**-20
#: digits in which a factor may be said; and what more of the error fewer digits may leave, relative and beside it
DIGITS, MORE, ROUNDED = range(2, 8), 1.5, 2.0**-12
#: as near to 1 a factor is none
NEAR_1 = 2.0**-12


def measured(scene: Scene, wrong: Mapping[str, np.ndarray], work: Work) -> Iterator[Hypothesis]:
    """A factor of each stage that may explain some of what is wrong, as it fits best, until `work` is over."""
    p = scene.problem
    for stage in _STAGES:
        fit = _Fit(scene, stage, wrong, work)
        factor = fit.factor() if stage in p.table and fit.names else None
        if factor is None or abs(factor.value - 1) < NEAR_1:
            continue
        yield fit.of(factor.value, f"{'scores are' if stage == 'scale' else f'{stage} is'} {factor.words}")
        if stage == "scale":
            value, root = factor.value * p.scale, math.sqrt(p.inputs["q"].shape[-1])
            constant = altered("scale", partial(_fixed, value))
            text = f"the scale is {value:.6g} = {value * root:.6g}/sqrt(head_dim), not the requested one"
            yield Hypothesis("measured.scale-constant", text, (constant,))


def _fixed(value: float, at: Any, scale: float) -> float:
    """A scale that is one number, whatever was asked for."""
    return value


def _rounded(x: float, digits: int) -> float:
    """x to `digits` significant digits, or decimals between 0.5 and 2, so that 1.01 keeps as many as 0.99."""
    return round(x, digits) if 0.5 <= x < 2 else float(f"{x:.{digits}g}")


class _Factor(NamedTuple):
    """A factor, in words."""

    value: float
    words: str


@dataclass(frozen=True, eq=False)
class _Fit:
    """The factor of one stage that reproduces what is wrong."""

    scene: Scene
    stage: str
    wrong: Mapping[str, np.ndarray]
    work: Work

    @property
    def names(self) -> tuple[str, ...]:
        """The wrong stages that it moves."""
        return tuple(x for x in touched(self.scene.problem, self.wrong, self.of(1.0)))

    def of(self, factor: float, text: str = "") -> Hypothesis:
        times: Callable[[Any, Any], Any] = lambda at, x: x * factor  # noqa: E731
        return Hypothesis(f"measured.{self.stage}", text, (altered(self.stage, times),))

    def factor(self) -> _Factor | None:
        """In as few digits as say it, or its inverse; None where none leaves less than LEFT."""
        found = min((self._from(begin) for begin in self._begins()), key=self.left, default=math.nan)
        best = self._left_of(found)
        if not best or not min(best.values()) <= LEFT:  # what others leave, each of their elements allows or not
            return None
        for digits in DIGITS:
            times, by = (_rounded(x, digits) for x in (found, 1 / found if found else math.inf))
            for one in (_Factor(times, f"multiplied by {times:g}"), _Factor(1 / by, f"divided by {by:g}")):
                # each stage is held to its own best fit: out in 16 bits fixes fewer digits than lse in float32
                left = self._left_of(one.value)
                if left and all(left[name] <= MORE * best[name] + ROUNDED for name in best):
                    return one
        return _Factor(found, f"multiplied by {found:.9g}")

    def left(self, factor: float) -> float:
        """Share of the error that it leaves of all of the stage that it explains worst."""
        return max(self._left_of(factor).values(), default=math.inf)

    def _left_of(self, factor: float) -> dict[str, float]:
        """Share of the error of each stage that it leaves; empty where it cannot be made."""
        made = self._made(factor) if math.isfinite(factor) else None
        if made is None:
            return {}
        whole = {name: np.ones_like(self.wrong[name]) for name in self.names}
        return {name: unexplained(self.scene, name, made[name], whole[name]) for name in self.names}

    def _made(self, factor: float) -> Mapping[str, np.ndarray] | None:
        """What a kernel with the factor makes; None of one that cannot have it, and where `work` is over."""
        if self.work.over:
            return None
        self.work.take(self.scene.trials)
        return self.scene.predicted(self.of(factor), self.names)

    def _begins(self) -> list[float]:
        """The nearest of BEGINS."""
        return sorted(BEGINS, key=self.left)[:1]

    def _from(self, factor: float) -> float:
        for _ in range(STEPS):
            here, there = self._errors(factor), self._errors(factor + H)
            if here is None or there is None:
                return math.nan
            slope = (there - here) / H
            known = np.isfinite(here) & np.isfinite(slope)
            step = slope[known] @ here[known] / max(float(slope[known] @ slope[known]), np.finfo(np.float64).tiny)
            factor -= float(step)
        return factor

    def _errors(self, factor: float) -> np.ndarray | None:
        """Predicted less actual of what is wrong, in units of what each stage is off."""
        made = self._made(factor)
        if made is None:
            return None
        parts = []
        for name in self.names:
            wrong, actual = self.wrong[name], self.scene.actual[name]
            off = (actual - self.scene.expected[name])[wrong]
            size = np.sqrt(np.mean(np.square(off[np.isfinite(off)]))) if np.isfinite(off).any() else 1.0
            parts.append((made[name] - actual)[wrong] / (size or 1.0))
        return np.concatenate(parts)
