"""Queries of the heads that share a kv head as rows of one tile (FlashAttention-3's pack_gqa): which row is whose."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from workbench.judge.explain.hypothesis import Hypothesis, altered, of_family

#: the head and the query whose row is taken, int [group, queries] each
Rows = tuple[np.ndarray, np.ndarray]
_of = of_family("packing")
#: name -> words, and what is taken in each place, of the own head and query and of how many there are
_MAPS: dict[str, tuple[str, Any]] = {
    "swapped": (
        "as if packed head-fastest (head = row % group)",
        lambda h, q, g, n: ((h * n + q) % g, (h * n + q) // g),
    ),
    "swapped-back": (
        "as if packed query-fastest (head = row // queries)",
        lambda h, q, g, n: ((q * g + h) // n, (q * g + h) % n),
    ),
    "head+1": ("from the next head of the group", lambda h, q, g, n: ((h + 1) % g, q)),
    "head-1": ("from the previous head of the group", lambda h, q, g, n: ((h - 1) % g, q)),
    "head-0": ("from the first head of the group", lambda h, q, g, n: (0 * h, q)),
    "reversed": ("from the heads of the group in reverse order", lambda h, q, g, n: (g - 1 - h, q)),
}


def hypotheses() -> Iterator[Hypothesis]:
    """All of the family, the plainest first."""
    for name, (words, rows) in _MAPS.items():
        read = altered("q_rows", lambda at, x, rows=rows: _taken(at, x, rows))
        masked = altered("visible", lambda at, x, rows=rows: _masked(at, x, rows))
        out, lse = (altered(stage, lambda at, x, rows=rows: _taken(at, x, rows)) for stage in ("out", "lse"))
        yield _of(f"{name}-read", f"rows of q are read {words}", read)
        yield _of(f"{name}-masked", f"the mask is read {words}", masked)
        yield _of(f"{name}-stored", f"rows of out and lse are stored {words}", out, lse)
        yield _of(f"{name}-stored-out", f"rows of out are stored {words}", out)
        yield _of(f"{name}-stored-lse", f"rows of lse are stored {words}", lse)
        yield _of(f"{name}-read-and-masked", f"rows of q and the mask are read {words}", read, masked)


def _taken(at: Any, x: np.ndarray, rows: Any) -> np.ndarray:
    """x [b, h, q, ...] with the (head, query) rows of each group of heads put in the order `rows`."""
    b, h, q = x.shape[:3]
    group = h // at.p.inputs["k"].shape[1]
    places: Rows = rows(*np.indices((group, q)), group, q)
    found: np.ndarray = x.reshape(b, h // group, group, q, *x.shape[3:])[:, :, *places]
    return found.reshape(x.shape)


def _masked(at: Any, seen: np.ndarray, rows: Any) -> np.ndarray:
    q = at.p.inputs["q"]
    return _taken(at, np.broadcast_to(seen, (*q.shape[:3], seen.shape[-1])), rows)
