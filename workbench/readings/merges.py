"""Merges of split-K, rings and chains of states, with one step as a wrong kernel has it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from workbench.readings.known import others
from workbench.readings.parts import Parts, divided, finite, partials

#: what a merge may do with the lse and out of splits, in words
MERGES = {
    "lse moved first": "the merge chain updates lse before it uses the previous one",
    "lse not carried": "after each step the merge chain keeps only the lse of the latest split",
    "larger lse": "merging two states keeps the larger lse, not their logaddexp",
    "mean of lse": "merging two states takes the mean of both lse, not their logaddexp",
    "larger lse of two by two": "merging pairs of states (as a tree) keeps the larger lse, not their logaddexp",
    "largest lse": "splits are weighted by e^(lse - largest lse), not divided by the sum of these weights",
    "equal": "all splits get the same weight, whatever their lse",
    "base 2 as e": "the merge takes the splits' base-2 lse as base e",
    "base e as 2": "the merge takes the splits' base-e lse as base 2",
    "weights of sums": "splits are weighted by their sums, ignoring their maxima",
    "weights of maxima": "splits are weighted by e^maximum, ignoring their sums",
    "maximum times scale": "the merge sums e^(lse - scale * maximum), not e^(lse - maximum)",
    "maximum times ln 2": "the merge sums e^(lse - ln 2 * maximum), not e^(lse - maximum)",
    "maximum times log2 e": "the merge sums e^(lse - log2(e) * maximum), not e^(lse - maximum)",
    "maximum left out": "the merge sums e^lse, not e^(lse - maximum), but adds the maximum to its log",
}  # fmt: skip


@dataclass(frozen=True)
class Merge:
    """A merge of splits of `size` keys, each with its normalised out and lse."""

    size: int
    kind: str  #: a key of MERGES

    def __call__(self, of: Parts) -> tuple[np.ndarray, np.ndarray]:
        """out and lse."""
        top, total, acc = partials(of, self.size)
        with np.errstate(all="ignore"):
            own = np.where(total > 0, top + np.log(total), -np.inf)
            share, lse = self.shares(own, top, total, of.scale)
            factor = np.where(total > 0, share / np.where(total > 0, total, 1.0), 0.0)
            return (factor[..., None, :] @ acc)[..., 0, :], lse

    def shares(
        self, own: np.ndarray, top: np.ndarray, total: np.ndarray, scale: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """What each split's out is multiplied by [b, h, q, split], and lse."""
        right = np.logaddexp.reduce(own, -1)
        if self.kind in ("lse moved first", "lse not carried", "larger lse", "mean of lse"):
            return self._chain(own)
        if self.kind == "larger lse of two by two":
            return _tree(own)
        if self.kind == "largest lse":
            return np.exp(own - own.max(-1, keepdims=True)), right
        if self.kind == "equal":
            return np.isfinite(own) / np.isfinite(own).sum(-1, keepdims=True), right
        if self.kind in ("base 2 as e", "base e as 2"):
            taken = own / np.log(2) if self.kind == "base 2 as e" else own * np.log(2)
            lse = np.logaddexp.reduce(taken, -1)
            return np.exp(taken - lse[..., None]), lse if self.kind == "base 2 as e" else lse / np.log(2)
        if self.kind == "weights of sums":
            return total / total.sum(-1, keepdims=True), right
        if self.kind == "weights of maxima":
            share = np.exp(top - top.max(-1, keepdims=True))
            return share / share.sum(-1, keepdims=True), right
        most = own.max(-1)
        factors = {"maximum times scale": scale, "maximum times ln 2": np.log(2), "maximum times log2 e": 1 / np.log(2)}
        factor = factors.get(self.kind, 0.0)
        lse = right - factor * most + most
        return np.exp(own - lse[..., None]), lse

    def lse_of_weights(self, of: Parts) -> np.ndarray:
        """The largest lse of a split as it is, and the logarithm of the sum of the weights, [b, h, q]: what a merge
        that takes lse in another base writes.
        """
        top, total, _ = partials(of, self.size)
        with np.errstate(all="ignore"):
            own = np.where(total > 0, top + np.log(total), -np.inf)
            taken = own * {"base 2 as e": 1 / np.log(2), "base e as 2": np.log(2)}.get(self.kind, 1.0)
            return np.asarray(own.max(-1) + np.log(np.exp(taken - finite(taken.max(-1))[..., None]).sum(-1)))

    def _chain(self, own: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        lse = own[..., 0]
        share = np.zeros_like(own)
        share[..., 0] = np.isfinite(lse)
        for n in range(1, own.shape[-1]):
            new = own[..., n]
            both = np.logaddexp(lse, new)
            if self.kind == "lse moved first":
                part = np.exp(new - np.logaddexp(both, new))
                kept = 1 - part
            else:
                part, kept = np.exp(new - both), np.exp(lse - both)
            part, kept = np.nan_to_num(part), np.where(np.isfinite(both), kept, 0.0)
            share[..., :n] *= kept[..., None]
            share[..., n] = part
            lse = {
                "lse moved first": both,
                "lse not carried": new,
                "larger lse": np.maximum(lse, new),
                "mean of lse": (lse + new) / 2,
            }[self.kind]
        return share, lse

    @property
    def words(self) -> str:
        """What is wrong in it."""
        return f"{MERGES[self.kind]} (splits of {self.size} keys)"


def _tree(own: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of a merge two by two, whose lse is the larger of both."""
    share = np.isfinite(own).astype(float)
    level = [(np.array([n]), own[..., n]) for n in range(own.shape[-1])]
    while len(level) > 1:
        following = []
        for a, b in zip(level[::2], level[1::2], strict=False):
            both = np.logaddexp(a[1], b[1])
            for at, lse in (a, b):
                share[..., at] *= np.nan_to_num(np.exp(lse - both))[..., None]
            following.append((np.concatenate([a[0], b[0]]), np.maximum(a[1], b[1])))
        level = following + (level[-1:] if len(level) % 2 else [])
    return share, level[0][1]


@dataclass(frozen=True)
class MergeOfOthers:
    """A merge of splits that takes a number of each split from another place."""

    size: int
    what: str  #: maxima, sums or lse
    where: str  #: a key of `known.others`

    def __call__(self, of: Parts) -> tuple[np.ndarray, np.ndarray]:
        """out and lse."""
        top, total, acc = partials(of, self.size)
        with np.errstate(all="ignore"):
            own = {"maxima": top, "sums": total}.get(self.what)
            own = np.where(total > 0, top + np.log(total), -np.inf) if own is None else own
            return self.merged(dict(others(own))[self.where], top, total, acc)

    def merged(
        self, taken: np.ndarray, top: np.ndarray, total: np.ndarray, acc: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """out and lse of what is taken and of numbers of splits [b, h, q, split]."""
        if self.what in ("maxima", "sums"):
            top, total = (taken, total) if self.what == "maxima" else (top, taken)
            most = finite(top.max(-1))
            weight = np.exp(top - most[..., None])
            summed = (weight * total).sum(-1)
            return divided((weight[..., None, :] @ acc)[..., 0, :], summed), most + np.log(summed)
        most = finite(taken.max(-1))
        weight = np.exp(taken - most[..., None])
        summed = weight.sum(-1)
        weight = np.where(total > 0, weight / np.where(total > 0, total, 1.0), 0.0)
        return divided((weight[..., None, :] @ acc)[..., 0, :], summed), most + np.log(summed)

    @property
    def words(self) -> str:
        """What is wrong in it."""
        return (
            f"the merge takes the {self.what} of splits from the wrong place: {self.where} (splits of {self.size} keys)"
        )


def merges(sizes: Sequence[int]) -> Iterator[Merge]:
    """Merges with one wrong step each."""
    for size in sizes:
        for kind in MERGES:
            yield Merge(size, kind)


def nearest_of_others(
    of: Parts, at: tuple[np.ndarray, ...], sizes: Sequence[int], left: Callable[[np.ndarray], float], most: int
) -> list[MergeOfOthers]:
    """Merges that take numbers of another place, those that leave least of the error of rows `at`."""
    found: list[tuple[float, MergeOfOthers]] = []
    with np.errstate(all="ignore"):
        for size in sizes:
            top, total, acc = partials(of, size)
            lse = np.where(total > 0, top + np.log(total), -np.inf)
            for what, x in (("lse", lse), ("maxima", top), ("sums", total)):
                for where, taken in others(x):
                    one = MergeOfOthers(size, what, where)
                    out, _ = one.merged(taken[at], top[at], total[at], acc[at])
                    found.append((left(out), one))
    order = np.argsort([x for x, _ in found], kind="stable")[:most]
    return [found[i][1] for i in sorted(order)]
