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
        return f"out has an extra {self.times:.6g} times {self.name}"


@dataclass(frozen=True)
class Smoothed:
    """Attention of keys or queries less the mean of their tile, which is not made up for."""

    size: int  #: rows of a tile
    of: str = "k"  #: or q

    def __call__(self, of: Parts) -> tuple[np.ndarray, np.ndarray]:
        """out and lse."""
        x = getattr(of, self.of)
        edges = list(range(0, x.shape[2], self.size))
        counts = np.diff([*edges, x.shape[2]])
        means = np.add.reduceat(x, edges, axis=2) / counts[:, None]
        return plain(of.but(**{self.of: x - np.repeat(means, counts, 2)}))

    @property
    def words(self) -> str:
        """What is wrong in it."""
        rows = "keys" if self.of == "k" else "queries"
        return (
            f"the mean of each tile of {self.size} {rows} is subtracted from {self.of.upper()} but not added back "
            "to the scores"
        )


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
