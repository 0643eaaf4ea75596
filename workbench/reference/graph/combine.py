"""The error of a node, of what it rounds itself and of the errors of what it reads."""

from typing import Any

import numpy as np

from workbench.reference.graph.error import EXACT, Error, Own, grown, none, plus
from workbench.reference.graph.site import Site

#: primitives that may leave an element without a bound
MAY_OPEN = frozenset("divide reciprocal log log2 log10 power where executed argmax argmin argsort".split())
#: primitives that take one of several, which equal operands leave open, exact ones too
TAKES_ONE = frozenset("argmax argmin argsort share".split())


def combined(rule: Any, s: Site, own: Own, beyond: Any, expected: Any, bit: int) -> Error:
    """The error of a node: its own roundings and what it is moved by. Random parts of common sources add up linearly
    (Minkowski), of others as squares.
    """
    rounds = not none(own.random)
    common = plus(own.common, own.alike * abs(s.held) if own.alike else 0.0)
    if s.exact and none(beyond):
        if none(own.worst):
            return EXACT
        return Error(own.worst, own.random * own.random, common, bit if rounds else 0, s.unshared)
    if hasattr(rule, "error"):
        open_ = 0
        for one in s.reads:
            open_ |= one.error.open
        found = rule.error(s)
        open_ |= bit if _opens(s, found.worst) else 0
        return _tidy(s, found._replace(shared=found.shared or s.unshared, open=open_))
    worst, variance, moved_common = beyond, 0.0, expected
    sources, open_, shared = 0, bit if _opens(s, beyond) else 0, s.unshared
    for i, one in enumerate(s.reads):
        e = one.error
        if e is EXACT:
            continue
        worst = plus(worst, rule.linear(s, i, e.worst))
        moved_common = plus(moved_common, 0.0 if none(e.common) else rule.linear(s, i, e.common))
        open_ |= e.open
        if not none(e.variance):
            moved = rule.linear(s, i, e.variance**0.5) ** 2 if rule.alike(s, i) else rule.squared(s, i, e.variance)
            together = sources & e.sources
            variance = (variance**0.5 + moved**0.5) ** 2 if together else plus(variance, moved)
            sources |= e.sources
            shared = tuple(a or b for a, b in zip(shared, rule.shared(s, i), strict=True))
    worst = grown(worst, 1 + rule.grows(s), own.worst)
    if rounds:
        variance, sources = plus(variance, own.random * own.random), sources | bit
    found = Error(worst, variance, plus(moved_common, common), sources, shared, open_)
    if s.node.op == "subtract" and s.looks:
        found = _where_certain(s, found)
    return _tidy(s, found)


def _where_certain(s: Site, error: Error) -> Error:
    """0 where a of a - max(a, x) is the maximum for sure."""
    a, other = s.reads[0], s.looks[0]
    sure = other.value + other.error.worst < a.value - a.error.worst
    if sure.shape != s.y.shape:
        return error
    worst, variance, common = (s.xp.where(sure, 0.0, part) for part in error[:3])
    return error._replace(worst=worst, variance=variance, common=common)


def _opens(s: Site, beyond: Any) -> bool:
    """Whether a node leaves an element without a bound."""
    return s.node.op in MAY_OPEN and not none(beyond) and bool(s.xp.any(s.xp.isinf(beyond)))


def _tidy(s: Site, error: Error) -> Error:
    """What is no bound becomes infinite; where the value is not finite there is no error, unless there is no bound."""
    xp = s.xp
    parts = [error.worst, error.variance, error.common]
    if error.open:
        parts = [part if none(part) else xp.where(xp.isnan(part), xp.inf, part) for part in parts]
    if is_float(s.y) and s.held is not s.y:
        held = xp.isfinite(s.y)
        unbound = xp.asarray(parts[0] == xp.inf) if s.node.op in ("divide", "reciprocal") else False
        parts = [part if none(part) else xp.where(held | unbound, part, 0.0) for part in parts]
    worst, variance, common = parts
    return error._replace(worst=worst, variance=variance, common=common)


def is_float(x: Any) -> bool:
    """Whether it holds floats, which are rounded."""
    dtype = x.dtype
    return dtype.kind not in "biu" if isinstance(dtype, np.dtype) else bool(dtype.is_floating_point)
