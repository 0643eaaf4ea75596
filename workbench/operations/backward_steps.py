"""Steps of the backward pass of attention that are no contraction and no function of elements."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.reference.stage import Ref


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
        return np.asarray(at(self.of).reshape(self.split).sum(self.axes)).reshape(self.shape)

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

    words = "{whole}, with {first} added to the first dims"


@dataclass(frozen=True)
class Modified:
    """What a score_mod, or its derivative, makes of scores, [b, h, q, k]; 0 where it hides a key."""

    of: Ref
    function: Callable[[np.ndarray], np.ndarray]
    said: str

    def value(self, at: Any) -> np.ndarray:
        made = self.function(at(self.of))
        return np.where(np.isfinite(made), made, 0.0)

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

    def value(self, at: Any) -> np.ndarray:
        x = np.where(self.seen(at), at(self.scores), -np.inf)
        if self.sinks:
            of_rows = np.broadcast_to(at(self.sinks)[None, :, None, None], (*x.shape[:-1], 1))
            x = np.concatenate([x, of_rows], axis=-1)
        top = x.max(-1, keepdims=True)
        shifted = np.exp(x - np.where(np.isfinite(top), top, 0.0))
        return np.where(np.isfinite(top), top + np.log(shifted.sum(-1, keepdims=True)), -np.inf)[..., 0]

    words = "logsumexp of {scores} over keys"
