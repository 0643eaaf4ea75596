"""What single operations round, of their results."""

from collections.abc import Callable
from typing import Any

from workbench.case.contract import FAST_EXP_ULPS
from workbench.reference.graph.contract import FAST
from workbench.reference.graph.error import Own, none, plus
from workbench.reference.graph.site import FLOAT32_BITS, Operand, Site, finite
from workbench.reference.losses import LOG_ULPS

#: ulps of an exp whose errors look like chance: ex2.approx and CUDA's expf (CUDA programming guide, table of ulps)
ACCURATE = 2.0


def nothing(s: Site) -> Own:
    """Of what rounds nothing."""
    return Own()


def rounded(k: float) -> Callable[[Site], Own]:
    """k unit roundoffs of the result."""

    def own(s: Site) -> Own:
        if s.normal:
            return Own(relative=k * s.u)
        y = s.held
        lost = k * s.u * abs(y)
        lost += s.contract.floor * (y != 0)
        return Own(lost, lost)

    return own


def function(ulps: float | None = None) -> Callable[[Site], Own]:
    """So many ulps of float32, of which one may be the same relative error in all elements; None: those of exp. What
    exp loses beyond ACCURATE is of an approximation, a function of the argument: equal arguments err alike.
    """

    def own(s: Site) -> Own:
        some = s.contract.exp_ulps if ulps is None else ulps
        coarse = max(some - ACCURATE, 0.0) if ulps is None else 0.0
        if s.normal and not coarse:
            return Own(alike=2 * s.u * min(some, 1.0), relative=2 * s.u * some)
        size, floor = 2 * s.u * abs(s.held), s.contract.floor * (s.held != 0)
        random = (some - coarse) * size + floor
        common = coarse * size if coarse else 0.0
        return Own(random + common if coarse else random, random, common, 2 * s.u * min(some, 1.0))

    return own


def approximated(name: str, ulps: float) -> Callable[[Site], Own]:
    """So many ulps of a library's function; more where the contract says that it is an approximation, one of FAST, of
    which equal arguments err alike.
    """

    def own(s: Site) -> Own:
        found = function(ulps)(s)
        if name not in s.contract.fast:
            return found
        absolute, relative = FAST[name]
        more = absolute * s.u + relative * abs(s.held)
        return Own(found.worst + more, found.random, plus(found.common, more), found.alike)

    return own


def of_exp(s: Site) -> Own:
    """exp(0) = 1 and exp(-inf) = 0 are exact, in hardware and in libraries; the first not for an approximation of few
    terms, nor for the products of a fused difference.
    """
    own, x = function()(s), s.x[0]
    if s.contract.exp_ulps <= FAST_EXP_ULPS:
        zero = x == 0
        if not s.exact:
            zero = zero & (s.reads[0].error.worst == 0)
        if own.relative:
            own = own._replace(exact=zero if bool(s.xp.any(zero)) else None)
        elif bool(s.xp.any(zero)):
            worst, random = (s.xp.where(zero, 0.0, one) for one in (own.worst, own.random))
            common = own.common if none(own.common) else s.xp.where(zero, 0.0, own.common)
            own = Own(worst, random, common, own.alike)
    if s.contract.exp == "natural":
        return own
    more = in_base_2(s, x, s.looks)
    size = abs(s.held)
    if own.relative:
        each = own.relative if own.exact is None else s.xp.where(own.exact, 0.0, own.relative)
        return Own(0.0, size * s.xp.sqrt(more.random**2 + each**2), size * more.common, own.alike)
    random = s.xp.sqrt(own.random**2 + (size * more.random) ** 2)
    return Own(own.worst + size * more.worst, random, own.common + size * more.common, own.alike)


#: relative error of the constant of base 2, in unit roundoffs: float32 is off by 0.224 of them in log2(e), and loses
#: two more in a scale and in its product with that
OF_LOG2E = 2.25


def in_base_2(s: Site, x: Any, terms: tuple[Operand, ...] = ()) -> Own:
    """What 2^(x c), c = log2(e), loses beyond exp, relative to the result.

    x c is rounded, u |x|, and c is OF_LOG2E u off. x = a - b may be fused, a c - fl(b c), or both products rounded:
    u |a|, and u |b|, which all elements share that have this b, as a row has its maximum. Where c holds the scale, a b
    that was dumped is a product that b c does not round: u |b| once more.
    """
    x = s.u * abs(finite(x))
    if not terms:
        return Own((1 + OF_LOG2E) * x, x, OF_LOG2E * x)
    a, b = (s.u * abs(one.held) for one in terms)
    common = OF_LOG2E * x + 2 * b
    return Own(x + a + common, s.xp.sqrt(x * x + a * a), common)


def added(a: Operand, b: Operand) -> dict[str, Any]:
    """The terms of a + b, of which each may be a sum that nobody saw; a 0 is no term."""
    if 0 in (a.bits, b.bits):
        one = a if b.bits == 0 else b
        return {"additions": one.additions, "terms": one.terms, "size": one.magnitude, "of_squares": one.squares,
                "attributed": one.attributed}  # fmt: skip
    squares = a.squares + b.squares
    return {"additions": a.additions + b.additions + 1, "terms": a.terms + b.terms, "size": a.magnitude + b.magnitude,
            "of_squares": squares, "attributed": a.attributed + b.attributed}  # fmt: skip


def of_sum(s: Site) -> Own:
    """One rounding, or none where an operand is 0. Where an operand is a sum that nobody saw its terms may be added in
    any order: g(n) of all sizes, less what is in the operands' errors already. Where it is a product whose factors the
    contract rounds, as of the first token that is added to a state of 0, this is lost here.
    """
    a, b = s.reads
    alone = 0 in (a.bits, b.bits)
    if alone and not (a.rounded or b.rounded):
        return Own()
    if not (a.additions or b.additions or a.rounded or b.rounded or s.feeds):
        return rounded(1)(s)
    y, c = s.held, s.contract
    whole = Operand(y, **added(a, b))
    worst = c.sum(whole.additions) * whole.size + c.floor * (y != 0)
    for one in (a, b):
        if one.additions:
            worst = worst - c.sum(one.additions) * one.size
    squares, common = s.u**2 * s.xp.maximum(whole.prefixes(y) - whole.attributed, 0.0 * y), 0.0
    squares = squares + c.floor**2 * (y != 0)
    if alone:
        worst, squares = 0.0 * abs(y), 0.0 * abs(y)
    for one in (a, b):
        if one.rounded:
            relative, cut = s.operand_error(one.rounded)
            lost = relative * abs(one.held) + one.lost
            worst = worst + lost
            common, squares = (common + lost, squares) if cut else (common, squares + lost * lost)
    return Own(worst, s.xp.sqrt(squares), common)


def held(s: Site) -> Own:
    """Of a result whose bits float32 holds: nothing, unless it is too small for them."""
    if s.normal:
        return Own()
    size, floor = abs(s.held), s.contract.floor
    small = (size < floor) & (size > 0)
    if not bool(s.xp.any(small)):
        return Own()
    lost = s.xp.where(small, floor, 0.0 * size)
    return Own(lost, lost)


def of_product(s: Site) -> Own:
    """One rounding, none where float32 holds the product."""
    bits = [one.bits for one in s.reads]
    return held(s) if min(bits) <= 1 or sum(bits) <= FLOAT32_BITS else rounded(1)(s)


def product_bits(bits: tuple[int, ...]) -> int:
    """Significant bits of a product, at most: a power of two adds none."""
    a, b = bits
    return 0 if 0 in bits else max(bits) if 1 in bits else min(a + b, 53)


def of_quotient(s: Site) -> Own:
    """A division; by a constant one rounding, by a power of two none."""
    by = s.reads[1]
    if by.bits <= 1:
        return held(s)
    return rounded(1.0 if by.value.ndim == 0 and by.bits < 53 else s.contract.division)(s)


def of_power(s: Site) -> Own:
    """4 ulps of pow (CUDA programming guide, table of ulps: powf 4)."""
    return function(4.0)(s)


def of_log_sum(s: Site) -> Own:
    """The sum rounded; exp, 1 + and log of what is added to the larger operand."""
    y = s.held
    added = finite(s.y - s.xp.maximum(*s.x))
    lost = s.u * (abs(y) + 2 * (s.contract.exp_ulps + LOG_ULPS + 1) * added) + s.contract.floor
    if s.contract.exp == "base2":
        lost = lost + in_base_2(s, s.x[0] - s.x[1]).worst * added
    return Own(lost, lost)


def of_circle(s: Site) -> Own:
    """2 ulps of the result, and near a root 2^-24 of the reduction of the argument: 4 u in all of at most 1."""
    lost = 4 * s.u * s.xp.maximum(abs(s.held), s.xp.minimum(abs(s.reads[0].held), 0.0 * s.held + 2.0**-3))
    return Own(lost, lost, 0.0, 2 * s.u)


def of_loss(s: Site) -> Own:
    """So many losses of each a size that the reference says, whatever their signs."""
    each, times = abs(finite(s.x[1])), s.attributes["times"]
    return Own(times * each, times**0.5 * each)
