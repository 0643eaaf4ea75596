"""A part of an array that tells the wrong elements from the right ones, as well as labels or numbers can.

What it costs is counted in bits, of a code in which a receiver who knows the array's shape is told which elements are
wrong: the part first, then how many and which ones are wrong inside and outside (a two-part code: Grünwald 2007, The
Minimum Description Length Principle, chapter 5).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import log2
from typing import Any, NamedTuple, Protocol

import numpy as np

from workbench.floats import largest

Words = Callable[[np.ndarray, np.ndarray], str]

#: share of what is wrong that a rule holds, at least
RECALL = 0.95
#: bits of a threshold beyond its place among the numbers: its three digits
THRESHOLD = 10.0
#: numbers at which hardware and formats change what they do
_NAMED = {
    2.0**-14: "2^-14, the smallest normal float16",
    2.0**-126: "2^-126, the smallest normal float32",
    2.0**-6: "2^-6, the smallest normal float8 e4m3",
} | {largest(dtype): f"{largest(dtype):g}, the largest {words}" for dtype, words in
     (("float16", "float16"), ("float8_e4m3fn", "float8 e4m3"), ("float8_e5m2", "float8 e5m2"))}  # fmt: skip


class Count(NamedTuple):
    """Elements that are wrong, and that could be."""

    wrong: float
    could: float


class Split(NamedTuple):
    """A part that a feature chose."""

    bits: float  #: of naming the part
    code: float  #: of which elements are wrong, given the part
    part: Any


class Feature(Protocol):
    """Something that splits arrays in two."""

    def splits(self, wrong: np.ndarray, could: np.ndarray, rest: Count) -> list[Split]:
        """The part that tells what is wrong best, and of those that hold nearly all of it (RECALL), or all, the best;
        `rest` is what lies outside the arrays, and outside the part.
        """

    def inside(self, part: Any) -> np.ndarray:
        """Which elements are in a part, bool that broadcasts to the array."""

    def words(self, part: Any, could: np.ndarray) -> str:
        """A part in words; "" where it has none."""


@dataclass(frozen=True, eq=False)
class Labels:
    """A label for each index of one or two axes: the index itself, its residue, its tile, its lane."""

    over: tuple[int, ...]  #: which axes of the array
    ndim: int
    labels: np.ndarray  #: int, an axis for each of `over`
    size: int  #: labels are 0 to size - 1
    say: Words  #: of labels, and of how many elements of each label could be wrong

    def splits(self, wrong: np.ndarray, could: np.ndarray, rest: Count) -> list[Split]:
        """Of two classes the best split by labels is one of them sorted by how often they are wrong (Breiman et al.
        1984, Classification and Regression Trees, theorem 4.5).
        """
        w, n = self._counts(wrong), self._counts(could)
        live = np.flatnonzero(n)
        if len(live) < 2 or not w.any():
            return []
        order = np.argsort(-w[live] / n[live], kind="stable")
        inside_w, inside_n = np.cumsum(w[live][order])[:-1], np.cumsum(n[live][order])[:-1]
        code = coded(inside_w, inside_n) + coded(w.sum() - inside_w + rest.wrong, n.sum() - inside_n + rest.could)
        j = np.arange(1, len(live))
        first, last = np.minimum.accumulate(order)[:-1], np.maximum.accumulate(order)[:-1]
        some = choices(len(live), j) + log2(len(live))
        bits = np.where(last - first + 1 == j, np.minimum(some, 2 * log2(len(live))), some) + 1
        best = _best(bits + code, inside_w / w.sum())
        return [Split(float(bits[i]), float(code[i]), np.sort(live[order[: i + 1]])) for i in best]

    def _counts(self, mask: np.ndarray) -> np.ndarray:
        others = tuple(i for i in range(self.ndim) if i not in self.over)
        along = mask.sum(axis=others)
        return np.bincount(self.labels.ravel(), weights=along.ravel(), minlength=self.size)

    def inside(self, part: np.ndarray) -> np.ndarray:
        chosen = np.zeros(self.size, bool)
        chosen[part] = True
        sizes = dict(zip(self.over, self.labels.shape, strict=True))
        return chosen[self.labels].reshape([sizes.get(i, 1) for i in range(self.ndim)])

    def words(self, part: np.ndarray, could: np.ndarray) -> str:
        return self.say(part, self._counts(could))


class Threshold(NamedTuple):
    """Values above a number, or at or below it."""

    above: bool
    low: float  #: the number lies from here on,
    high: float  #: and below this
    alone: bool  #: whether the part holds but one number, `high` where it is above, else `low`


@dataclass(frozen=True, eq=False)
class Values:
    """A number for each element, or one for some of them: an operand, the expectation."""

    name: str
    value: np.ndarray  #: broadcasts against the array

    def splits(self, wrong: np.ndarray, could: np.ndarray, rest: Count) -> list[Split]:
        """At the threshold that tells best. A number that many elements share is one observation: it is wrong where
        most of them are, and has to tell that of the others.
        """
        shared = tuple(i for i, size in enumerate(self.value.shape) if size < wrong.shape[i])
        w, n = (mask.sum(axis=shared, keepdims=True) if shared else mask for mask in (wrong, could))
        known = (n > 0) & ~np.isnan(self.value)
        value, hit = self.value[known], w[known] * 2 > n[known]
        order = np.argsort(value, kind="stable")
        value, hit = value[order], hit[order]
        ends = np.flatnonzero(value[1:] > value[:-1])  # last of each number but the largest
        below, total, size = np.cumsum(hit)[ends], hit.sum(), len(hit)
        if not len(ends) or not 0 < total < size:
            return []
        code, bits = coded(below, ends + 1.0) + coded(total - below, size - ends - 1.0), THRESHOLD + log2(len(ends))
        above = below / (ends + 1) < (total - below) / (size - ends - 1)
        enough = code + bits <= coded(total, size) / 2
        best = _best(np.where(enough, code, np.inf), np.where(above, total - below, below) / total)
        found = []
        for i in (i for i in best if enough[i]):
            alone = i == len(ends) - 1 if above[i] else i == 0
            part = Threshold(bool(above[i]), float(value[ends[i]]), float(value[ends[i] + 1]), bool(alone))
            inside = np.broadcast_to(self.inside(part), wrong.shape)
            count, all_ = Count((wrong & inside).sum(), (could & inside).sum()), Count(wrong.sum(), could.sum())
            left = coded(all_.wrong - count.wrong + rest.wrong, all_.could - count.could + rest.could)
            found.append(Split(bits, float(coded(*count) + left), part))
        return found

    def inside(self, part: Threshold) -> np.ndarray:
        return (self.value > part.low) if part.above else (self.value <= part.low)

    def words(self, part: Threshold, could: np.ndarray) -> str:
        if part.alone:
            return f"{self.name} == {part.high if part.above else part.low:g}"
        if part.low == -np.inf or part.high == np.inf:
            return f"{self.name} is finite"
        return f"{self.name} {'>' if part.above else '<='} {between(part.low, part.high)}"


def _best(cost: np.ndarray, recall: np.ndarray) -> list[int]:
    """The cheapest of several parts, of those that hold nearly all that is wrong, and of those that hold all of it."""
    kinds = (recall >= least for least in (0.0, RECALL, 1.0))
    return sorted({int(np.argmin(np.where(kind, cost, np.inf))) for kind in kinds if kind.any()})


def between(low: float, high: float) -> str:
    """A number from `low` on and below `high`: one that has a name, where there is little room; else the one with the
    fewest digits.
    """
    for number, words in _NAMED.items():
        if low <= number < high <= 4 * low:
            return words
    if low <= 0 < high:
        return "0"
    middle = (low + high) / 2
    for digits in range(1, 17):
        if low <= float(f"{middle:.{digits}g}") < high:
            return f"{middle:.{digits}g}"
    return repr(low)


def coded(wrong: Any, could: Any) -> Any:
    """Bits that tell which of so many elements are wrong: how many, then which ones."""
    return np.log2(could + 1.0) + choices(could, wrong)


def choices(n: Any, k: Any) -> Any:
    """Bits that tell which k of n: n times the entropy of k / n, at least the logarithm of in how many ways."""
    return _bits(n) - _bits(k) - _bits(n - k)


def _bits(x: Any) -> Any:
    return x * np.log2(np.maximum(x, 1.0))
