"""Where along the axes of a stage everything wrong lies: a range of one of them, or every so many."""

import numpy as np

from workbench.stage_diff import StageDiff
from workbench.stages import AXIS_NAMES, AXIS_PLURALS

#: a part of an axis is left out where elements as often wrong as those beside it would all be right in fewer cases
BY_CHANCE = 1e-3
#: indices at a stride from each other; of two any are
AT_LEAST = 3


def pattern(stage: StageDiff) -> str:
    """The part of one axis that holds all elements outside their budget, in words: "split 0 of 4", "the last 16 of 128
    queries, from 112 on", "every 8th of 64 dims, from 3 on".

    Of several axes the one whose part is the smallest share of what could be wrong, of equals the shortest axis. What
    could be wrong was judged, and is wrong or expected to be a number other than 0: zeros and infinities come of masks.
    "" where neither a range nor a stride explains all, where it may by chance, and where less than two elements are
    wrong. Refuses a stage without a comparison.
    """
    comparison = stage.judged
    wrong, expected = comparison.outside, comparison.expected
    could = wrong | (comparison.judged & np.isfinite(expected) & (expected != 0))
    found: list[tuple[float, int, str]] = []
    for i, axis in enumerate(stage.axes):
        others = tuple(j for j in range(len(stage.axes)) if j != i)
        part = _part(wrong.sum(axis=others), along := could.sum(axis=others))
        if 0 < len(part) < len(along):
            found.append(
                (
                    along[part].sum() / along.sum(),
                    len(along),
                    _in_words(axis, part, len(along), stage.first.get(axis, 0)),
                )
            )
    return min(found, default=(0.0, 0, ""))[2]


def _part(wrong: np.ndarray, could: np.ndarray) -> range:
    """The indices of an axis that hold all its wrong elements: all of them where a part says nothing."""
    hit, everything = np.flatnonzero(wrong), range(len(wrong))
    if wrong.sum() < 2:
        return everything
    first, last = int(hit[0]), int(hit[-1])
    step = int(hit[1]) - first if len(hit) >= AT_LEAST else 1
    if first < step > 1 and np.array_equal(hit, part := everything[first::step]):
        of = could[part].sum()
        return part if _told(wrong.sum(), of, could.sum() - of) else everything
    start = first if _told(wrong[first], could[first], could[:first].sum()) else 0
    stop = last + 1 if _told(wrong[last], could[last], could[last + 1 :].sum()) else len(wrong)
    return everything[start:stop] if 2 * len(hit) >= stop - start else everything


def _told(wrong: int, of: int, right: int) -> bool:
    """Whether `right` elements, none of them wrong, are no chance beside `of` elements that are wrong so often."""
    return (1 - int(wrong) / (int(of) + 1)) ** int(right) < BY_CHANCE  # one more: a single element proves nothing


def _in_words(axis: str, part: range, size: int, begin: int) -> str:
    """A part of an axis of `size`, whose indices are counted from `begin` on."""
    name, names, (first, last) = AXIS_NAMES[axis], AXIS_PLURALS[axis], (begin + part[0], begin + part[-1])
    if len(part) == 1:
        return f"{name} {first} of {size}"
    if part.step > 1:
        return f"every {_ordinal(part.step)} of {size} {names}, from {first} on"
    if part[-1] == size - 1:
        return f"the last {len(part)} of {size} {names}, from {first} on"
    return f"{names} {first} to {last} of {size}" if part[0] else f"the first {len(part)} of {size} {names}"


def _ordinal(n: int) -> str:
    return f"{n}{'th' if n // 10 % 10 == 1 else {1: 'st', 2: 'nd', 3: 'rd'}.get(n % 10, 'th')}"
