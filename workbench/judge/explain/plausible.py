"""How near a prediction is to a table of largest errors, and the causes that are near enough."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.judge.explain.draws import Errors
from workbench.judge.explain.hypothesis import Hypothesis
from workbench.judge.explain.symptom_table import Entry
from workbench.records import number

Values = Mapping[str, Any]

_TINY = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True)
class Range:
    """What a faulty kernel has in place of a number, over several draws of its inputs, rounding included."""

    low: float
    high: float
    nan: bool = False  #: whether it may be NaN; low and high are NaN where it always is

    @staticmethod
    def of(low: float, high: float, nan: bool) -> "Range":
        """As of `ranges`."""
        if high == -np.inf:
            return Range(np.nan, np.nan, True)
        return Range(float(low), float(high), bool(nan))

    def as_dict(self) -> dict[str, Any]:
        """Of plain Python values."""
        return {"low": number(self.low), "high": number(self.high), "nan": self.nan}


@dataclass(frozen=True)
class Against:
    """An entry that a cause does not predict."""

    entry: Entry
    predicted: Range


@dataclass(frozen=True, eq=False)
class Plausible:
    """A cause that comes near a table: hypotheses that no run tells apart."""

    members: tuple[Hypothesis, ...]  #: the plainest first
    deviation: float  #: of the entry that it predicts worst, in factors of two beyond what it may be
    surprise: float  #: mean over the entries of how little they are to be expected: `surprises`
    best: Values  #: unknown -> the value with which it comes nearest
    values: tuple[Values, ...]  #: unknowns -> values with which it comes as near, to half a factor of two
    against: tuple[Against, ...]  #: with the best values, the worst first

    @property
    def id(self) -> str:
        """Of its plainest hypothesis."""
        return self.members[0].id

    @property
    def names(self) -> tuple[str, ...]:
        """All sentences of the class, the plainest first."""
        return tuple(dict.fromkeys(one.text for one in self.members))

    def as_dict(self) -> dict[str, Any]:
        """Of plain Python values."""
        return {
            "id": self.id,
            "ids": [one.id for one in self.members],
            "names": list(self.names),
            "deviation": number(self.deviation),
            "surprise": number(self.surprise),
            "best": dict(self.best),
            "values": [dict(one) for one in self.values],
            "against": [
                {
                    "case": one.entry.case,
                    "row": one.entry.row,
                    "value": number(one.entry.value),
                    "predicted": one.predicted.as_dict(),
                }
                for one in self.against
            ],
        }


@np.errstate(all="ignore")
def ranges(found: Errors, seeds: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Least and largest errors over the seeds, which are the last of what [draws] counts, and whether one is NaN:
    [other draws, rows]. Inf and -inf where all are NaN.
    """
    size, rounding = (x.reshape(-1, seeds, x.shape[-1]) for x in found)
    nan = np.isnan(size)
    low = np.where(nan, np.inf, np.maximum(size - rounding, 0.0)).min(1)
    high = np.where(nan, -np.inf, size + rounding).max(1)
    return low, high, nan.any(1)


@np.errstate(all="ignore")
def deviations(found: Errors, seeds: int, entries: Sequence[Entry], finest: float) -> np.ndarray:
    """How far each entry is from what several draws predict, [other draws, entries], in factors of two: 0 within the
    range of the draws, widened by their standard deviation, since a row that sees two keys may have next to no error;
    infinite where NaN or infinities stand against numbers. An entry of 0 is anything below `finest`.
    """
    low, high, nan = ranges(found, seeds)
    _, spread, _ = _logs(found, seeds, finest)
    columns = []
    for j, entry in enumerate(entries):
        below, above, x = low[:, j], high[:, j], entry.value
        if np.isnan(x):
            off = np.where(nan[:, j], 0.0, np.inf)
        elif np.isinf(x):
            off = np.where(above == np.inf, 0.0, np.inf)
        else:
            half = finest if x == 0 else entry.half_unit
            too_large = np.log2(below / (x + half))
            too_small = np.log2(max(x - half, _TINY) / np.maximum(above, _TINY))
            off = np.maximum(np.maximum(too_large, too_small) - np.nan_to_num(spread[:, j]), 0.0)
        columns.append(off)
    return np.stack(columns, -1)


@np.errstate(all="ignore")
def surprises(found: Errors, seeds: int, entries: Sequence[Entry], finest: float) -> np.ndarray:
    """How little each entry is to be expected from several draws, [other draws, entries]: -ln of its likelihood, log2
    of the draws being normal, with half a factor of two beside their own deviation. Sizes below `finest`, or below
    what rounds, count as that.
    """
    mean, spread, floor = _logs(found, seeds, finest)
    given = np.array([entry.value for entry in entries])
    deviation = np.sqrt(spread**2 + 0.25)
    off = (np.log2(np.maximum(given, floor)) - mean) / deviation
    return np.nan_to_num(off * off / 2 + np.log(deviation), nan=0.0, posinf=0.0)


def _logs(found: Errors, seeds: int, finest: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean and standard deviation of log2 of the draws that are no NaN, and the least size that counts."""
    size, rounding = (x.reshape(-1, seeds, x.shape[-1]) for x in found)
    floor = np.maximum(rounding.max(1), finest)
    known = ~np.isnan(size)
    logs = np.where(known, np.log2(np.maximum(size, floor[:, None])), 0.0)
    mean = logs.sum(1) / known.sum(1)
    variance = (known * (logs - mean[:, None]) ** 2).sum(1) / known.sum(1)
    return mean, np.sqrt(variance), floor
