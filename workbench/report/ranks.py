"""Runs of several ranks in words: whose queries and whose keys are wrong."""

from collections.abc import Iterator, Sequence

from workbench.case.ranks import indices
from workbench.case.stages import AXIS_NAMES
from workbench.judge.stage import StageDiff
from workbench.trace.trace import Trace

#: as many ranks are listed
LISTED = 8


def index(trace: Trace, axis: str, i: int) -> str:
    """An index of an axis: "query 97 of rank 3", "keys of rank 2", "dim 5"."""
    if axis == "s" and trace.ranks:
        return f"keys of rank {i}"
    rank = _holders(trace).get(i) if axis == "q" else None
    return f"{AXIS_NAMES[axis]} {i}" + ("" if rank is None else f" of rank {rank}")


def whose(trace: Trace, stage: StageDiff) -> list[str]:
    """Whose queries and whose keys a wrong stage is wrong at, a line; none where it is at those of all ranks."""
    if not trace.ranks or stage.decisive is None:
        return []
    of_axes = {"q": ("queries", _holders(trace)), "s": ("keys", {i: i for i in range(len(trace.ranks))})}
    counts = {what: _counts(stage, axis, of) for axis, (what, of) in of_axes.items()}
    found = [f"{what} of {_listed(x)}" for what, x in counts.items() if 0 < len(x) < len(trace.ranks)]
    return [f"wrong at the {', and at the '.join(found)}"] if found else []


def _holders(trace: Trace) -> dict[int, int]:
    """Query -> the rank that holds it."""
    return {int(i): rank for rank, one in enumerate(trace.ranks) for i in indices(one.queries)}


def _counts(stage: StageDiff, axis: str, of: dict[int, int]) -> dict[int, tuple[int, int]]:
    """Rank -> how many elements of a stage are outside their budget, of how many; none of an axis that it has not."""
    if axis not in stage.axes or not of:
        return {}
    others = tuple(i for i, other in enumerate(stage.axes) if other != axis)
    outside, first = stage.judged.outside.sum(axis=others), stage.first.get(axis, 0)
    size = stage.judged.outside.size // len(outside)
    found: dict[int, tuple[int, int]] = {}
    for i, count in enumerate(outside):
        wrong, all_ = found.get(of[first + i], (0, 0))
        found[of[first + i]] = wrong + int(count), all_ + size
    return {rank: pair for rank, pair in sorted(found.items()) if pair[0]}


def _listed(counts: dict[int, tuple[int, int]]) -> str:
    """Ranks with their counts."""
    return ", ".join(_first(f"rank {rank} ({wrong} of {size})" for rank, (wrong, size) in counts.items()))


def _first(words: Iterator[str]) -> Sequence[str]:
    found = [*words]
    return found if len(found) <= LISTED else [*found[:LISTED], f"and {len(found) - LISTED} more ranks"]
