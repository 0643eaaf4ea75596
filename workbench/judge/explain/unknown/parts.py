"""A part of an axis: which of its indices hold what is wrong, and how one writes them in a kernel."""

from math import lgamma, log

import numpy as np

from workbench.case.stages import AXIS_NAMES, AXIS_PLURALS
from workbench.judge.explain.unknown.difference import Difference

#: a part of an axis is left out where elements as often wrong as those beside it would all be right in fewer cases
BY_CHANCE = 1e-3
#: as many runs of indices are listed, and as many residues of a period
LISTED = 4
#: a period is one where it is seen so often at least, and not longer than the largest tiles
PERIODS, LONGEST = 3, 512


def where(found: Difference) -> str:
    """The part of one axis that holds all that is wrong, in words: "split 0 of 4", "the last 16 of 128 queries, from
    112 on", "heads 1 and 4 of 6", "dims with d % 8 == 3 of 64".

    Of several axes the one whose part is the smallest share of what could be wrong, of equals the shortest axis. Where
    indices of the part hold nothing wrong, which then may be chance, it says how many do. "" where nothing of the kind
    explains all, where it may by chance, and where less than two elements are wrong.
    """
    said: list[tuple[float, int, str]] = []
    for axis in found.axes:
        hits, along = counts(found, axis)
        part = _part(hits, along)
        words = _in_words(axis, part, along, int(hits.sum()), found.first.get(axis, 0))
        if words:
            idle = "" if (hits[part] > 0).all() else f" ({np.count_nonzero(hits)} of them)"
            said.append((along[part].sum() / along.sum(), len(along), words + idle))
    return min(said, default=(0.0, 0, ""))[2]


def counts(found: Difference, axis: str) -> tuple[np.ndarray, np.ndarray]:
    """Along one axis, how many elements are wrong and how many could be."""
    others = tuple(i for i, other in enumerate(found.axes) if other != axis)
    return found.wrong.sum(axis=others), found.could.sum(axis=others)


def _part(wrong: np.ndarray, could: np.ndarray) -> np.ndarray:
    """The indices of an axis that hold wrong elements, and those among and beside them that hold none by chance."""
    hit = np.flatnonzero(wrong)
    if wrong.sum() < 2:
        return np.arange(len(wrong))
    inside = wrong > 0
    # what lies before the first, between each two, and after the last
    for before, after in zip([None, *hit], [*hit, None], strict=True):
        gap = slice(0 if before is None else before + 1, after)
        beside = [i for i in (before, after) if i is not None]
        inside[gap] |= not _significant(wrong[beside].sum(), could[beside].sum(), could[gap].sum())
    return np.flatnonzero(inside)


def _significant(wrong: int, of: int, right: int) -> bool:
    """Whether `right` elements, none of them wrong, are no chance beside `of` elements that are wrong so often."""
    return (1 - int(wrong) / (int(of) + 1)) ** int(right) < BY_CHANCE  # one more: a single element proves nothing


def _in_words(axis: str, part: np.ndarray, could: np.ndarray, wrong: int, begin: int) -> str:
    """A part of an axis, whose indices are counted from `begin` on; "" where it is all of it, or is one by chance."""
    if len(part) == len(could):
        return ""
    runs = len(runs_of(part))
    if runs > 1:
        # of so many parts of as many runs, one that holds a share of what could be wrong holds all of it by chance
        share = could[part].sum() / could.sum()
        if log_choices(len(could) + 1, 2 * runs) + wrong * log(share) >= log(BY_CHANCE):
            return ""
    return of_axis(axis, part, could, begin)


def of_axis(axis: str, part: np.ndarray, could: np.ndarray, begin: int = 0) -> str:
    """A part of an axis in words; "" where it has too many runs. `could`, [size]: how many could be wrong."""
    return in_words(AXIS_NAMES[axis], AXIS_PLURALS[axis], axis, part, could, begin)


def in_words(name: str, names: str, letter: str, part: np.ndarray, could: np.ndarray, begin: int) -> str:
    """As `of_axis`, of what is called `name`, and `letter` in formulas."""
    size, runs = len(could), runs_of(part)
    if len(runs) > 1:
        if period := _period(part, could):
            return f"{names} with {residues(letter, *period, begin)} of {size}"
        return f"{names} {listed(runs, begin)} of {size}" if len(runs) <= LISTED else ""
    first, last = begin + part[0], begin + part[-1]
    if len(part) == 1:
        return f"{name} {first} of {size}"
    if part[-1] == size - 1:
        return f"the last {len(part)} of {size} {names}, from {first} on"
    return f"{names} {first} to {last} of {size}" if part[0] else f"the first {len(part)} of {size} {names}"


def _period(part: np.ndarray, could: np.ndarray) -> tuple[int, np.ndarray] | None:
    """The smallest period of a part, and which residues are in it; None where it has none. Indices where nothing could
    be wrong are in and out of it.
    """
    size, inside = len(could), np.zeros(len(could), bool)
    inside[part] = True
    within, without = np.flatnonzero(inside & (could > 0)), np.flatnonzero(~inside & (could > 0))
    for period in range(2, min(LONGEST, size // (PERIODS - 1)) + 1):
        found = np.unique(within % period)
        seen = np.bincount(within % period, minlength=period)[found]
        if seen.min() >= PERIODS and len(runs_of(found)) <= LISTED and not np.isin(without % period, found).any():
            return period, found
    return None


def residues(letter: str, period: int, found: np.ndarray, begin: int) -> str:
    """Residues of a period as one writes them in a kernel: "d % 8 == 3", "k % 16 >= 8"."""
    moved, left = np.unique((found + begin) % period), f"{letter} % {period}"
    if len(moved) == 1:
        return f"{left} == {moved[0]}"
    if np.array_equal(moved, np.arange(len(moved))):
        return f"{left} < {len(moved)}"
    if np.array_equal(moved, np.arange(period - len(moved), period)):
        return f"{left} >= {moved[0]}"
    return f"{left} in {listed(runs_of(moved), 0)}"


def log_choices(n: int, k: int) -> float:
    """Natural logarithm of in how many ways k of n are chosen."""
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)


def runs_of(part: np.ndarray) -> list[np.ndarray]:
    """Indices that follow each other, together."""
    return np.split(part, np.flatnonzero(np.diff(part) > 1) + 1)


def listed(runs: list[np.ndarray], begin: int) -> str:
    """Runs of indices: "1 and 4", "3, 4, 16 to 31"."""
    words: list[str] = []
    for run in runs:
        ends = [f"{run[0] + begin} to {run[-1] + begin}"] if len(run) > 2 else [str(i + begin) for i in run]
        words += ends
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + f" and {words[-1]}"
