"""A mask taken apart: padding, which no query of a sequence sees, and what rows see beside it; and in words what is
seen in place of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Band:
    """Keys by their distance from a query, counted from a corner."""

    left: int | None  #: how many keys before the query are seen; None: all
    right: int | None  #: how many behind it; None: all
    top_left: bool = False  #: whether query 0 is key 0; else the last query is the last key

    def has_an_edge_of(self, other: "Band") -> bool:
        """Whether both end on the same side, wherever."""
        return (self.left is not None and other.left is not None) or (
            self.right is not None and other.right is not None
        )

    def made(self, rows: int, keys: int) -> np.ndarray:
        """Bool [q, k]."""
        before = _before(rows, keys, self.top_left)
        seen = np.ones((rows, keys), bool)
        if self.left is not None:
            seen &= before <= self.left
        if self.right is not None:
            seen &= -before <= self.right
        return seen

    @property
    def name(self) -> str:
        """In a few words; empty where it hides nothing."""
        corner = " top-left" if self.top_left else ""
        if self.left is None:
            return (
                ""
                if self.right is None
                else f"causal{corner}"
                if self.right == 0
                else f"up to {self.right} after{corner}"
            )
        sides = {None: "", 0: " causal"}.get(self.right, f",{self.right}")
        return f"window {self.left}{sides}{corner}"

    @property
    def hidden(self) -> str:
        """What it hides, in words; empty where it hides nothing."""
        corner = ", counted from the top left" if self.top_left else ""
        if self.left is None:
            if self.right is None:
                return ""
            after = "after the query (causal" if self.right == 0 else f"more than {self.right} after the query ("
            return f"keys {after}{corner})".replace(" ()", "").replace("(, ", "(")
        window = f"more than {self.left} before the query"
        if self.right is None or self.right == 0:
            causal = "" if self.right is None else ", and keys after the query"
            return f"keys {window}{causal} (a window of {self.left + 1} keys{corner})"
        return f"keys {window} or {self.right} after it (a window{corner})"


CAUSAL, FULL = Band(None, 0), Band(None, None)


@dataclass(frozen=True, eq=False)
class Parts:
    """A mask [b, h, q, k] that is a band without padding."""

    band: Band
    base: np.ndarray  #: of that, bool [q, k]
    padding: np.ndarray  #: keys that no query of a batch sees, bool [b, k]; not those that the band hides alone

    @property
    def end(self) -> str:
        """At which end padding lies, in words."""
        within = self.padding[:, self.base.any(0)]
        ends = {bool(one[0]) for one in within if one.any()}
        runs = all(np.count_nonzero(np.diff(one)) <= 1 for one in within)
        return ("first" if ends == {True} else "last") if runs and len(ends) == 1 else ""

    @property
    def flipped(self) -> np.ndarray:
        """The mask with as much padding at the other end."""
        found: np.ndarray = self.base & ~self.padding[:, None, None, ::-1]
        return found


def parts(mask: np.ndarray) -> Parts | None:
    """The parts of a mask [b, h, q, k]; None of one that is no band without padding. Rows that see nothing tell
    nothing.
    """
    padding = ~np.asarray(mask.any((1, 2)))
    known = mask.any(-1, keepdims=True)
    if padding.all():
        return None
    for band in _bands(mask, padding):
        base = band.made(*mask.shape[2:])
        if np.array_equal((base & ~padding[:, None, None]) & known, mask):
            padded = (padding & base.any(0)).any(1, keepdims=True)  # elsewhere the band hides them
            return Parts(band, base, padding & padded)
    return None


def _bands(seen: np.ndarray, padding: np.ndarray) -> Iterator[Band]:
    """Those that a mask may be, the plainest first: what is seen farthest tells a window."""
    rows, keys = seen.shape[2:]
    yield FULL
    for top_left in (False, True) if rows != keys else (False,):
        before = _before(rows, keys, top_left)
        yield Band(None, 0, top_left)
        left, right = _reach(seen, before)
        room = ~padding[:, None, None] & np.ones_like(seen)
        widest, deepest = _reach(room, before)
        sides = (left if left < widest else None, right if right < deepest else None)
        yield Band(*sides, top_left)


def _reach(seen: np.ndarray, before: np.ndarray) -> tuple[int, int]:
    """How many keys before and behind a query are seen at most."""
    where = np.asarray(seen.any((0, 1)))
    return int(before[where].max(initial=0)), int((-before)[where].max(initial=0))


def _before(rows: int, keys: int, top_left: bool) -> np.ndarray:
    """By how many keys each key stands before each query, [q, k]."""
    found: np.ndarray = np.arange(rows)[:, None] + (0 if top_left else keys - rows) - np.arange(keys)
    return found


def hides(what: str) -> str:
    """A sentence: what a function hides and was not told to."""
    return f"the function hides {what}, which the spec does not mention: if that is intended, fix the spec"


def in_place_of(told: np.ndarray, sees: np.ndarray) -> str:
    """What a function that sees `sees` does with the mask `told`, both bool [b, h, q, k]; "" where it has no name. Rows
    that are told to see nothing tell nothing.
    """
    sees = sees & told.any(-1, keepdims=True)
    if not (sees & ~told).any():
        return _more_hidden(told, sees)
    found, known = parts(told), told.any(-1, keepdims=True)
    if found is not None and found.padding.any():
        if np.array_equal(found.base & known, sees):
            return f"the padding mask{f' of the {found.end} keys' if found.end else ''} is not applied"
        if found.end and np.array_equal(found.flipped & known, sees):
            other = "last" if found.end == "first" else "first"
            return f"the padding mask hides the {other} keys instead of the {found.end}"
    if (sees == known).all():
        return "no key is masked"
    if told.shape[0] > 1 and np.array_equal(told[:1] & known, sees):
        return "the mask of batch 0 is used for every batch"
    if found is None:
        return ""
    left = ~found.padding[:, None, None] & known
    rows, keys = told.shape[2:]
    band = found.band
    if band.left is not None and np.array_equal(Band(None, band.right, band.top_left).made(rows, keys) & left, sees):
        return "the window is not applied"
    if band.right is not None and np.array_equal(Band(band.left, None, band.top_left).made(rows, keys) & left, sees):
        return "keys after the query are not hidden (causal)"
    return ""


def _more_hidden(told: np.ndarray, sees: np.ndarray) -> str:
    if np.array_equal(told, sees) or not sees.any():
        return ""
    rows, keys = told.shape[2:]
    of_told = parts(told)
    for band in _narrower(told, sees):
        if of_told is not None and band.has_an_edge_of(of_told.band):
            continue  # it was told, and lies elsewhere
        if np.array_equal(told & band.made(rows, keys), sees):
            return hides(band.hidden)
    if size := _chunk(told, sees):
        return hides(f"keys outside the chunk of {size} keys of the query")
    return ""


def _narrower(told: np.ndarray, sees: np.ndarray) -> Iterator[Band]:
    """Bands that hide more than was told, causal ones first."""
    rows, keys = told.shape[2:]
    for top_left in (False, True) if rows != keys else (False,):
        before = _before(rows, keys, top_left)
        widest, deepest = _reach(told, before)
        left, right = _reach(sees, before)
        if right <= 0 < deepest:
            yield Band(None, 0, top_left)
        if left < widest or right < deepest:
            yield Band(left if left < widest else None, right if right < deepest else None, top_left)


def _chunk(told: np.ndarray, sees: np.ndarray) -> int:
    """The size of the chunks whose keys alone a query sees; 0 where there are none."""
    rows, keys = told.shape[2:]
    i, j = np.arange(rows)[:, None] + keys - rows, np.arange(keys)
    first = int(np.asarray(sees[:, :, -1].any((0, 1))).argmax())
    for size in (x for x in range(max(keys - first, 2), first + 1) if first % x == 0):
        if np.array_equal(told & (i // size == j // size), sees):
            return size
    return 0
