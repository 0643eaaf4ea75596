"""Attention sinks: a logit of each head whose value is 0, so that it is in the sum of a row and nowhere else (Xiao et
al. 2024, arXiv 2309.17453; learned, one for each head, in gpt-oss).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.floats import array_namespace
from workbench.reference.bound import Bound
from workbench.reference.stage import Bounded, Ref
from workbench.reference.steps.output import lse_own

#: largest difference of which exp is taken: what is larger leaves 0 of out, and lse does not take this way
_LARGEST = 700.0


@dataclass(frozen=True)
class Unit:
    """What a row's sum begins with where it begins with a sink: exp(sink - sink), 1, or 0 where the sink is -inf."""

    of: Ref

    def value(self, at: Any) -> np.ndarray:
        sinks = at(self.of)
        xp = array_namespace(sinks)
        return xp.where(sinks == -np.inf, xp.zeros_like(sinks), xp.ones_like(sinks))

    words = "exp({of} - {of})"


@dataclass(frozen=True)
class WithSink:
    """total + exp(sink - top), [b, h, q]; 1 in a row without keys, whose numerator is 0."""

    total: Ref
    top: Ref
    sink: Ref

    def value(self, at: Any) -> np.ndarray:
        total, top = at(self.total), at(self.top)
        xp = array_namespace(total)
        return xp.where(top == -np.inf, 1.0, total + xp.exp(_difference(at(self.sink), top)))

    def bound(self, at: Any) -> Bounded:
        """The errors of both, of exp and its argument, and of one sum."""
        losses, top, of_total, of_top = at.losses, at(self.top), at.error(self.total), at.error(self.top)
        weight = array_namespace(top).exp(_difference(at(self.sink), top))
        own = weight * of_exp(at, self.sink, self.top) + losses.sum(1) * abs(at.own)
        random = (of_total.random**2 + (weight * of_top.random) ** 2) ** 0.5
        worst = of_total.worst + weight * array_namespace(top).expm1(0.0 * top + of_top.worst) + own
        return Bounded(Bound(worst, random, of_total.common + 1.05 * weight * of_top.common + own), abs(at.own))

    words = "{total} + exp({sink} - {top})"


@dataclass(frozen=True)
class LogSumSink:
    """Natural log of the row's sum and its sink's weight, log(exp(top) total + exp(sink)), [b, h, q]."""

    top: Ref
    total: Ref
    sink: Ref

    def value(self, at: Any) -> np.ndarray:
        top, total, sink = at(self.top), at(self.total), at(self.sink)
        xp = array_namespace(total)
        keys = xp.where(total == 0, xp.full_like(total, -np.inf), top + xp.log(total))
        largest = xp.maximum(keys, sink + xp.zeros_like(keys))
        safe = xp.where(largest == -np.inf, xp.zeros_like(largest), largest)
        return xp.where(largest == -np.inf, largest, safe + xp.log(xp.exp(keys - safe) + xp.exp(sink - safe)))

    def bound(self, at: Any) -> Bounded:
        """No more than both lose, as a logarithm of a sum has weights of at most 1; log, exp and its argument."""
        top, total, value = at(self.top), at(self.total), at.own
        of_top, of_total, xp = at.error(self.top), at.error(self.total), array_namespace(total)
        safe = xp.where(top == -np.inf, xp.zeros_like(top), top)
        own = lse_own(at.p, value, safe, xp.exp(xp.clip(value - safe, -_LARGEST, _LARGEST)))
        # a sink that dwarfs all keys is all of lse, whatever its weight's error
        weight = xp.exp(xp.minimum(at(self.sink) - value, 0.0 * value))
        own = own + weight * of_exp(at, self.sink, self.top) + at.losses.sum(2)

        def end(of_top: np.ndarray | float, of_total: np.ndarray | float) -> np.ndarray:
            lost = -xp.log1p(-xp.minimum(xp.where(total > 0, of_total / xp.where(total > 0, total, 1.0), 0.0), 1.0))
            return xp.where(xp.isfinite(value), of_top + lost + own, 0.0)

        likely = end(at.likely(of_top), at.likely(of_total)) if at.statistics else 0.0
        return Bounded(Bound(end(of_top.worst, of_total.worst), 0.0, likely))

    words = "log(exp({top}) * {total} + exp({sink}))"


def of_exp(at: Any, sink: str, top: str) -> np.ndarray:
    """Relative error of exp(sink - top): of exp, of its argument, and of the units of both."""
    losses, length = at.losses, abs(_difference(at(sink), at(top)))
    longer = length + losses.offset
    converted = array_namespace(length).where(length > 0, at.error(sink).worst + 0.0 * length, 0.0)
    found: np.ndarray = array_namespace(length).expm1(
        losses.argument * longer + losses.exp(longer) + losses.argument_of_max * (longer + abs(at(sink))) + converted
    )
    return array_namespace(length).where(length == np.inf, 0.0, found)


def _difference(sink: np.ndarray, top: np.ndarray) -> np.ndarray:
    """sink - top, no more than exp can take; -inf without a sink, 0 in a row without keys."""
    xp = array_namespace(top)
    safe = xp.where(top == -np.inf, xp.zeros_like(top), top)
    x = xp.minimum(sink - safe, xp.full_like(safe, _LARGEST))
    return xp.where(top == -np.inf, xp.zeros_like(x), x)
