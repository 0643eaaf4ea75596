"""Edges of a mask that lie elsewhere: causal, of a window, of either at blocks."""

from collections.abc import Callable, Iterator

import numpy as np

BLOCKS = (4, 8, 16, 32, 64, 128)
#: first and last key that each query sees, int [..., q], last < first where it sees none, and the number of keys
Ends = Callable[[np.ndarray, np.ndarray, int, int], tuple[np.ndarray, np.ndarray]]


def moved() -> Iterator[tuple[str, str, Ends]]:
    """Name, words, and where the edges are then."""
    yield from shifted()
    yield from _at_blocks()


def shifted() -> Iterator[tuple[str, str, Ends]]:
    """Those of them that lie a few keys further, or elsewhere altogether."""
    for n in (1, -1, 2, -2):
        keys = "one key" if abs(n) == 1 else f"{abs(n)} keys"
        more = "too many" if n > 0 else "too few"
        yield f"right-{n:+}", f"each query sees {keys} {more} on the right", lambda f, l, q, k, n=n: (f, l + n)
        yield f"left-{n:+}", f"each query sees {keys} {more} on the left", lambda f, l, q, k, n=n: (f - n, l)
    yield "shift+1", "the mask is shifted by one key to the right", lambda f, l, q, k: (f + 1, l + 1)
    yield "shift-1", "the mask is shifted by one key to the left", lambda f, l, q, k: (f - 1, l - 1)
    yield "no-right", "the right edge of the mask (causal) is not applied", lambda f, l, q, k: (f, 0 * l + k - 1)
    yield "no-left", "the left edge of the mask (the window) is not applied", lambda f, l, q, k: (0 * f, l)
    for name, corner, sign in (
        ("top-left", "top-left instead of bottom-right", -1),
        ("bottom-right", "bottom-right instead of top-left", 1),
    ):
        yield (
            name,
            f"the mask is aligned {corner}",
            lambda f, l, q, k, s=sign: (f + s * (k - q), l + s * (k - q)),
        )
        yield (
            f"left-{name}",
            f"the left edge of the mask (the window) is aligned {corner}",
            lambda f, l, q, k, s=sign: (f + s * (k - q), l),
        )
        yield (
            f"window-{name}",
            f"the window is aligned {corner}; the causal mask is right",
            lambda f, l, q, k, s=sign: (f + s * (k - q), np.minimum(l, l + s * (k - q))),
        )


def _at_blocks() -> Iterator[tuple[str, str, Ends]]:
    """Those at ends of blocks, or of rows of blocks."""
    for b in BLOCKS:
        yield (
            f"right-up-{b}",
            f"the right edge of the mask is rounded up to blocks of {b} keys",
            lambda f, l, q, k, b=b: (f, l // b * b + b - 1),
        )
        yield (
            f"right-down-{b}",
            f"blocks of {b} keys crossed by the right edge of the mask are skipped",
            lambda f, l, q, k, b=b: (f, np.where(l < k - 1, (l + 1) // b * b - 1, l)),
        )
        yield (
            f"left-down-{b}",
            f"the left edge of the mask is rounded down to blocks of {b} keys",
            lambda f, l, q, k, b=b: (f // b * b, l),
        )
        yield (
            f"left-up-{b}",
            f"blocks of {b} keys crossed by the left edge of the mask are skipped",
            lambda f, l, q, k, b=b: (-(-f // b) * b, l),
        )
        yield (
            f"row-start-{b}",
            f"all rows of a block of {b} queries use the mask of its first row",
            lambda f, l, q, k, b=b: tuple(x[..., np.arange(q) // b * b] for x in (f, l)),
        )
        yield (
            f"row-end-{b}",
            f"all rows of a block of {b} queries use the mask of its last row",
            lambda f, l, q, k, b=b: tuple(x[..., np.minimum(np.arange(q) // b * b + b - 1, q - 1)] for x in (f, l)),
        )


def moves(seen: np.ndarray, side: str) -> bool:
    """Whether the left or the right edge of a mask moves along its rows, as of a window or a causal mask; of one row,
    whether all batches have it at one key. Where padding ends it it stays.
    """
    k = seen.shape[-1]
    any_seen = np.asarray(seen.any(-1))
    edge = seen.argmax(-1) if side == "left" else k - 1 - seen[..., ::-1].argmax(-1)
    known = any_seen & ((edge > 0) if side == "left" else (edge < k - 1))
    low, high = edge.min(-1, where=known, initial=k), edge.max(-1, where=known, initial=-1)
    if seen.shape[-2] == 1:
        return bool(known.all() and low.min() == high.max())
    return bool((low < high).any())


def between(seen: np.ndarray, ends: Ends) -> np.ndarray:
    """The mask with other ends of each row's run of keys; a mask with holes keeps them inside."""
    q, k = seen.shape[-2:]
    any_seen = np.asarray(seen.any(-1))
    first = np.where(any_seen, seen.argmax(-1), 0)
    last = np.where(any_seen, k - 1 - seen[..., ::-1].argmax(-1), -1)
    keys = np.arange(k)
    run = (keys >= first[..., None]) & (keys <= last[..., None])
    holes = run & ~seen & any_seen[..., None]
    # an edge that lies at the end of the keys was cut there
    first = _continued(first, any_seen & ((first > 0) | (q == 1)), any_seen, np.minimum, 0, -q - k)
    last = _continued(last, any_seen & ((last < k - 1) | (q == 1)), any_seen, np.maximum, k - 1, q + 2 * k)
    new_first, new_last = ends(first, last, q, k)
    return (keys >= new_first[..., None]) & (keys <= new_last[..., None]) & ~holes


def _continued(
    x: np.ndarray, known: np.ndarray, seen: np.ndarray, farther: Callable[..., np.ndarray], end: int, nowhere: int
) -> np.ndarray:
    """An edge in rows in which it is not known: one key more for each row from the nearest one in which it is, and
    where a row sees keys at the `end` or `farther`; `nowhere` near where no row knows it.
    """
    rows = np.arange(x.shape[-1])
    first, last = known.argmax(-1)[..., None], x.shape[-1] - 1 - known[..., ::-1].argmax(-1)[..., None]
    nearest = np.clip(rows, first, last)
    edge = np.take_along_axis(x, nearest, -1) + rows - nearest
    edge = np.where(seen, farther(edge, end), edge)
    return np.where(known, x, np.where(np.any(known, -1, keepdims=True), edge, nowhere))
