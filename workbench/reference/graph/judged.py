"""Budgets of what is judged, from the errors that a pass found."""

from typing import Any

import numpy as np

from workbench.floats import array_namespace
from workbench.reference.bound import NEGLIGIBLE, Budget, deviations
from workbench.reference.graph.combine import is_float
from workbench.reference.graph.error import none, plus
from workbench.reference.graph.shapes import spread
from workbench.reference.graph.site import Operand, likely


def within_a_tie(x: Operand, axis: int, mine: Any, theirs: Any) -> tuple[Any, Any] | None:
    """How far places may be off that a kernel chose along an axis of x, in the worst case and all but surely: to where
    they are, if the elements there are the same within their budgets, and no place is taken twice; else 0. None where
    the places are not along that axis any more.
    """
    xp = array_namespace(x.value)
    lacking = x.value.ndim - mine.ndim
    if lacking not in (0, 1):
        return None
    mine, theirs = (xp.expand_dims(one, axis=axis) if lacking else one for one in (mine, theirs))
    if any(n != m for a, (n, m) in enumerate(zip(x.value.shape, theirs.shape, strict=True)) if a != axis):
        return None
    n = x.value.shape[axis]
    kept = xp.clip(theirs, 0, n - 1)
    there = xp.sort(kept, axis=axis)
    lead = (slice(None),) * axis
    twice = xp.any(there[(*lead, slice(1, None))] == there[(*lead, slice(None, -1))], axis=axis, keepdims=True)
    found = []
    for off in (x.error.worst, likely(x)):
        a, b = (xp.take_along_axis(x.value, one, axis=axis) for one in (mine, kept))
        e, f = (xp.take_along_axis(spread(off, x.value), one, axis=axis) for one in (mine, kept))
        right = (abs(a - b) <= e + f) & (kept == theirs) & ~twice
        apart = xp.where(right, xp.astype(abs(theirs - mine), xp.float64), 0.0)
        found.append(xp.squeeze(apart, axis=axis) if lacking else apart)
    return found[0], found[1]


def budget_of(one: Operand, elements: int) -> Budget:
    """As of today's walk; NaN where the reference is NaN."""
    xp, value, error = array_namespace(one.value), one.value, one.error
    worst = spread(error.worst, value)
    random = 0.0 if none(error.variance) else deviations(elements) * error.variance**0.5
    likely = spread(xp.minimum(xp.asarray(plus(error.common, random)), xp.asarray(error.worst)), value)
    if is_float(value):
        nan = xp.isnan(value)
        if bool(xp.any(nan)):
            worst, likely = xp.where(nan, xp.nan, worst), xp.where(nan, xp.nan, likely)
    size = xp.maximum(spread(one.size, value), spread(NEGLIGIBLE, value)) if one.terms > 1 else np.inf
    return Budget(worst, likely, size)
