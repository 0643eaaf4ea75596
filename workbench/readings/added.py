"""Values that every row of a head has beside its weighted ones: a mean that is added back, a key always read."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from workbench.readings.parts import Parts, plain

#: what may be added, in words, of values [b, h, k, d]
VALUES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "the mean of V over the keys": lambda v: v.mean(2, keepdims=True),
    "V of key 0": lambda v: v[:, :, :1],
    "V of the last key": lambda v: v[:, :, -1:],
}


@dataclass(frozen=True)
class Added:
    """Attention as it should be, and so many times some values."""

    name: str  #: a key of VALUES
    times: float

    def __call__(self, of: Parts) -> tuple[np.ndarray, np.ndarray]:
        """out and lse."""
        out, lse = plain(of)
        return out + self.times * VALUES[self.name](of.values), lse

    @property
    def words(self) -> str:
        """What is wrong in it."""
        return f"out has {self.times:.6g} times {self.name} beside what it should be"


@dataclass(frozen=True)
class Smoothed:
    """Attention of keys less the mean of their tile, which is not made up for."""

    size: int  #: keys of a tile

    def __call__(self, of: Parts) -> tuple[np.ndarray, np.ndarray]:
        """out and lse."""
        keys = of.k.shape[2]
        edges = list(range(0, keys, self.size))
        counts = np.diff([*edges, keys])
        means = np.add.reduceat(of.k, edges, axis=2) / counts[:, None]
        return plain(of.but(k=of.k - np.repeat(means, counts, 2)))

    @property
    def words(self) -> str:
        """What is wrong in it."""
        return f"the mean of each tile of {self.size} keys is taken from K, and scores are not made up for it"


def added(of: Parts, out: np.ndarray, known: np.ndarray) -> Iterator[Added]:
    """Values with the factor that leaves least of `out`, where it is known."""
    with np.errstate(all="ignore"):
        off = out - plain(of)[0]
        for name, of_values in VALUES.items():
            x = np.broadcast_to(of_values(of.values), out.shape)
            some = known & np.isfinite(off) & np.isfinite(x)
            size = float(np.sum(x[some] ** 2))
            if size > 0:
                yield Added(name, float(np.sum((x * np.where(some, off, 0.0))[some]) / size))
