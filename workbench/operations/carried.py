"""Errors of a state that is carried from turn to turn: bounds that add up, and what rows make of those before."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

#: share of its length at which a row that goes back through turns is left to norms
SHORT = 1e-3

Array = Any  #: [batch, heads, turns, rows, columns] where it is of all turns


class Errors(NamedTuple):
    """Bounds of errors that add up: the worst case, the square of what is random, and what is common."""

    worst: Array
    variance: Array
    common: Array

    def plus(self, other: "Errors", together: bool = False) -> "Errors":
        """Both; `together`: random parts may be the same roundings."""
        both = 2 * np.sqrt(self.variance * other.variance) if together else 0.0
        return Errors(self.worst + other.worst, self.variance + other.variance + both, self.common + other.common)

    def times(self, factor: Array) -> "Errors":
        """Of a factor of at least 0 times what is off."""
        return Errors(factor * self.worst, factor * factor * self.variance, factor * self.common)

    def at(self, index: Any) -> "Errors":
        """A part of it."""
        return Errors(*(x[index] for x in self))

    def lengths(self) -> "Errors":
        """Of the 2-norms of columns, as one row."""
        worst, common = (np.sqrt(np.sum(x * x, axis=-2, keepdims=True)) for x in self[::2])
        return Errors(worst, np.sum(self.variance, axis=-2, keepdims=True), common)


@dataclass(frozen=True)
class Rounded:
    """What all turns round in one stage, from the right state before each."""

    value: Array
    off: Errors
    size: Any  #: as of a `Budget`
    sources: int  #: nodes of the turn whose roundings are in it, a bit each
    together: bool  #: whether its rows share some

    def through(self, rows: Array, index: Any = ...) -> Errors:
        """Of rows @ the stage; `index`: of some turns."""
        off, size = self.off.at(index), abs(rows)
        variance = (size @ np.sqrt(off.variance)) ** 2 if self.together else rows * rows @ off.variance
        worst = size @ off.worst
        return Errors(worst, variance, size @ off.common if off.common.any() else np.zeros(worst.shape))


def summed(parts: Sequence[tuple[int, Errors]]) -> Errors:
    """Errors, each with its sources."""
    (sources, found), *more = parts
    for others, off in more:
        found, sources = found.plus(off, bool(sources & others)), sources | others
    return found


def lengths_of(transition: Array, added: Errors) -> tuple[Errors, Errors]:
    """2-norms of the columns of the states' errors, of those `added` by each turn: without its own, and with them."""
    norms = np.linalg.norm(np.where(np.isfinite(transition), transition, np.inf), 2, axis=(-2, -1))[..., None, None]
    added = added.lengths()
    earlier, whole = [added.at(_turn(0)).times(0.0)], [added.at(_turn(0))]
    for t in range(1, norms.shape[2]):
        earlier.append(whole[-1].times(norms[:, :, t]))
        whole.append(earlier[-1].plus(added.at(_turn(t))))
    return _stacked(earlier), _stacked(whole)


def _stacked(offs: Sequence[Errors]) -> Errors:
    return Errors(*(np.stack(x, axis=2) for x in zip(*offs, strict=True)))


def _turn(t: Any) -> Any:
    return slice(None), slice(None), t


def behind(
    rows: Array, transition: Array, sources: Sequence[tuple[Array | None, Rounded]], whole: Errors, back: int
) -> Errors:
    """What errors of the states before each turn make of its rows @ state, of the `sources` of each: from the last turn
    back through all transitions between; by norms of `whole` once the rows are SHORT, or `back` turns behind.
    """
    b, h, turns, n, d = rows.shape
    found = Errors(*np.zeros((3, b, h, turns, n, whole.worst.shape[-1])))
    rows, lengths, end = rows.copy(), _length(rows), turns
    for s in range(turns - 2, -1, -1):
        while end > s + 1 and (
            end - 1 - s > back or np.all(_length(rows[:, :, end - 1]) <= SHORT * lengths[:, :, end - 1])
        ):
            end -= 1
            _add(found, end, whole.at(_turn(s)).times(_length(rows[:, :, end])))
        end = max(end, s + 2)
        some = slice(s + 1, end)
        left = rows[:, :, some].reshape(b, h, -1, d)
        made = summed([(one.sources, one.through(left if to_state is None else left @ to_state[:, :, s], _turn(s)))
                     for to_state, one in sources])  # fmt: skip
        _add(found, some, Errors(*(x.reshape(b, h, -1, n, x.shape[-1]) for x in made)))
        rows[:, :, some] = (left @ transition[:, :, s]).reshape(b, h, -1, n, d)
    return found


def _add(found: Errors, turns: Any, more: Errors) -> None:
    for x, y in zip(found, more, strict=True):
        x[_turn(turns)] += y


def _length(rows: Array) -> Array:
    return np.sqrt(np.sum(rows * rows, axis=-1, keepdims=True))
