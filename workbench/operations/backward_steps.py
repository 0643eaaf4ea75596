"""Steps of the backward pass of attention that are no contraction and no function of elements."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.reference.arithmetic import Arithmetic
from workbench.reference.bound import EXACT, Bound
from workbench.reference.stage import Bounded, Ref


@dataclass(frozen=True)
class OfGroups:
    """What each query head reads of its kv head, [b, h, k, d]."""

    of: Ref
    group: int  #: query heads of a kv head

    def value(self, at: Any) -> np.ndarray:
        return np.repeat(at(self.of), self.group, axis=1)

    words = "repeat_kv({of})"


@dataclass(frozen=True)
class Widened:
    """An input with all its elements, of which some axes have a length of 1."""

    of: Ref
    shape: tuple[int, ...]

    def value(self, at: Any) -> np.ndarray:
        return np.broadcast_to(at(self.of), self.shape)

    words = "broadcast({of})"


@dataclass(frozen=True)
class AddedUp:
    """A gradient summed over what reads one and the same number: axes in groups, or of which the number has one."""

    of: Ref
    split: tuple[int, ...]  #: the shape of what is read, with the axes that are summed apart from others
    axes: tuple[int, ...]  #: that are summed, of `split`
    shape: tuple[int, ...]  #: of the sum
    said: str  #: over what

    def value(self, at: Any) -> np.ndarray:
        return self._added(at(self.of))

    def _added(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(x.reshape(self.split).sum(self.axes)).reshape(self.shape)

    def bound(self, at: Any) -> Bounded:
        """A sum of so many numbers, none of which is exact where nobody saw them."""
        x, error = at(self.of), at.error(self.of)
        size = self._added(abs(x))
        arithmetic, n = at.arithmetic(""), int(np.prod([self.split[axis] for axis in self.axes], dtype=int)) - 1
        own = [arithmetic.sum(n) * size, arithmetic.unit * np.sqrt(n) * size, 0.0 * size]
        if error is not EXACT:
            worst, random, common = (0.0 * abs(x) + part for part in error)
            own = [own[0] + self._added(worst), np.sqrt(own[1] ** 2 + self._added(random**2)), self._added(common)]
        return Bounded(Bound(*own))

    @property
    def words(self) -> str:
        return f"sum over {self.said} of {{of}}" if self.said else "{of}"


def of_groups(name: str, shape: tuple[int, ...], group: int) -> AddedUp:
    """The gradient of a kv head: those of its query heads [b, h, k, d] added up."""
    b, heads, *rest = shape
    split = (b, heads // group, group, *rest)
    return AddedUp(name, split, (2,), (b, heads // group, *rest), "the query heads of each group")


def where_one(name: str, shape: tuple[int, ...], wanted: tuple[int, ...], axes: str) -> AddedUp:
    """The gradient of an input of the shape `wanted`, which broadcasts to `shape`: the sum over its axes of 1."""
    some = tuple(axis for axis, (n, m) in enumerate(zip(shape, wanted, strict=True)) if m == 1 < n)
    return AddedUp(name, shape, some, wanted, ", ".join(axes[axis] for axis in some))


def added_to_first(whole: np.ndarray, part: Any) -> np.ndarray:
    """`whole`, with `part` added to the first of its last axis."""
    made = whole + 0.0
    made[..., : np.shape(part)[-1]] += part
    return made


@dataclass(frozen=True)
class Joined:
    """The gradient of memory that is read twice: of all dims, and of the first alone."""

    whole: Ref
    first: Ref

    def value(self, at: Any) -> np.ndarray:
        return added_to_first(at(self.whole), at(self.first))

    def bound(self, at: Any) -> Bounded:
        """The errors of both, and a rounding of the sum."""
        whole, first = at(self.whole), at(self.first)
        pairs = zip(at.error(self.whole), at.error(self.first), strict=True)
        (w, v), (rw, rv), (cw, cv) = ((0.0 * abs(whole) + a, 0.0 * abs(first) + b) for a, b in pairs)
        own = at.arithmetic("").sum(1) * added_to_first(abs(whole), abs(first))
        random = np.sqrt(added_to_first(rw**2, rv**2) + own**2)
        return Bounded(Bound(added_to_first(w, v) + own, random, added_to_first(cw, cv)))

    words = "{whole}, with {first} added to the first dims"


@dataclass(frozen=True)
class StoredBetween:
    """A sum that is kept in 16 bits while it grows: rounded after each of its blocks."""

    of: Ref
    dtype: str
    blocks: int
    group: int = 1  #: query heads whose sums one accumulator takes, one after the other
    least_factor: float = 1.0  #: as of CastTo

    def value(self, at: Any) -> np.ndarray:
        return np.asarray(at(self.of))

    def bound(self, at: Any) -> Bounded:
        """A rounding a block, of a partial sum that is at most what the sizes of all terms add up to, of all heads that
        share it.
        """
        of = at.error(self.of)
        size = at.magnitude(self.of) + of.worst
        b, heads, *rest = size.shape
        size = np.repeat(size.reshape(b, -1, self.group, *rest).sum(2), self.group, axis=1)
        relative, absolute = Arithmetic(self.dtype, factor=self.least_factor).cast()
        each = relative * size + absolute
        random = np.sqrt(of.random**2 + self.blocks * each**2)
        return Bounded(Bound(of.worst + self.blocks * each, random, of.common + 0.0 * size))

    @property
    def words(self) -> str:
        return f"({{of}}, rounded to {self.dtype} after each of {self.blocks} blocks)"


#: error of a score_mod, and of its derivative, in ulps of what it makes, or reads: as of a contract of attention
MOD_ULPS = 4.0


@dataclass(frozen=True)
class Modified:
    """What a score_mod, or its derivative, makes of scores, [b, h, q, k]; 0 where it hides a key."""

    of: Ref
    function: Callable[[np.ndarray], np.ndarray]
    said: str
    also_read: bool  #: whether it loses ulps of what it reads, and not alone of what it makes there and of a score of 0

    def value(self, at: Any) -> np.ndarray:
        return self._finite(at(self.of))

    def _finite(self, x: np.ndarray) -> np.ndarray:
        made = self.function(x)
        return np.where(np.isfinite(made), made, 0.0)

    def bound(self, at: Any) -> Bounded:
        """As far as the function is off where its score is, at the ends of that interval and at their quarters, and
        MOD_ULPS: of a function that is monotone between these. A derivative may be a difference of numbers as large
        as it is elsewhere, such as 1 - tanh^2: as at a score of 0, and 1.
        """
        x, error, own = at(self.of), at.error(self.of), self.value(at)
        size = np.maximum(abs(own), abs(x) if self.also_read else np.maximum(abs(self._finite(0.0 * x)), 1.0))
        arithmetic = at.arithmetic("")
        worst = 2 * arithmetic.unit * MOD_ULPS * size + arithmetic.floor
        if error is not EXACT:
            off = 0.0 * x + error.worst
            worst = worst + np.max([abs(self._finite(x + part * off) - own) for part in (-1.0, -0.5, 0.5, 1.0)], axis=0)
        return Bounded(Bound(worst, 0.0 * worst, worst))

    @property
    def words(self) -> str:
        return f"{self.said}({{of}})"


@dataclass(frozen=True)
class OwnLse:
    """log(sum of e^score over the keys that are seen) of a row, with its sink: what a forward pass makes that nobody
    saw, of the same scores.
    """

    scores: Ref
    sinks: Ref  #: empty: there are none
    also: tuple[str, ...]  #: what `seen` reads
    seen: Callable[[Any], np.ndarray]  #: which keys queries see, of Context

    def _parts(self, at: Any) -> tuple[np.ndarray, np.ndarray]:
        """Its exponents, -inf where a key is hidden, and lse."""
        x = np.where(self.seen(at), at(self.scores), -np.inf)
        if self.sinks:
            of_rows = np.broadcast_to(at(self.sinks)[None, :, None, None], (*x.shape[:-1], 1))
            x = np.concatenate([x, of_rows], axis=-1)
        top = x.max(-1, keepdims=True)
        shifted = np.exp(x - np.where(np.isfinite(top), top, 0.0))
        return x, np.where(np.isfinite(top), top + np.log(shifted.sum(-1, keepdims=True)), -np.inf)[..., 0]

    def value(self, at: Any) -> np.ndarray:
        return self._parts(at)[1]

    def bound(self, at: Any) -> Bounded:
        """In float32: a sum of exps of 2 ulps each, of arguments down to -16, below which they weigh nothing; its
        logarithm, and a change of its base. Of scores that are off by e_k at most log(sum_k P_k exp(e_k)) (the other
        side is closer, by Jensen's inequality); to first order sum_k P_k e_k.
        """
        x, lse = self._parts(at)
        known = np.isfinite(lse)
        size = np.where(known, abs(lse), 0.0)
        own = at.arithmetic("").unit * (x.shape[-1] + 32 + 4 * size)
        error = at.error(self.scores)
        if error is EXACT:
            return Bounded(Bound(own, 0.0, own))
        keys = at(self.scores).shape[-1]
        weights = np.where(known[..., None], np.exp(x - np.where(known, lse, 0.0)[..., None]), 0.0)[..., :keys]
        rest = np.where(known, 1 - weights.sum(-1), 1.0)  # of the sink
        worst, random, common = (np.broadcast_to(part, weights.shape) for part in error)
        with np.errstate(over="ignore"):
            off = np.log(np.maximum(rest + (weights * np.exp(np.minimum(worst, 700.0))).sum(-1), 1.0))
        return Bounded(Bound(own + off, np.sqrt((weights**2 * random**2).sum(-1)), own + (weights * common).sum(-1)))

    words = "logsumexp of {scores} over keys"
