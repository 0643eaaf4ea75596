"""What a node rounds itself, and how far its value may be off in all: bounds of `reference.bound`, with sources."""

from typing import Any, NamedTuple

Amount = Any  #: a float64 array that broadcasts to the node's shape, or a float


class Own(NamedTuple):
    """Bounds of the roundings of one node."""

    worst: Amount = 0.0  #: of |rounding|
    random: Amount = 0.0  #: the same of what is independent from element to element
    common: Amount = 0.0  #: of what is not, and may have any pattern, as truncation
    alike: float = 0.0  #: relative error that all elements of the call share
    #: where roundings are drawn: their bound as a share of the value, in the place of `random`
    relative: float = 0.0
    exact: Any = None  #: where such roundings are none: an array of truths, or places of the flat array

    @property
    def is_none(self) -> bool:
        """Whether nothing is rounded."""
        return none(self.random) and none(self.common) and not self.alike and not self.relative


class Error(NamedTuple):
    """Bounds of the error of a node's value; the statistical one is common + lambda sqrt(variance)."""

    worst: Amount = 0.0
    variance: Amount = 0.0  #: square of the bound of what is independent
    common: Amount = 0.0  #: bound of what is not
    sources: int = 0  #: nodes whose independent roundings are in `variance`, a bit each
    #: axes along which the same rounding is in several elements
    shared: tuple[bool, ...] = ()
    open: int = 0  #: nodes that leave some element without a bound, a bit each: an open choice, a division by about 0


#: of what was given; known by identity
EXACT = Error()


def none(x: Amount) -> bool:
    """Whether it is the 0 of what has no error."""
    return isinstance(x, float) and x == 0.0


def plus(a: Amount, b: Amount) -> Amount:
    """a + b, no array made for a 0."""
    return b if none(a) else a if none(b) else a + b


def grown(a: Amount, factor: float, b: Amount) -> Amount:
    """factor a + b."""
    if none(a) or none(b):
        return b if none(a) else a if factor == 1.0 else factor * a
    if hasattr(b, "add") and hasattr(a, "add"):  # of torch, in one pass
        return b.add(a, alpha=factor)
    return a + b if factor == 1.0 else factor * a + b
