"""Padding between rows: zeros that are written over the last rows of a tile, dims that are read of the next row."""

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from workbench.judge.explain.hypothesis import Edit, Hypothesis, across, altered, of_family
from workbench.reference.steps.parameters import by_query_head

#: operands that share the code that fills a tile, the likeliest first -> as words
_OPERANDS = {
    "qv": "q and v", "qkv": "q, k and v", "kv": "k and v", "qk": "q and k", "q": "q", "k": "k", "v": "v",
}  # fmt: skip
#: rows of a tile in shared memory, and elements of padding behind each of them
_TILES, _PADS = (32, 64, 16, 128), (16, 8, 4)
#: of which head_dim is rounded up to a multiple
_WIDTHS = (8, 16, 32, 64, 128)
_of = of_family("layout")


def hypotheses() -> Iterator[Hypothesis]:
    """All of them, the plainest first."""
    yield from across(_wide())
    for size, pad, (operands, words), rest in product(_TILES, _PADS, _OPERANDS.items(), (True, False)):
        last = "" if rest else ", even in a partial last tile"
        text = (
            f"the zero fill of {size}-row tiles of {words} ignores the row padding of {pad}: it starts at element "
            f"rows * head_dim{last}"
        )
        name = f"zeros-in-tile-{pad}-{size}{'' if rest else '-whole'}-{operands}"
        yield _of(name, text, *(_zeroed(x, partial(_without_tail, pad, size, rest)) for x in operands))


def _zeroed(x: str, change: Any) -> Edit:
    return altered(f"{x}_rows", lambda at, rows: change(rows))


def _without_tail(pad: int, size: int, rest: bool, rows: np.ndarray) -> np.ndarray:
    """Rows whose place in their tile, in elements, is behind as many as the tile has without padding; `rest`: where
    the last tile has fewer rows, of those.
    """
    n, d = rows.shape[-2:]
    row = np.arange(n)
    held = np.minimum(size, n - row // size * size) if rest else np.full(n, size)
    place = (row % size * (d + pad))[:, None] + np.arange(d)
    return np.where(place < (held * d)[:, None], rows, 0.0)


def _wide() -> Iterator[Hypothesis]:
    """Rows of q and k that are read wider than they are; what they weigh is of both."""
    for n, ends in product(_WIDTHS, ("around", "head", "zeros")):
        text = f"rows of q and k are read up to a multiple of {n} dims, into the next row"
        text += {
            "around": "",
            "head": "; zeros follow the last row of a head",
            "zeros": "; zeros follow the last head",
        }[ends]
        change = partial(_with_next, n, ends)
        yield _of(f"wide-{n}-{ends}", text, altered("qk", change, "q", "k"))


def _with_next(n: int, ends: str, at: Any, x: np.ndarray) -> np.ndarray:
    q, k = (_next(at(name), n, ends) for name in "qk")
    return x + q @ by_query_head(k, at.heads).swapaxes(-1, -2)


def _next(x: np.ndarray, n: int, ends: str) -> np.ndarray:
    """What is read behind each row up to a multiple of `n` dims, [b, h, rows, dims]: the rows that follow in memory."""
    b, h, rows, d = x.shape
    flat = x.reshape(b * h, rows * d) if ends == "head" else x.reshape(1, -1)
    place = np.arange(flat.shape[1] // d)[:, None] * d + np.arange(d, -(-d // n) * n)
    found = flat[:, place % flat.shape[1]]
    if ends != "around":
        found = np.where(place < flat.shape[1], found, 0.0)
    return found.reshape(b, h, rows, -1)
