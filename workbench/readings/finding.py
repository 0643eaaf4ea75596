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


def spans(of: np.ndarray, most: int = 6, write: Callable[[int], str] = str) -> str:
    """Indices in words: 0-3, 8, 64-127; `write`: one of them."""
    found = np.unique(of)
    if not found.size:
        return "none"
    cut = np.flatnonzero(np.diff(found) > 1)
    firsts, lasts = found[[0, *(cut + 1)]], found[[*cut, -1]]
    said = [write(a) if a == b else f"{write(a)}-{write(b)}" for a, b in zip(firsts, lasts, strict=True)]
    return ", ".join(said[:most]) + (f" and {len(said) - most} more" if len(said) > most else "")
