"""Online softmax as a loop over tiles of keys goes, with one of its steps as a wrong kernel has it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from workbench.readings.parts import Parts, divided, finite

#: what a loop may do with the correction e^(old maximum - new maximum), in words
CORRECTIONS = {
    "right": "is right",
    "none": "is left out",
    "inverted": "is inverted",
    "log2 e": "is raised to log2(e), of a base 2 in place of e",
    "ln 2": "is raised to ln 2, of base e in place of 2",
    "not last": "is left out in the last step",
    "not first": "is left out in the first step that has one",
    "before": "is that of the step before",
    "behind": "is that of the next step",
    "bfloat16": "is rounded to bfloat16",
    "float16": "is rounded to float16",
    "row ^ 1": "is that of row i ^ 1",
    "row ^ 8": "is that of row i ^ 8",
    "row ^ 16": "is that of row i ^ 16",
    "first of 16": "is that of the first row of 16",
}
#: what P may be below, in words
BASES = {
    "new": "the running maximum",
    "before": "the maximum before the tile (0 in the first)",
    "tile": "the tile's own maximum",
    "late": "the maximum before the tile (0 in the first) in the second half of each tile",
}
_POWERS = {"right": 1.0, "none": 0.0, "inverted": -1.0, "log2 e": 1 / np.log(2), "ln 2": np.log(2)}
_DTYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


@dataclass(frozen=True)
class Loop:
    """A loop over tiles of keys."""

    size: int  #: keys of a tile
    backward: bool = False  #: from the last tile to the first
    falls: bool = False  #: the maximum is that of the tile alone, and corrections are 1 at most
    base: str = "new"  #: what P is below: a key of BASES
    acc: str = "right"  #: the correction of the accumulator: a key of CORRECTIONS
    total: str = "right"  #: that of the row sum
    groups: int = 1  #: loops, of every n-th tile each, whose sums and accumulators are added as they are

    def __call__(self, of: Parts) -> tuple[np.ndarray, np.ndarray]:
        """out and lse."""
        with np.errstate(all="ignore"):
            weights, total, top = self.weights(of)
            return divided(weights @ of.values, total), top + np.log(total)

    def weights(self, of: Parts) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What values are multiplied by before they are divided [b, h, q, k], the sum and the maximum [b, h, q]."""
        keys = of.scores.shape[-1]
        edges = list(range(0, keys, self.size))
        top = np.maximum.reduceat(of.scores, edges, axis=-1)
        of_acc, of_total, late = np.zeros_like(top), np.zeros_like(top), np.zeros_like(top)
        last = np.full(of.scores.shape[:-1], -np.inf)
        for group in range(min(self.groups, len(edges))):
            tiles = slice(group, None, self.groups)
            mine = top[..., tiles][..., ::-1] if self.backward else top[..., tiles]
            new = mine if self.falls else np.maximum.accumulate(mine, -1)
            before = np.concatenate([np.full_like(new[..., :1], -np.inf), new[..., :-1]], -1)
            alpha = np.where(np.isfinite(before), before - finite(new), 0.0)
            if self.falls:
                alpha = np.minimum(alpha, 0.0)
            below = finite({"before": before, "tile": mine}.get(self.base, new))
            acc = _behind(corrected(alpha, self.acc))
            total = acc if self.total == self.acc else _behind(corrected(alpha, self.total))
            found = acc - below, total - below, finite(before) - below
            for whole, part in zip((of_acc, of_total, late), found, strict=True):
                whole[..., tiles] = part[..., ::-1] if self.backward else part
            last = np.maximum(last, new[..., -1])
        last = finite(last)
        sizes = np.diff([*edges, keys])
        shifted = of.scores
        if self.base == "late":
            second = np.arange(keys) % self.size >= self.size // 2
            shifted = shifted - np.where(second, np.repeat(late, sizes, -1), 0.0)
        in_acc = np.exp(shifted + np.repeat(of_acc, sizes, -1))
        in_total = in_acc if self.acc == self.total else np.exp(shifted + np.repeat(of_total, sizes, -1))
        summed = in_total.sum(-1)
        if of.sinks is not None:
            summed = summed + np.exp(of.sinks - last)
        return in_acc, summed, last

    @property
    def words(self) -> str:
        """What is wrong in it."""
        said = []
        if self.falls:
            said.append("the maximum is that of each tile alone, and corrections are at most 1")
        if self.base != "new":
            said.append(f"P is below {BASES[self.base]}")
        if self.acc == self.total != "right":
            said.append(f"the correction of accumulator and sum {CORRECTIONS[self.acc]}")
        else:
            for name, what in ((self.acc, "accumulator"), (self.total, "row sum")):
                if name != "right":
                    said.append(f"the correction of the {what} {CORRECTIONS[name]}")
        if self.groups > 1:
            said.append(
                f"{self.groups} loops, of every {self.groups}th tile each, are added up without their maxima"
            )
        order = ", the last first" if self.backward else ""
        return " and ".join(said) + f"; tiles of {self.size} keys{order}"


def corrected(alpha: np.ndarray, name: str) -> np.ndarray:
    """The logarithm of what a loop multiplies by, [.., tile], of that which is right."""
    if name in _POWERS:
        return alpha * _POWERS[name]
    if name in _DTYPES:
        return np.log(np.exp(alpha).astype(_DTYPES[name]).astype(np.float64))
    found = alpha.copy()
    if name == "not last":
        found[..., -1] = 0.0
    elif name == "not first":
        found[..., 1:2] = 0.0
    elif name == "before":
        found[..., 1:] = alpha[..., :-1]
    elif name == "behind":
        found[..., :-1] = alpha[..., 1:]
        found[..., -1] = 0.0
    else:
        rows = np.arange(alpha.shape[2])
        other = rows // 16 * 16 if name == "first of 16" else rows ^ int(name.split("^")[1])
        found = alpha[:, :, np.where(other < len(rows), other, rows)]
    return found


def _behind(x: np.ndarray) -> np.ndarray:
    """The sum over the steps behind each."""
    return np.cumsum(x[..., ::-1], -1)[..., ::-1] - x


def loops(sizes: Sequence[int], keys: int) -> Iterator[Loop]:
    """Loops with one wrong step each, the simplest first."""
    wrong = [name for name in CORRECTIONS if name != "right"]
    for size in sizes:
        for backward in (False, True):
            yield Loop(size, backward, falls=True)
            for base in ("before", "late", "tile"):
                yield Loop(size, backward, base=base)
            for name in wrong:
                yield Loop(size, backward, acc=name)
                yield Loop(size, backward, total=name)
                yield Loop(size, backward, acc=name, total=name)
        for groups in (2, 4):
            if groups * size <= keys:
                yield Loop(size, groups=groups)
