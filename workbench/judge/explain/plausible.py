"""What a fault makes of the numbers of a table over several draws, which contradict it, and how well they fit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from workbench.judge.explain.draws import Errors
from workbench.judge.explain.hypothesis import Hypothesis
from workbench.judge.explain.symptom_table import Entry
from workbench.records import number

Values = Mapping[str, Any]

#: draws -> standard deviations of theirs within which the next one is, but once in a thousand: two-sided quantiles of
#: Student's t of 8 draws, times sqrt(1 + 1/n)
BESIDE = {1: 5.41 * 1.414, 8: 5.41 * 1.061, 32: 3.63 * 1.016}
#: octaves: the standard deviation of one draw of which nothing is known yet. The largest of thousands of numbers varies
#: little; a row may be right in one draw and wrong in the next, such as where its maximum moves
FIRST, FIRST_OF_ROW = 0.2, 3.0
#: octaves: the least deviation that fits are held against, a tenth of a number
LEAST = 0.15


@dataclass(frozen=True)
class Range:
    """What a faulty kernel has in place of a number, over draws of its inputs, rounding included."""

    low: float
    high: float
    nan: bool = False  #: whether it may be NaN; low and high are NaN where it always is

    @staticmethod
    def of(low: float, high: float, nan: bool) -> "Range":
        """As of `Numbers`."""
        if high == -np.inf:
            return Range(np.nan, np.nan, True)
        return Range(float(low), float(high), bool(nan))

    def as_dict(self) -> dict[str, Any]:
        """Of plain Python values."""
        return {"low": number(self.low), "high": number(self.high), "nan": self.nan}


@dataclass(frozen=True, eq=False)
class Plausible:
    """A cause that predicts every number of a table: hypotheses that no run tells apart."""

    members: tuple[Hypothesis, ...]  #: the plainest first
    surprise: float  #: mean over the entries of how little they are to be expected: -ln of their likelihood
    best: Values  #: unknown -> the value with which they are to be expected most
    values: tuple[Values, ...]  #: unknowns -> values with which no entry contradicts it

    @property
    def id(self) -> str:
        """Of its plainest hypothesis."""
        return self.members[0].id

    @property
    def names(self) -> tuple[str, ...]:
        """All sentences of the class, the plainest first."""
        return tuple(dict.fromkeys(one.text for one in self.members))

    def as_dict(self) -> dict[str, Any]:
        """Each of `plausible` of `workbench.symptoms-explained/1`.

        - `id`, `ids`, `names`: the plainest hypothesis; all that no run separates, with their sentences
        - `surprise`: unlikeliness of the table
        - `best`, `values`: the likeliest unknowns; all that fit
        """
        return {
            "id": self.id,
            "ids": [one.id for one in self.members],
            "names": list(self.names),
            "surprise": number(self.surprise),
            "best": dict(self.best),
            "values": [dict(one) for one in self.values],
        }


class Numbers(NamedTuple):
    """The numbers of a table as a fault makes them, [tiles, stds, entries]; NaN where nothing was computed."""

    low: np.ndarray
    high: np.ndarray  #: -inf where all draws are NaN
    nan: np.ndarray  #: whether one is
    logs: np.ndarray  #: log2 of the draws, in the axis before the last
    mean: np.ndarray
    spread: np.ndarray  #: what is assumed where there is one draw
    width: np.ndarray  #: octaves around each draw that are as likely
    floor: np.ndarray  #: what is below counts as this

    @property
    def acts(self) -> np.ndarray:
        """Whether a number is more than what rounds, [tiles, stds]: what shows in none is no cause."""
        return ((self.mean > np.log2(self.floor) + 0.01) | self.nan).any(-1)

    def agree(self, entries: Sequence[Entry], finest: float) -> np.ndarray:
        """Which numbers contradict nothing, beyond the digits that were printed; of 0 these are the `finest`."""
        given, half = _given(entries, finest)
        finite = (self.low <= given + half) & (given - half <= self.high)
        return np.where(np.isnan(given), self.nan, np.where(np.isinf(given), self.high == np.inf, finite))

    @np.errstate(all="ignore")
    def surprise(self, entries: Sequence[Entry]) -> np.ndarray:
        """How little each number is to be expected: -ln of its likelihood. Some draws may be right and others wrong, so
        that it is near any of them, each a normal of log2, or in one more as wide as all of them.
        """
        given, _ = _given(entries, 0.0)
        x, floor = (np.log2(np.maximum(y, self.floor))[:, :, None] for y in (given, 0.0))
        same = (x <= floor) & (self.logs <= floor)  # what rounds is one value, however little it is
        near = np.nansum(np.where(same, 1.0, _normal(x - self.logs, self.width[:, :, None]) * (x > floor)), 2)
        wide = _normal(x - self.mean[:, :, None], np.hypot(self.spread, 1.0)[:, :, None])[:, :, 0]
        return np.nan_to_num(-np.log((near + wide) / (self.logs.shape[2] + 1)), nan=0.0)


def _normal(off: np.ndarray, width: np.ndarray) -> np.ndarray:
    """Its density, but for a factor."""
    return np.exp(-((off / width) ** 2) / 2) / width


@np.errstate(all="ignore")
def numbers(found: Errors, finest: float, assumed: np.ndarray | float = 0.0) -> Numbers:
    """Of draws [tiles, stds, draws, entries], whose logarithms are taken as normal, none below what rounds or what was
    printed as 0. `assumed`: their least standard deviation in octaves, where one draw tells none. One value of
    input_std stands for those as far as half of the way to the next that was tried.
    """
    size, rounding = found
    nan = np.isnan(size)
    rounds = rounding.max(2)
    floor = np.maximum(rounds, finest)
    logs = np.log2(np.maximum(size, floor[:, :, None]))
    known = (~nan).sum(2)
    mean = np.where(nan, 0.0, logs).sum(2) / known
    off = np.where(nan, 0.0, logs - mean[:, :, None])
    spread = np.nan_to_num(np.sqrt((off * off).sum(2) / np.maximum(known - 1, 1)))
    spread, half = np.maximum(spread, assumed), _half_way(mean)
    margin = BESIDE[size.shape[2]] * spread + half
    low = np.where(mean - margin <= np.log2(floor), 0.0, 2.0 ** (mean - margin))
    low = np.minimum(low, np.where(nan, np.inf, size).min(2) / 2.0**half)
    high = np.maximum(2.0 ** (mean + margin), np.where(nan, -np.inf, size).max(2) * 2.0**half)
    low, high = np.where(known, low, np.inf), np.where(known, high, -np.inf)
    # of n draws the best width is about their deviation by the fifth root of n (Silverman); what is equally likely
    # anywhere as far as half has a variance of a third of its square
    width = np.sqrt(spread**2 * size.shape[2] ** -0.4 + half**2 / 3 + LEAST**2)
    missing = np.isnan(rounds)
    low, high = (np.where(missing, np.nan, x) for x in (np.maximum(low - rounds, 0.0), high + rounds))
    return Numbers(low, high, nan.any(2) & ~missing, np.where(nan, np.nan, logs), mean, spread, width, floor)


def _half_way(mean: np.ndarray) -> np.ndarray:
    """How far log2 of a number moves until half of the way to the next value of input_std, the larger of both sides."""
    steps = np.nan_to_num(abs(np.diff(mean, axis=1)), posinf=0.0) / 2
    none = np.zeros_like(mean[:, :1])
    return np.maximum(np.concatenate([none, steps], 1), np.concatenate([steps, none], 1))


def _given(entries: Sequence[Entry], finest: float) -> tuple[np.ndarray, np.ndarray]:
    given = np.array([one.value for one in entries])
    return given, np.array([finest if one.value == 0 else one.half_unit for one in entries])
