"""What weights are divided by."""

from dataclasses import dataclass

import numpy as np

from workbench.readings.known import Step, by_tile


@dataclass(frozen=True, eq=False)
class Denominator:
    """In units of e^(row maximum), of scores and e^(s - maximum); of some rows, of others the sum and the sinks."""

    kind: str
    edges: tuple[int, ...] = (0,)
    terms: tuple[tuple[str, float], ...] = ()
    numbers: np.ndarray | float = 0.0
    rows: np.ndarray | None = None  #: bool [q], of which it is so; None: all
    sinks: bool = False  #: whether sinks are added as they should be

    def __call__(self, scores: np.ndarray, plain: np.ndarray, sinks: np.ndarray | None) -> np.ndarray:
        """[b, h, q]."""
        with np.errstate(all="ignore"):
            total: np.ndarray = plain.sum(-1)
            top = scores.max(-1)
            of_sinks = 0.0 if sinks is None else np.exp(sinks - top)
            found = self._of(scores, plain, total, top, sinks)
            if self.sinks:
                found = found + of_sinks
            return found if self.rows is None else np.where(self.rows, found, total + of_sinks)

    def _of(
        self, scores: np.ndarray, plain: np.ndarray, total: np.ndarray, top: np.ndarray, sinks: np.ndarray | None
    ) -> np.ndarray:
        n = np.asarray(self.numbers)
        if self.kind == "steps":
            return (plain * np.exp(Step(self.edges, self.terms).of(scores))).sum(-1)
        if self.kind == "constant":
            return np.broadcast_to(n, total.shape)
        if self.kind == "factor":
            return total * n
        if self.kind == "plus":
            return total + n
        if self.kind == "phantom":
            return total + n * np.exp(-top)
        if self.kind == "lse":  # a number, NaN where it is the row's own
            return np.where(np.isnan(n), total, np.exp(n - top))
        if self.kind == "sink":  # n: a factor of the sink's weight, and one of its logit
            assert sinks is not None
            return total + n[0] * np.exp(n[1] * sinks - top)
        if self.kind == "sink below no maximum":
            assert sinks is not None
            return total + n[0] * np.exp(n[1] * sinks)
        if self.kind == "sink unshifted":  # beside sums below a maximum of which the sink is one
            assert sinks is not None
            return total + np.exp(sinks + np.maximum(top, sinks) - top)
        if self.kind == "sink itself":
            assert sinks is not None
            return total + n * sinks
        if self.kind == "phantom of a tile":
            return total + n[0] * np.exp(by_tile(scores, self.edges)[0][..., int(n[1])] - top)
        if self.kind == "largest lse":
            most, sums = by_tile(scores, self.edges)
            return n * np.exp((most + np.log(sums)).max(-1) - top)
        if self.kind == "power":
            ((name, slope),) = self.terms
            return total * np.exp(n + slope * of_row(name, scores, total, self.edges))
        if self.kind == "tiles":
            return np.add.reduceat(plain, self.edges, axis=-1) @ n
        if self.kind == "tiles and score 0":  # n: how often tiles are counted, and keys of score 0
            return np.add.reduceat(plain, self.edges, axis=-1) @ n[:-1] + n[-1] * np.exp(-top)
        if self.kind == "keys":
            return plain @ n
        if self.kind == "own maxima":
            return by_tile(scores, self.edges)[1].sum(-1)
        if self.kind == "row":
            return np.roll(total, int(n), 2)
        if self.kind == "row and":  # exchanged with its neighbour
            return total[:, :, np.arange(total.shape[2]) ^ int(n)]
        if self.kind == "both rows":
            return total + total[:, :, np.arange(total.shape[2]) ^ int(n)]
        if self.kind == "sink of heads":  # n: for each head whose, and a factor of its logit
            assert sinks is not None
            return total + np.exp(n[1][:, None] * sinks[:, n[0].astype(int)] - top)
        if self.kind == "head":
            return np.roll(total, int(n), 1)
        if self.kind == "row and own":
            return total + np.roll(total, int(n), 2)
        raise AssertionError(self.kind)


#: numbers that a row has, which a factor of its sum may be a power of
OF_ROW = ("the row's maximum", "the row's lse", "the largest lse of a tile", "the lse of the last tile")


def of_row(name: str, scores: np.ndarray, total: np.ndarray, edges: tuple[int, ...]) -> np.ndarray:
    """One of OF_ROW, [b, h, q]; `total`: sums of e^(s - maximum)."""
    top = scores.max(-1)
    if name == OF_ROW[0]:
        return top
    if name == OF_ROW[1]:
        return np.asarray(top + np.log(total))
    most, sums = by_tile(scores, edges)
    lse = most + np.log(sums)
    return np.asarray(lse.max(-1) if name == OF_ROW[2] else lse[..., -1])
