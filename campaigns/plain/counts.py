"""Counts over the elements of one array, and what became of a fault."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.floats import to_float64, ulp
from workbench.reference.bound import NEGLIGIBLE, Budget


@dataclass
class Part:
    """Counts over elements."""

    elements: int = 0
    judged: int = 0
    outside: int = 0  #: beyond the worst case
    beyond: int = 0  #: beyond the statistical budget
    worst: float = 0.0  #: the largest error by the worst case
    likely: float = 0.0  #: and by the statistical budget

    def add(self, other: "Part") -> None:
        """Count those of another one."""
        for name in ("elements", "judged", "outside", "beyond"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.worst, self.likely = max(self.worst, other.worst), max(self.likely, other.likely)


@dataclass
class Missed:
    """What became of one fault in one run."""

    outside: bool = False  #: whether it is found beyond the worst case
    beyond: bool = False  #: and beyond the statistical budget
    size: float = 0.0  #: the largest change of lse, or of out by its largest element


def compared(actual: Any, value: Any, budget: Budget) -> tuple[Part, Any, Any]:
    """The counts of one array, with the largest error of each element by its worst case and by its statistical budget.
    What is not finite has to be the same; half an ulp of float32 is within, as in every comparison. An element without
    a bound, or with one that a 0 would pass, is not judged.
    """
    actual, value = to_float64(actual), to_float64(value)
    held = np.isfinite(value)
    same = held | (actual == value) | (np.isnan(actual) & np.isnan(value))
    vacuous = np.isinf(budget.bound) | (budget.bound >= budget.size)
    tested = ~held | ~vacuous
    floor = ulp(np.where(held, value, 1.0), "float32") / 2
    off = np.where(held, abs(actual - np.where(held, value, 0.0)), np.where(same, 0.0, np.inf))
    off = np.where(np.isnan(off), np.inf, off)
    ratios = [
        np.where(tested, off / np.maximum(np.where(held & tested, bound, 0.0), floor), 0.0)
        for bound in (budget.bound, budget.statistical)
    ]
    # a budget that is NaN is none, and passes nothing
    worst, likely = (np.where(np.isnan(one), np.inf, one) for one in ratios)
    part = Part(off.size, int(tested.sum()), int((worst > 1).sum()), int((likely > 1).sum()))
    part.worst, part.likely = (float(one.max(initial=0.0)) for one in (worst, likely))
    return part, worst, likely


def shown(part: dict[str, Any]) -> dict[str, Any]:
    """Counts for a screen."""
    share = part["judged"] / part["elements"] if part["elements"] else 0.0
    return {
        "elements": part["elements"],
        "judged": f"{share:.2%}",
        "outside": part["outside"],
        "beyond": part["beyond"],
        "worst": f"{part['worst']:.3f}",
        "likely": f"{part['likely']:.3f}",
    }


def size_of(values: Any, value: Any, relative: bool) -> float:
    """The largest change of an array, of out relative to its largest element."""
    held = np.isfinite(value) & np.isfinite(values)
    if not held.any():
        return 0.0
    change = float(abs(values - value)[held].max())
    return change / max(float(abs(value)[held].max()), NEGLIGIBLE) if relative else change
