"""Queries of the heads that share a kv head as rows of one tile (FlashAttention-3's pack_gqa): which row is whose."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from workbench.judge.explain.hypothesis import Edit, Hypothesis, altered

#: heads of a group and queries -> the head and the query whose row is taken, int [group, queries] each
Rows = Callable[[int, int], tuple[np.ndarray, np.ndarray]]


def hypotheses() -> Iterator[Hypothesis]:
    """All of the family, the plainest first."""
    for name, words, rows in _maps():
        read = altered("q_rows", lambda at, x, rows=rows: _taken(at, x, rows))
        masked = altered("visible", lambda at, x, rows=rows: _masked(at, x, rows))
        stored = tuple(altered(stage, lambda at, x, rows=rows: _taken(at, x, rows)) for stage in ("out", "lse"))
        places: dict[str, tuple[str, tuple[Edit, ...]]] = {
            "read": ("rows of q are read", (read,)),
            "masked": ("the mask is taken", (masked,)),
            "stored": ("rows of out and lse are stored", stored),
            "stored-out": ("rows of out are stored", stored[:1]),
            "stored-lse": ("rows of lse are stored", stored[1:]),
            "read-and-masked": ("rows of q are read, and the mask is taken,", (read, masked)),
        }
        for place, (text, edits) in places.items():
            yield Hypothesis(f"packing.{name}-{place}", f"{text} {words}", edits)


def _maps() -> Iterator[tuple[str, str, Rows]]:
    yield "swapped", "as if heads of a group lay next to each other: row % group is the head", _swapped
    back = "as if the queries of a head lay next to each other: row // queries is the head"
    yield "swapped-back", back, _swapped_back
    for by, words in ((1, "of the next head of the group"), (-1, "of the previous head of the group")):
        yield f"head{by:+}", words, lambda g, n, by=by: ((_heads(g, n) + by) % g, _queries(g, n))
    yield "head-0", "of the first head of the group", lambda g, n: (0 * _heads(g, n), _queries(g, n))
    yield "reversed", "of the heads of the group in reverse order", lambda g, n: (g - 1 - _heads(g, n), _queries(g, n))


def _heads(group: int, queries: int) -> np.ndarray:
    return np.arange(group)[:, None] + np.zeros(queries, int)


def _queries(group: int, queries: int) -> np.ndarray:
    return np.arange(queries) + np.zeros((group, 1), int)


def _swapped(group: int, queries: int) -> tuple[np.ndarray, np.ndarray]:
    row = _heads(group, queries) * queries + _queries(group, queries)
    return row % group, row // group


def _swapped_back(group: int, queries: int) -> tuple[np.ndarray, np.ndarray]:
    row = _queries(group, queries) * group + _heads(group, queries)
    return row // queries, row % queries


def _taken(at: Any, x: np.ndarray, rows: Rows) -> np.ndarray:
    """x [b, h, q, ...] with the rows of each group at each other's places."""
    b, h, q = x.shape[:3]
    group = h // at.p.inputs["k"].shape[1]
    head, query = rows(group, q)
    found: np.ndarray = x.reshape(b, h // group, group, q, *x.shape[3:])[:, :, head, query]
    return found.reshape(x.shape)


def _masked(at: Any, seen: np.ndarray, rows: Rows) -> np.ndarray:
    q = at.p.inputs["q"]
    return _taken(at, np.broadcast_to(seen, (*q.shape[:3], seen.shape[-1])), rows)
