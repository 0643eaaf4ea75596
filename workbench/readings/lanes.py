"""Rows that several lanes of a warp hold, whose maxima or sums are not reduced over them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from workbench.readings.parts import Parts, divided, finite

#: lanes that hold a row of an accumulator of mma, and columns that are next to each other in one
LANES, TOGETHER = 4, 2


@dataclass(frozen=True)
class Lanes:
    """Column c is of lane c // 2 % 4, of keys within their tile and of dims of V."""

    what: str  #: sum or maximum
    size: int  #: keys of a tile
    done: int = 0  #: the step of the butterfly that is done, lane ^ 1 or lane ^ 2; 0: none

    def __call__(self, of: Parts) -> tuple[np.ndarray, np.ndarray]:
        """out and lse; lane 0 writes lse."""
        keys, dims = of.values.shape[2:]
        of_keys = self._classes(np.arange(keys) % self.size)
        of_dims = self._classes(np.arange(dims))
        classes = range(LANES if not self.done else LANES // 2)
        with np.errstate(all="ignore"):
            if self.what == "sum":
                plain = np.exp(of.scores - of.top[..., None])
                sums = np.stack([plain[..., of_keys == n].sum(-1) for n in classes], -1)
                acc = plain @ of.values
                out = np.where(sums[..., of_dims] == 0, 0.0, acc / sums[..., of_dims])
                return out, of.top + np.log(sums[..., 0])
            edges = list(range(0, keys, self.size))
            best = np.stack(
                [np.maximum.reduceat(np.where(of_keys == n, of.scores, -np.inf), edges, -1) for n in classes]
            )
            new = np.maximum.accumulate(best, -1)  # [lane, b, h, q, tile]
            later = finite(new) - finite(new[..., -1:])  # the sum of the corrections behind each tile
            tile = np.arange(keys) // self.size
            below = np.choose(of_keys, finite(new)[..., tile])
            own = np.exp(of.scores - below)
            total = (own * np.exp(np.choose(of_keys, later[..., tile]))).sum(-1)
            out = np.zeros((*of.scores.shape[:-1], dims))
            for n in classes:
                weights = own * np.exp(later[n][..., tile])
                out[..., of_dims == n] = (weights @ of.values)[..., of_dims == n]
            return divided(out, total), finite(new[0][..., -1]) + np.log(total)

    def _classes(self, column: np.ndarray) -> np.ndarray:
        """Lanes of columns, those that were reduced over as one."""
        lane = column // TOGETHER % LANES
        return lane if not self.done else lane // 2 if self.done == 1 else lane % 2

    @property
    def words(self) -> str:
        """What is wrong in it."""
        lanes = f"the {LANES} lanes of a row ({TOGETHER} of every {LANES * TOGETHER} columns each)"
        how = f"are reduced by the step lane ^ {self.done} alone, not over" if self.done else "are not reduced over"
        if self.what == "sum":
            return f"row sums {how} {lanes}: each dim of out is divided by its lane's sum"
        return f"row maxima {how} {lanes} (tiles of {self.size} keys)"


def lanes(sizes: Sequence[int], keys: int) -> Iterator[Lanes]:
    """Both, of each size of a tile."""
    for done in (0, 1, 2):
        yield Lanes("sum", keys, done)
        for size in sizes:
            yield Lanes("maximum", size, done)
