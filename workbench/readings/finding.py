"""What a reading found."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class Finding:
    """A part of what a function computes that is not as its case says."""

    reading: str  #: what was read: heads, elements, start, response, steps, denominator, lse and the like
    stage: str  #: the stage that it belongs to
    text: str  #: in words
    wrong: int  #: elements of the experiment that are beyond their budgets
    of: int  #: elements of the experiment
    data: Mapping[str, Any] = field(default_factory=dict)  #: maps, tables and factors as arrays and numbers


#: after how many indices a set may come again, and how often it does at least
PERIODS, TIMES = (2, 4, 8, 16, 32, 64, 128, 256), 3


def apart_in_words(distance: int, name: str) -> str:
    """Another index at a distance of each: "row i + 8", "dim i - 1"."""
    return f"{name} i {'+' if distance > 0 else '-'} {abs(distance)}"


def spans(of: np.ndarray, most: int = 6, write: Callable[[int], str] = str) -> str:
    """Indices in words: "0-3, 8, 64-127", "24-31 of each 32 (from 24 to 511)", "1, 5, 6 and 40 more"; `write`: one of
    them.
    """
    found = np.unique(of)
    if not found.size:
        return "none"
    cut = np.flatnonzero(np.diff(found) > 1)
    firsts, lasts = found[[0, *(cut + 1)]], found[[*cut, -1]]
    said = [write(a) if a == b else f"{write(a)}-{write(b)}" for a, b in zip(firsts, lasts, strict=True)]
    if len(said) <= most:
        return ", ".join(said)
    inside = np.arange(found[0], found[-1] + 1)
    for period in PERIODS:
        again = np.unique(found % period)
        few = np.count_nonzero(np.diff(again) > 1) < len(said) / TIMES
        if few and np.array_equal(inside[np.isin(inside % period, again)], found):
            return f"{spans(again, most, write)} of each {period} (from {write(found[0])} to {write(found[-1])})"
    return f"{', '.join(said[:most])} and {np.sum(found > lasts[most - 1])} more"
