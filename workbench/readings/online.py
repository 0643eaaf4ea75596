"""Online softmax as a loop over tiles of keys goes, with one of its steps as a wrong kernel has it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from workbench.readings.parts import Parts, divided, finite, partials

#: what a loop may do with the correction e^(old maximum - new maximum), in words
CORRECTIONS = {
    "right": "is right",
    "none": "is left out",
    "inverted": "is inverted",
    "log2 e": "is raised to the power log2(e), as if by exp in place of exp2",
    "ln 2": "is raised to the power ln 2, as if by exp2 in place of exp",
    "not last": "is left out in the last step",
    "not first": "is left out in its first step",
    "before": "is that of the previous step",
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
    "last none": "the running maximum, except in the last tile, which subtracts none",
    "first none": "the running maximum, except in the first tile, which subtracts none",
    "halves": "the larger of the maximum before the tile and that of its own half of the tile",
    "late": "the maximum before the tile (0 in the first), in the second half of each tile",
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
    second: bool = False  #: P @ V is of a second pass, which takes each tile's own maximum
    acc: str = "right"  #: the correction of the accumulator: a key of CORRECTIONS
    total: str = "right"  #: that of the row sum
    beside: int = 0  #: sums of tiles are those of rows i and i ^ n together
    groups: int = 1  #: loops, of every n-th tile each, whose sums and accumulators are added as they are

    def __call__(self, of: Parts) -> tuple[np.ndarray, np.ndarray]:
        """out and lse."""
        half = self.size // 2 if self.base in ("late", "halves") else self.size
        top, sums, accs = partials(of, half)
        with np.errstate(all="ignore"):
            in_acc, in_total, last = self.logs(top)
            acc = (np.exp(top + in_acc)[..., None, :] @ accs)[..., 0, :]
            total = (np.exp(top + in_total) * sums).sum(-1)
            if self.beside:
                new = finite(self._state(top)[0])
                rows = np.arange(top.shape[2])
                other = np.where((rows ^ self.beside) < len(rows), rows ^ self.beside, rows)
                of_others = np.where(other != rows, 1.0, 0.0)[:, None] * (np.exp(top - new) * sums)[:, :, other]
                total = total + (of_others * np.exp(in_total + new)).sum(-1)
            if of.sinks is not None:
                total = total + np.exp(of.sinks - last)
            return divided(acc, total), last + np.log(total)

    def logs(self, top: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The logarithm of what e^score of each tile is multiplied by, in the accumulator and in the sum [b, h, q,
        tile], and the last maximum [b, h, q]; of the maxima of tiles (of their halves, where those are two).
        """
        if self.base in ("late", "halves"):
            pairs = np.pad(top, [(0, 0)] * 3 + [(0, top.shape[-1] % 2)], constant_values=-np.inf)
            pairs = pairs.reshape(*top.shape[:3], -1, 2)
            acc, total, last = Loop(self.size, self.backward, acc=self.acc, total=self.total).logs(pairs.max(-1))
            state = self._state(pairs.max(-1))
            new, before = (np.stack([x, x], -1).reshape(*x.shape[:3], -1)[..., : top.shape[-1]] for x in state)
            if self.base == "halves":
                below = np.maximum(before, top)
            else:
                below = np.where(np.arange(top.shape[-1]) % 2, before, new)
            shift = finite(new) - finite(below)
            whole = [np.repeat(x, 2, -1)[..., : top.shape[-1]] + shift for x in (acc, total)]
            return whole[0], whole[1], last
        of_acc, of_total = np.zeros_like(top), np.zeros_like(top)
        last = np.full(top.shape[:-1], -np.inf)
        for group in range(min(self.groups, top.shape[-1])):
            tiles = slice(group, None, self.groups)
            new, before, alpha = self._in_order(top[..., tiles])
            mine = top[..., tiles][..., ::-1] if self.backward else top[..., tiles]
            below = self._below(new, before, mine)
            acc = behind(corrected(alpha, self.acc)) - below
            total = acc if self.total == self.acc else behind(corrected(alpha, self.total)) - below
            if self.second:
                acc = -finite(mine)
            of_acc[..., tiles] = acc[..., ::-1] if self.backward else acc
            of_total[..., tiles] = total[..., ::-1] if self.backward else total
            last = np.maximum(last, new[..., -1])
        return of_acc, of_total, finite(last)

    def _in_order(self, top: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The maximum of each step, the one before it and ln of the correction, in the order of the loop."""
        mine = top[..., ::-1] if self.backward else top
        new = mine if self.falls else np.maximum.accumulate(mine, -1)
        before = np.concatenate([np.full_like(new[..., :1], -np.inf), new[..., :-1]], -1)
        alpha = np.where(np.isfinite(before), before - finite(new), 0.0)
        return new, before, np.minimum(alpha, 0.0) if self.falls else alpha

    def _state(self, top: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The maximum of each tile's step and the one before it, in the order of the tiles."""
        new, before, _ = self._in_order(top)
        return (new[..., ::-1], before[..., ::-1]) if self.backward else (new, before)

    def _below(self, new: np.ndarray, before: np.ndarray, mine: np.ndarray) -> np.ndarray:
        if self.base in ("last none", "first none"):
            found = finite(new).copy()
            found[..., -1 if self.base == "last none" else 0] = 0.0
            return found
        return finite({"before": before, "tile": mine}.get(self.base, new))

    @property
    def words(self) -> str:
        """What is wrong in it."""
        said = []
        if self.falls:
            said.append("the current tile's maximum replaces the running maximum, with corrections of at most 1")
        if self.second:
            said.append("P @ V comes from a second pass, in which P subtracts each tile's own maximum")
        if self.base != "new":
            said.append(f"P subtracts {BASES[self.base]}")
        if self.acc == self.total != "right":
            said.append(f"the correction of accumulator and row sum {CORRECTIONS[self.acc]}")
        else:
            for name, what in ((self.acc, "accumulator"), (self.total, "row sum")):
                if name != "right":
                    said.append(f"the correction of the {what} {CORRECTIONS[name]}")
        if self.beside:
            said.append(f"the row sum of each tile includes that of row i ^ {self.beside}")
        if self.groups > 1:
            every = {2: "second", 4: "fourth"}.get(self.groups, f"{self.groups}th")
            said.append(
                f"{self.groups} loops, each over every {every} tile, are added without rescaling to one maximum"
            )
        order = ", last first" if self.backward else ""
        return " and ".join(said) + f" (tiles of {self.size} keys{order})"


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


def behind(x: np.ndarray) -> np.ndarray:
    """The sum over the steps behind each."""
    return np.cumsum(x[..., ::-1], -1)[..., ::-1] - x


def loops(size: int, backward: bool, keys: int) -> Iterator[Loop]:
    """Loops with one wrong step each but for corrections."""
    yield Loop(size, backward, falls=True)
    for base in ("before", "late", "halves", "tile", "last none", "first none"):
        if base not in ("late", "halves") or size % 2 == 0:
            yield Loop(size, backward, base=base)
    for beside in (1, 8):
        yield Loop(size, backward, beside=beside)
    if not backward:
        yield Loop(size, second=True)
        for groups in (2, 4):
            if groups * size <= keys:
                yield Loop(size, groups=groups)


def nearest(of: Parts, sizes: Sequence[int], left: Callable[[np.ndarray], float], most: int) -> list[Loop]:
    """Of all loops with one wrong step those that leave least of the error, `left` of out, the simplest first."""
    found: list[tuple[float, Loop]] = []
    wrong = [name for name in CORRECTIONS if name != "right"]
    keys = of.scores.shape[-1]
    with np.errstate(all="ignore"):
        for size, backward in ((size, way) for size in sizes for way in (False, True)):
            found += [(left(one(of)[0]), one) for one in loops(size, backward, keys)]
            # corrections of a loop share all but a sum over its tiles
            top, sums, accs = partials(of, size)
            right = Loop(size, backward)
            new, _, alpha = right._in_order(top)
            flip = (lambda x: x[..., ::-1]) if backward else (lambda x: x)
            factors = [np.exp(top + flip(behind(corrected(alpha, name)) - finite(new))) for name in CORRECTIONS]
            more = 0.0 if of.sinks is None else np.exp(of.sinks - finite(new[..., -1]))
            out = dict(zip(CORRECTIONS, np.moveaxis(np.stack(factors, -2) @ accs, -2, 0), strict=True))
            total = {name: (x * sums).sum(-1) + more for name, x in zip(CORRECTIONS, factors, strict=True)}
            for name in wrong:
                for acc, den in ((name, "right"), ("right", name), (name, name)):
                    one = Loop(size, backward, acc=acc, total=den)
                    found.append((left(divided(out[acc], total[den])), one))
    order = np.argsort([x for x, _ in found], kind="stable")[:most]
    return [found[i][1] for i in sorted(order)]
