"""What is left in buffers: sums and accumulators of the head before, P and partial results of another tile."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from workbench.readings.parts import Parts, divided, finite, partials

#: queries of a tile
ROWS = (16, 32, 64, 128, 8, 24, 48)


@dataclass(frozen=True)
class NotCleared:
    """An accumulator or a sum that begins with what the item before left, not with 0."""

    what: str  #: accumulator, row sum, or both
    over: str  #: heads, heads of a group, or tiles of queries
    size: int = 0  #: keys of a tile, where what is left is corrected by all tiles but the first; 0: it stays as it is
    rows: int = 0  #: queries of a tile

    def __call__(self, of: Parts) -> tuple[np.ndarray, np.ndarray]:
        """out and lse."""
        top, total, acc = (x[..., 0, :] if x.ndim == 5 else x[..., 0] for x in partials(of, of.scores.shape[-1]))
        if of.sinks is not None:
            with np.errstate(all="ignore"):
                total = total + np.exp(of.sinks - finite(top))
        kept = np.ones(total.shape)
        if self.size:
            kept = np.exp(np.minimum(of.scores[..., : self.size].max(-1) - of.top, 0.0))
        if self.what != "row sum":
            acc = self._added_up(acc, kept[..., None], of.kv_heads)
        if self.what != "accumulator":
            total = self._added_up(total[..., None], kept[..., None], of.kv_heads)[..., 0]
        with np.errstate(divide="ignore"):
            return divided(acc, total), of.top + np.log(total)

    def _added_up(self, x: np.ndarray, kept: np.ndarray, kv_heads: int) -> np.ndarray:
        """Each with `kept` of what the one before ended with; of [b, h, q, d]."""
        if self.over == "tiles of queries":
            found = x.copy()
            for first in range(self.rows, x.shape[2], self.rows):
                at = np.arange(first, min(first + self.rows, x.shape[2]))
                found[:, :, at] += kept[:, :, at] * found[:, :, at - self.rows]
            return found
        b, h, *_ = x.shape
        steps = b * h if self.over == "heads" else h // kv_heads
        found, kept = (one.reshape(-1, steps, *one.shape[2:]) for one in (x.copy(), kept))
        for n in range(1, steps):
            found[:, n] += kept[:, n] * found[:, n - 1]
        return found.reshape(x.shape)

    @property
    def words(self) -> str:
        """What is wrong in it."""
        of = {"heads": "head (over all batches)", "heads of a group": "head of its group"}
        item = of.get(self.over, f"tile of {self.rows} queries")
        kept = f", rescaled to its own maximum from the second tile of {self.size} keys on" if self.size else ""
        what = {"both": "accumulator and row sum start"}.get(self.what, f"the {self.what} starts")
        return f"{what} from what the previous {item} left, not from 0{kept}"


@dataclass(frozen=True)
class Skipped:
    """What becomes of tiles of keys that the mask hides from a whole tile of queries."""

    rows: int
    size: int
    kind: str  #: P, partial results, or row sum

    def _tiles(self, of: Parts) -> Iterator[tuple[slice, list[tuple[slice, bool]]]]:
        """Tiles of queries, and of each the tiles of keys with whether a key of them is seen."""
        seen = np.isfinite(of.start).any((0, 1))
        rows, keys = seen.shape
        for first in range(0, rows, self.rows):
            r = slice(first, min(first + self.rows, rows))
            cut = [slice(t, min(t + self.size, keys)) for t in range(0, keys, self.size)]
            yield r, [(t, bool(seen[r, t].any())) for t in cut]

    def __call__(self, of: Parts) -> tuple[np.ndarray, np.ndarray]:
        """out and lse."""
        with np.errstate(all="ignore"):
            plain = np.exp(of.scores - of.top[..., None])
            total = plain.sum(-1)
            if self.kind == "row sum":
                hidden = ~np.isfinite(of.start)
                counted = np.zeros(hidden.shape[2:], bool)
                for r, cut in self._tiles(of):
                    for t, seen in cut:
                        counted[r, t] = seen
                more = np.where(hidden & counted, np.exp(of.respond(of.raw * of.factor) - of.top[..., None]), 0.0)
                total = total + more.sum(-1)
            elif self.kind == "P":
                plain = self._of_tile_before(of, plain)
            else:
                return self._of_scratch(of)
            return divided(plain @ of.values, total), of.top + np.log(total)

    def _of_tile_before(self, of: Parts, plain: np.ndarray) -> np.ndarray:
        """P of the last tile that was seen, below the maximum so far, again in the tiles that are skipped."""
        found = plain.copy()
        for r, cut in self._tiles(of):
            last: slice | None = None
            for t, seen in cut:
                if seen:
                    last = t
                elif last is not None:
                    n = min(t.stop - t.start, last.stop - last.start)
                    found[:, :, r, t.start : t.start + n] = plain[:, :, r, last.start : last.start + n]
        return found

    def _of_scratch(self, of: Parts) -> tuple[np.ndarray, np.ndarray]:
        """Partial results of splits that are skipped are those of the tile of queries before."""
        top, total, acc = (x.copy() for x in partials(of, self.size))
        for r, cut in self._tiles(of):
            for n, (_, seen) in enumerate(cut):
                if not seen and r.start:
                    into = np.arange(r.start, r.stop)
                    for whole in (top, total, acc):
                        whole[:, :, into, n] = whole[:, :, into - self.rows, n]
        most = top.max(-1)
        most = np.where(np.isfinite(most), most, 0.0)
        weight = np.exp(top - most[..., None])
        summed = (weight * total).sum(-1)
        return divided((weight[..., None] * acc).sum(-2), summed), most + np.log(summed)

    @property
    def words(self) -> str:
        """What is wrong in it."""
        tile = f"tiles of {self.rows} queries and {self.size} keys"
        return {
            "P": "fully masked tiles use the P of the previous tile",
            "partial results": "fully masked splits keep the partial results of the previous tile of queries",
            "row sum": "the row sum counts masked keys in partly visible tiles",
        }[self.kind] + f" ({tile})"


def left_over(sizes: Sequence[int], rows: int, hidden: bool) -> Iterator[NotCleared | Skipped]:
    """What may be left in buffers, the simplest first; `hidden`: whether the mask hides anything."""
    for what in ("accumulator", "row sum", "both"):
        for over in ("heads", "heads of a group"):
            for size in (0, *sizes):
                yield NotCleared(what, over, size)
        for tile in (n for n in ROWS if n < rows):
            yield NotCleared(what, "tiles of queries", 0, tile)
    if not hidden:
        return
    for kind in ("row sum", "P", "partial results"):
        for tile in (rows, *(n for n in ROWS if n < rows)):
            for size in sizes:
                yield Skipped(tile, size, kind)
