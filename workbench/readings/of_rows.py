"""Loops whose rows take a number of another row, or go on where the rows of the tile before ended."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from workbench.readings.parts import Parts, divided, finite

#: which row's correction a row takes, in words
ROWS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "row i - 8, in the upper half of each 16 rows": lambda i: np.where(i % 16 >= 8, i - 8, i),
    "row i + 8, in the lower half of each 16 rows": lambda i: np.where(i % 16 < 8, i + 8, i),
    "row i - 16, in the upper half of each 32 rows": lambda i: np.where(i % 32 >= 16, i - 16, i),
    "row i + 16, in the lower half of each 32 rows": lambda i: np.where(i % 32 < 16, i + 16, i),
    "row i ^ 8": lambda i: i ^ 8,
    "row i ^ 1": lambda i: i ^ 1,
    "row i ^ 16": lambda i: i ^ 16,
    "row i - 1": lambda i: i - 1,
    "row i + 1": lambda i: i + 1,
    "the first row of each 16": lambda i: i // 16 * 16,
    "the first row of each 8": lambda i: i // 8 * 8,
}


@dataclass(frozen=True)
class CorrectedAs:
    """An accumulator, a row sum or both that are rescaled as those of another row."""

    rows: str  #: a key of ROWS
    size: int  #: keys of a tile
    acc: bool = True
    total: bool = False

    def __call__(self, of: Parts) -> tuple[np.ndarray, np.ndarray]:
        """out and lse."""
        keys = of.scores.shape[-1]
        edges = list(range(0, keys, self.size))
        wide = np.diff([*edges, keys])
        with np.errstate(all="ignore"):
            running = finite(np.maximum.accumulate(np.maximum.reduceat(of.scores, edges, axis=-1), -1))
            later = running - running[..., -1:]  # the sum of the corrections behind each tile
            i = np.arange(of.scores.shape[2])
            row = ROWS[self.rows](i)
            other = later[:, :, np.where((row >= 0) & (row < len(i)), row, i)]
            p = np.exp(of.scores - np.repeat(running, wide, -1))
            own, theirs = (p * np.repeat(np.exp(x), wide, -1) for x in (later, other))
            total = (theirs if self.total else own).sum(-1)
            return divided((theirs if self.acc else own) @ of.values, total), running[..., -1] + np.log(total)

    @property
    def words(self) -> str:
        """What is wrong in it."""
        what = " and ".join(x for x, has in (("the accumulator", self.acc), ("the row sum", self.total)) if has)
        is_ = "are" if self.acc and self.total else "is"
        return f"{what} of row i {is_} rescaled with the correction of {self.rows} (tiles of {self.size} keys)"


@dataclass(frozen=True)
class Kept:
    """A loop over tiles of queries that begins where the tile before ended: with its maxima, sums and accumulators."""

    count: int  #: queries of a tile

    def __call__(self, of: Parts) -> tuple[np.ndarray, np.ndarray]:
        """out and lse."""
        with np.errstate(all="ignore"):
            p = np.exp(of.scores - of.top[..., None])
            lse, out = of.top + np.log(p.sum(-1)), divided(p @ of.values, p.sum(-1))
            for first in range(self.count, lse.shape[2], self.count):
                mine = slice(first, min(first + self.count, lse.shape[2]))
                before = slice(first - self.count, first - self.count + mine.stop - mine.start)
                both = np.logaddexp(lse[:, :, before], lse[:, :, mine])
                shares = [np.exp(lse[:, :, x] - finite(both))[..., None] for x in (before, mine)]
                out[:, :, mine] = shares[0] * out[:, :, before] + shares[1] * out[:, :, mine]
                lse[:, :, mine] = both
            return out, lse

    @property
    def words(self) -> str:
        """What is wrong in it."""
        return f"maxima, sums and accumulators are not reset between tiles of {self.count} queries"


def of_rows(sizes: Sequence[int], rows: int) -> Iterator[CorrectedAs | Kept]:
    """Both, of each size of a tile."""
    yield from (Kept(count) for count in (16, 32, 64, 128, 8) if count < rows)
    for size in sizes:
        for name in ROWS:
            yield from (CorrectedAs(name, size, *which) for which in ((True, False), (True, True), (False, True)))
