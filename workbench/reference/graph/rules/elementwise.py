"""Primitives of single elements: |slope| times the errors of what is read, and beyond that what the interval says."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import log, pi, sqrt
from typing import Any

import numpy as np

from workbench.floats import array_namespace
from workbench.reference.graph.error import EXACT, Amount, Own, plus
from workbench.reference.graph.rules.roundings import (
    approximated,
    function,
    held,
    nothing,
    of_circle,
    of_exp,
    of_log_sum,
    of_loss,
    of_power,
    of_product,
    of_quotient,
    of_sum,
    product_bits,
    rounded,
)
from workbench.reference.graph.shapes import to_shape
from workbench.reference.graph.site import FLOAT32_BITS, Site, finite
from workbench.reference.losses import LOG_ULPS

#: covers that roundings are of the value that is off, not of the exact one: up to 16 unit roundoffs of float32
SECOND_ORDER = 2.0**-20

Slope = Callable[[Site], Amount]


@dataclass(frozen=True)
class Elementwise:
    """f of elements that broadcast."""

    f: Callable[..., Any]
    slopes: tuple[Slope, ...]  #: d y / d x of each operand
    words: str
    own: Callable[[Site], Own] = nothing
    #: how far the operands' worst errors may move y in all, where the slopes do not say
    reach: Callable[[Site], Amount] | None = None
    bits_of: Callable[[tuple[int, ...]], int] = lambda bits: 53
    bilinear: bool = False  #: whether it is linear in each operand

    def value(self, *x: Any, **_: Any) -> Any:
        """The result in float64."""
        return self.f(*x)

    def linear(self, s: Site, i: int, e: Any) -> Any:
        """What errors e of operand i move y by, to first order."""
        steep = self._steepness(s, i)
        return e if isinstance(steep, float) and steep == 1.0 else steep * e

    def squared(self, s: Site, i: int, v: Any) -> Any:
        """The same of squares of independent errors."""
        steep = self._steepness(s, i)
        return v if isinstance(steep, float) and steep == 1.0 else steep * (steep * v)

    def adjoint(self, s: Site, i: int, g: Any) -> Any:
        """d / d x of operand i, from d / d y."""
        return to_shape(g * self._slope(s, i), s.x[i].shape)

    def beyond(self, s: Site) -> Amount:
        """What the worst case is beyond first order."""
        if self.reach is None or s.exact or (self.bilinear and sum(one.error is not EXACT for one in s.reads) < 2):
            return 0.0
        first: Any = 0.0
        for i, one in enumerate(s.reads):
            if one.error is not EXACT:
                first = plus(first, self.linear(s, i, one.error.worst))
        return s.xp.maximum(self.reach(s) - first, 0.0)

    def grows(self, s: Site) -> float:
        """Relative growth of errors by the node's own roundings."""
        return SECOND_ORDER

    def alike(self, s: Site, i: int) -> bool:
        """Whether errors that elements of operand i share add up in one element of y."""
        return False

    def shared(self, s: Site, i: int) -> tuple[bool, ...]:
        """Along which axes of y one rounding of operand i is in several elements."""
        x, found = s.x[i], []
        for j in range(s.y.ndim):
            k = j - s.y.ndim + x.ndim
            spread = k < 0 or (x.shape[k] == 1 and s.y.shape[j] > 1)
            found.append(spread or (k >= 0 and s.reads[i].error.shared[k]))
        return tuple(found)

    def bits(self, s: Site) -> int:
        """Significant bits of y."""
        return self.bits_of(tuple(one.bits for one in s.reads))

    def _slope(self, s: Site, i: int) -> Amount:
        slope = self.slopes[i](s)
        if isinstance(slope, float):
            return slope
        known = next((one.held for one in s.reads if one.value is slope), s.held if slope is s.y else None)
        return finite(slope) if known is None else known

    def _steepness(self, s: Site, i: int) -> Amount:
        """|slope|, which a bound asks for several times."""
        if i not in s.steepness:
            s.steepness[i] = abs(self._slope(s, i))
        return s.steepness[i]


def _reach_of_product(s: Site) -> Any:
    (x, y), (ex, ey) = s.x, (one.error.worst for one in s.reads)
    return abs(y) * ex + abs(x) * ey + ex * ey


def _reach_of_quotient(s: Site) -> Any:
    """(e_x + |z| e_y) / (|y| - e_y); infinite where the denominator may be 0."""
    y, (ex, ey) = s.x[1], (one.error.worst for one in s.reads)
    open_ = s.xp.asarray(ey >= abs(y)) & s.xp.asarray(ey > 0)
    z = s.held
    return s.xp.where(open_, s.xp.inf, (ex + abs(z) * ey) / s.xp.where(open_, 1.0, abs(y) - ey))


def ends(f: Callable[..., Any]) -> Slope:
    """Of a monotone function, the farther end of the interval."""

    def reach(s: Site) -> Any:
        x, e = s.x[0], s.reads[0].error.worst
        return s.xp.maximum(abs(f(x + e) - s.y), abs(s.y - f(x - e)))

    return reach


def _reach_of_exp(s: Site) -> Any:
    return s.y * s.xp.expm1(s.xp.minimum(s.xp.asarray(s.reads[0].error.worst), s.xp.asarray(700.0)))


def _reach_of_log(unit: float) -> Slope:
    def reach(s: Site) -> Any:
        share = s.reads[0].error.worst / s.x[0]
        return -s.xp.log1p(-s.xp.minimum(share, s.xp.ones_like(share))) / unit

    return reach


def _reach_of_root(s: Site) -> Any:
    x, e, xp = s.x[0], s.reads[0].error.worst, s.xp
    return xp.maximum(s.y - xp.sqrt(xp.maximum(x - e, xp.zeros_like(x))), xp.sqrt(x + e) - s.y)


def _steepest(s: Site) -> Any:
    """tanh is steepest where its argument is smallest."""
    x, e, xp = s.x[0], s.reads[0].error.worst, s.xp
    nearest = xp.minimum(xp.maximum(abs(x) - e, 0.0 * x), 0.0 * x + 350.0)
    return xp.minimum(e / xp.cosh(nearest) ** 2, 1 + abs(s.y))


def _at_most(slope: float) -> Slope:
    """Of a function that is nowhere steeper."""
    return lambda s: slope * s.reads[0].error.worst


def _reach_of_square(s: Site) -> Any:
    x, e = s.x[0], s.reads[0].error.worst
    return 2 * abs(x) * e + e * e


def _reachof_power(s: Site) -> Any:
    """|y| expm1(|b| of log a + |log a| of b + both), by the logarithm."""
    a, b = s.reads
    log_a = abs(finite(s.xp.log(abs(a.value))))
    share = s.xp.asarray(a.error.worst / abs(a.value))
    of_log = -s.xp.log1p(-s.xp.minimum(share, s.xp.ones_like(share)))
    moved = (abs(b.value) + b.error.worst) * of_log + log_a * b.error.worst
    return abs(s.y) * s.xp.expm1(s.xp.minimum(moved, 0.0 * moved + 700.0))


def _weight(s: Site, i: int) -> Any:
    return s.xp.exp(s.x[i] - s.y)


def _call(name: str) -> Callable[..., Any]:
    """A function of the arrays' own namespace."""
    return lambda *x: getattr(array_namespace(*x), name)(*x)


def _erf(x: Any) -> Any:
    """The error function; NumPy has none."""
    xp = array_namespace(x)
    if hasattr(xp, "erf"):
        return xp.erf(x)
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x), np.float64)


def _cbrt(x: Any) -> Any:
    """Of torch, which has none, by a power."""
    xp = array_namespace(x)
    return xp.cbrt(x) if hasattr(xp, "cbrt") else xp.sign(x) * abs(x) ** (1 / 3)


_HALF = 0.5


def _unary(name: str, ulps: float | None, slope: Slope, reach: Slope | None, words: str = "") -> Elementwise:
    return Elementwise(_call(name), (slope,), words or f"{name}({{0}})", function(ulps), reach)


def _first(bits: tuple[int, ...]) -> int:
    return bits[0]


#: largest errors in ulps of float32: CUDA programming guide, "Mathematical functions", single precision, one more for
#: the fast variants of sin and cos near 0
ELEMENTWISE: Mapping[str, Elementwise] = {
    "add": Elementwise(_call("add"), (lambda s: 1.0, lambda s: 1.0), "{0} + {1}", of_sum),
    "subtract": Elementwise(_call("subtract"), (lambda s: 1.0, lambda s: -1.0), "{0} - {1}", of_sum),
    "multiply": Elementwise(_call("multiply"), (lambda s: s.x[1], lambda s: s.x[0]), "{0} * {1}", of_product,
                            _reach_of_product, product_bits, True),
    "divide": Elementwise(_call("divide"), (lambda s: _inverse(s), lambda s: -s.y / s.x[1]), "{0} / {1}", of_quotient,
                          _reach_of_quotient, lambda bits: bits[0] if bits[1] <= 1 else 53),
    # what autograd adds up kernels factor out, (p - 1) g in place of p g - g: a product and a factor of it are rounded
    "factored": Elementwise(lambda x: x, (lambda s: 1.0,), "{0}", rounded(2)),
    "lose": Elementwise(lambda x, each: x + 0.0, (lambda s: 1.0, lambda s: 0.0), "{0}", of_loss),
    "negative": Elementwise(_call("negative"), (lambda s: -1.0,), "-{0}", bits_of=_first),
    "abs": Elementwise(_call("abs"), (lambda s: s.xp.sign(s.x[0]),), "|{0}|", reach=_at_most(1.0), bits_of=_first),
    "square": Elementwise(_call("square"), (lambda s: 2 * s.x[0],), "{0}^2",
                          lambda s: held(s) if 2 * s.reads[0].bits <= FLOAT32_BITS else rounded(1)(s), _reach_of_square,
                          lambda bits: min(2 * bits[0], 53) if bits[0] != 1 else 1),
    "sqrt": Elementwise(_call("sqrt"), (lambda s: _HALF / s.y,), "sqrt({0})", rounded(2), _reach_of_root),
    "cbrt": Elementwise(_cbrt, (lambda s: 1 / (3 * s.y**2),), "cbrt({0})", function(1.0), ends(_cbrt)),
    "reciprocal": Elementwise(_call("reciprocal"), (lambda s: -s.y * s.y,), "1 / {0}", rounded(2),
                              lambda s: _reach_of_inverse(s)),
    "exp": Elementwise(_call("exp"), (lambda s: s.y,), "exp({0})", of_exp, _reach_of_exp),
    "exp2": Elementwise(_call("exp2"), (lambda s: log(2) * s.y,), "2^{0}", of_exp, ends(_call("exp2"))),
    "expm1": _unary("expm1", None, lambda s: s.y + 1, ends(_call("expm1"))),
    "log": _unary("log", LOG_ULPS, lambda s: 1 / s.x[0], _reach_of_log(1.0)),
    "log2": _unary("log2", LOG_ULPS, lambda s: 1 / (log(2) * s.x[0]), _reach_of_log(log(2))),
    "log10": _unary("log10", LOG_ULPS, lambda s: 1 / (log(10) * s.x[0]), _reach_of_log(log(10))),
    "log1p": _unary("log1p", LOG_ULPS, lambda s: 1 / (1 + s.x[0]), ends(_call("log1p"))),
    "tanh": Elementwise(_call("tanh"), (lambda s: 1 - s.y * s.y,), "tanh({0})", approximated("tanh", 2.5), _steepest),
    "sinh": _unary("sinh", 3.0, lambda s: s.xp.cosh(s.x[0]), ends(_call("sinh"))),
    "cosh": _unary("cosh", 2.0, lambda s: s.xp.sinh(s.x[0]),
                   lambda s: s.xp.cosh(abs(s.x[0]) + s.reads[0].error.worst) - s.y),
    "sin": Elementwise(_call("sin"), (lambda s: s.xp.cos(s.x[0]),), "sin({0})", lambda s: of_circle(s),
                       _at_most(1.0)),
    "cos": Elementwise(_call("cos"), (lambda s: -s.xp.sin(s.x[0]),), "cos({0})", lambda s: of_circle(s),
                       _at_most(1.0)),
    "erf": Elementwise(_erf, (lambda s: 2 / sqrt(pi) * s.xp.exp(-(s.x[0] ** 2)),), "erf({0})",
                       approximated("erf", 2.0), _at_most(2 / sqrt(pi))),
    "arctan": _unary("arctan", 2.0, lambda s: 1 / (1 + s.x[0] ** 2), ends(_call("arctan"))),
    "arcsinh": _unary("arcsinh", 4.0, lambda s: 1 / s.xp.sqrt(1 + s.x[0] ** 2), ends(_call("arcsinh"))),
    "power": Elementwise(_call("pow"), (lambda s: s.x[1] * s.y / s.x[0], lambda s: s.y * s.xp.log(s.x[0])),
                         "{0}^{1}", of_power, _reachof_power),
    "logaddexp": Elementwise(_call("logaddexp"), (lambda s: _weight(s, 0), lambda s: _weight(s, 1)),
                             "log(exp({0}) + exp({1}))", of_log_sum,
                             lambda s: s.xp.maximum(*(0.0 * s.held + one.error.worst for one in s.reads))),
    "deg2rad": Elementwise(_call("deg2rad"), (lambda s: pi / 180,), "{0} pi / 180", rounded(2)),
    "rad2deg": Elementwise(_call("rad2deg"), (lambda s: 180 / pi,), "{0} 180 / pi", rounded(2)),
}  # fmt: skip


def _inverse(s: Site) -> Any:
    """1 / x in float64, also where x is a whole number, of which torch makes a float32."""
    return 1 / s.xp.astype(s.x[1], s.xp.float64, copy=False)


def _reach_of_inverse(s: Site) -> Any:
    x, e = s.x[0], s.reads[0].error.worst
    open_ = s.xp.asarray(e >= abs(x)) & s.xp.asarray(e > 0)
    return s.xp.where(open_, s.xp.inf, abs(s.held) * e / s.xp.where(open_, 1.0, abs(x) - e))
