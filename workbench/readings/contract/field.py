"""One field of a contract: what it is and what shows it; or why it cannot be read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

#: share of what the next best choice leaves that a choice may leave, to be believed
SHARE = 0.25


@dataclass(frozen=True)
class Field:
    """A field that was read, with its value; or one that was not, with none."""

    name: str  #: of `Contract`
    value: Any
    evidence: str  #: in a short sentence; of a field that was not read the reason
    is_read: bool = True


def unread(name: str, reason: str) -> Field:
    """A field that cannot be read, and why."""
    return Field(name, None, reason, is_read=False)


def left(read: np.ndarray, made: np.ndarray) -> float:
    """Root of the mean square of ln(read / made) but for a common factor of each row, of what is not too small to be
    read in either; infinite where what was read is not a weight.
    """
    with np.errstate(all="ignore"):
        told = (made > 2.0**-8 * made.max(-1, keepdims=True)) | (read > 2.0**-8 * read.max(-1, keepdims=True))
        ratio = np.where(told, np.log(read / made), 0.0)
        if not np.isfinite(ratio).all() or not told.any():
            return np.inf
        count = np.maximum(told.sum(-1, keepdims=True), 1)
        ratio = np.where(told, ratio - ratio.sum(-1, keepdims=True) / count, 0.0)
    return float(np.sqrt((ratio**2).sum() / told.sum()))


def chosen(runs: Sequence[tuple[np.ndarray, Mapping[str, np.ndarray]]], most: float) -> str | None:
    """The one choice that leaves at most `most` in every run (what was read, and name -> what would have been), and in
    the worst of them at most a quarter of what any other leaves in its worst. None where there is no such.
    """
    every = sorted((max(left(read, made[name]) for read, made in runs), name) for name in runs[0][1])
    (best, name), (other, _) = every[0], every[1]
    return name if best <= most and best <= SHARE * other else None
