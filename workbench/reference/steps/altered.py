"""Steps that a fault changes, where no field of theirs can say how: in their result, or in what they read."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.floats import unit_roundoff
from workbench.reference.bound import EXACT, Bound, changed
from workbench.reference.stage import Bounded, Step

#: roundings of float32 that a change may cost on its own: a few products, or exp of an argument of some tens
ROUNDINGS = 32


@dataclass(frozen=True)
class Altered:
    """`change(at, x)` in place of x, the result of `step`; `also` are what the change reads."""

    step: Step
    change: Callable[[Any, Any], Any]
    also: tuple[str, ...] = ()
    slack: float = 0.0  #: relative error of a rounding that the change makes and that may turn either way

    def value(self, at: Any) -> Any:
        return self.change(at, self.step.value(at))

    def magnitude(self, at: Any) -> Any:
        """Of x, and the size of the result where that is larger."""
        size = self.step.magnitude(at)  # type: ignore[attr-defined]
        return size if at.owns else np.maximum(size, abs(at.own))

    def bound(self, at: Any) -> Bounded:
        """That of x as the change carries it on, of what it reads beside to first order, and a few roundings of its
        own.
        """
        x = self.step.value(at)
        with at.owning(x):
            made = at.bounded(self.step)
        y = self.change(at, x)
        if y is x or np.asarray(y).dtype == bool:
            return made
        worst: Any = changed(at, x, made.bound, self.change).worst
        for ref in self.also:
            of_ref = at.error(ref)
            if of_ref is not EXACT:
                for sign in (1, -1):
                    with at.reading(ref, lambda at, value, off=sign * of_ref.worst: value + off):
                        moved = abs(self.change(at, x) - y)
                    worst = worst + np.where(np.isnan(moved), 0.0, moved) / 2
        # what does not read x loses as much as the step did, in all and for its size
        relative = ROUNDINGS * unit_roundoff("float32") + self.slack + _relative(made.bound, x)
        own = relative * np.where(np.isfinite(y), abs(y), 0.0)
        worst = worst + np.where(y == x, 0.0, own) + made.bound.worst
        return Bounded(Bound(worst, 0.0, worst))

    def interval(self, at: Any) -> Any:
        """Of a stage of codes: that of x, as the change carries it on."""
        with at.owning(self.step.value(at)):
            made = self.step.interval(at)  # type: ignore[attr-defined]
        return made.after(lambda x: self.change(at, x))

    @property
    def words(self) -> str:
        return self.step.words


def _relative(bound: Bound, x: Any) -> float:
    """The bound of a number or an array over its size, on the whole."""
    if bound is EXACT:
        return 0.0
    x = np.asarray(x)
    known = np.isfinite(x) & np.isfinite(bound.worst)
    size = float(abs(x)[known].sum())
    return float((np.zeros_like(x) + bound.worst)[known].sum()) / size if size else 0.0


@dataclass(frozen=True)
class Reading:
    """A step that reads `change(at, x)` in place of x, the value of `ref`; its bounds follow."""

    step: Step
    ref: str
    change: Callable[[Any, Any], Any]
    also: tuple[str, ...] = ()

    def value(self, at: Any) -> Any:
        with at.reading(self.ref, self.change):
            return self.step.value(at)

    def magnitude(self, at: Any) -> Any:
        """Of the step, as it reads."""
        with at.reading(self.ref, self.change):
            return self.step.magnitude(at)  # type: ignore[attr-defined]

    def bound(self, at: Any) -> Bounded:
        """Of the step, as it reads."""
        with at.reading(self.ref, self.change):
            made: Bounded = at.bounded(self.step)
        return made

    def interval(self, at: Any) -> Any:
        """Of a stage of codes, as it reads."""
        with at.reading(self.ref, self.change):
            return self.step.interval(at)  # type: ignore[attr-defined]

    @property
    def words(self) -> str:
        return self.step.words
