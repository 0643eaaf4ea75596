"""Ranks: who holds which queries and keys of a case whose sequence is cut over several devices.

Context parallelism gives each rank a part of the sequence; in ring attention (Liu et al. 2023, arXiv 2310.01889) its
queries stay and keys go round. Under a causal mask contiguous parts leave the first ranks idle: Striped Attention
(Brandon et al. 2023, arXiv 2311.09431) deals single tokens, zig-zag a chunk from each end.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from workbench.refusal import Refusal

Ranges = tuple[range, ...]
_Said = TypeVar("_Said", bound=Any)  # a dataclass with a text
_SPLIT = re.compile(r"\bsplit(s?)\b(?![=_])")


@dataclass(frozen=True)
class Rank:
    """What one rank holds, in its own order; of a merge under test alone, which has no queries of its own, keys."""

    keys: Ranges
    queries: Ranges = ()

    @property
    def first(self) -> int | None:
        """The first query that it holds; None without any."""
        return min((one[0] for one in self.queries if one), default=None)

    def as_lists(self) -> dict[str, list[list[int]]]:
        """For JSON: start, stop and step of each range."""
        return {name: [[x.start, x.stop, x.step] for x in getattr(self, name)] for name in ("keys", "queries")}


def _contiguous(length: int, rank: int, ranks: int) -> Ranges:
    return (range(rank * length // ranks, (rank + 1) * length // ranks),)


def _zigzag(length: int, rank: int, ranks: int) -> Ranges:
    return (*_contiguous(length, rank, 2 * ranks), *_contiguous(length, 2 * ranks - 1 - rank, 2 * ranks))


def _striped(length: int, rank: int, ranks: int) -> Ranges:
    return (range(rank, length, ranks),)


#: how a sequence is dealt: parts in order, as equal as can be; the chunks r and 2n - 1 - r of 2n; every n-th token
ORDERS: Mapping[str, Callable[[int, int, int], Ranges]] = {
    "contiguous": _contiguous,
    "zigzag": _zigzag,
    "striped": _striped,
}


def dealt(length: int, ranks: int, order: str = "contiguous") -> list[Ranges]:
    """The indices of a sequence of `length` tokens that each of so many ranks holds; Refusal for an unknown order."""
    if order not in ORDERS:
        raise Refusal(f"order must be one of {', '.join(ORDERS)}; got {order!r}")
    return [ORDERS[order](length, rank, ranks) for rank in range(ranks)]


def spoken(words: str, ranks: object) -> str:
    """What a step, a hypothesis or the name of an axis says of splits, in a run that has `ranks`, whose keys these are
    then; names such as split_k and splits=4 stay.
    """
    return _SPLIT.sub(r"rank\1", words) if ranks else words


def all_spoken(found: Iterable[_Said], ranks: object) -> tuple[_Said, ...]:
    """Records with their `text` as `spoken`."""
    return tuple(replace(one, text=spoken(one.text, ranks)) if ranks else one for one in found)


def indices(held: Sequence[range]) -> np.ndarray:
    """The indices of some ranges, in their order."""
    return np.concatenate([np.arange(x.start, x.stop, x.step) for x in held] or [np.arange(0)])


def of_lists(given: Mapping[str, Iterable[Sequence[int]]]) -> Rank:
    """What `Rank.as_lists` wrote."""
    return Rank(*(tuple(range(*one) for one in given[name]) for name in ("keys", "queries")))


def bounds_of(held: Iterable[Rank]) -> tuple[int, ...]:
    """Where the keys of each rank begin and end when those of all are put one behind the other: `split_bounds`."""
    return (0, *np.cumsum([len(indices(one.keys)) for one in held]).tolist())
