"""What a rule sees of one node while a pass goes over the graph."""

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from workbench.floats import array_namespace
from workbench.reference.bound import deviations
from workbench.reference.graph.contract import BITS, OPERANDS, Contract
from workbench.reference.graph.error import EXACT, Amount, Error
from workbench.reference.graph.node import Node

#: significant bits of float32: what has no more is held exactly
FLOAT32_BITS = 24


@dataclass(frozen=True, eq=False)
class Operand:
    """A value that a node reads, and what is known of it."""

    value: Any
    error: Error = EXACT
    bits: int = 53  #: significant bits, where every value is known to have no more
    additions: int = 0  #: of a sum that nobody saw: how many operations a kernel may do in another order
    terms: int = 1  #: of such a sum
    size: Amount = 0.0  #: what its terms add up to in magnitude
    of_squares: Amount = 0.0  #: and what their squares add up to
    attributed: Amount = 0.0  #: sum of squares of prefixes, in unit roundoffs, that is in its error already
    #: of a product that is about to be summed: operands of it that the contract may round
    rounded: int = 0
    contracted: bool = False  #: whether it is such a product
    lost: Amount = 0.0  #: bound of what those operands lose where the contract's dtype has no normal numbers
    elements: int = 0  #: of the whole value, where this is a part of it

    @cached_property
    def held(self) -> Any:
        """The value, 0 where it is not finite."""
        return finite(self.value)

    @property
    def magnitude(self) -> Any:
        """What the terms of it add up to: of no sum, its own size."""
        return self.size if self.terms > 1 else abs(self.held)

    @property
    def squares(self) -> Any:
        """What the squares of the terms add up to."""
        return self.of_squares if self.terms > 1 else self.held**2

    def prefixes(self, total: Any) -> Any:
        """The sum of squares of all prefixes of its terms, in unknown order, in unit roundoffs: the square of a prefix
        of i terms is on average i sum t^2 / n (1 - i/n) + (i/n)^2 S^2, which over all i is n (sum t^2 / 2 + S^2 / 3) at
        most.
        """
        return self.terms * (self.squares / 2 + total * total / 3) if self.terms > 1 else 0.0


@dataclass(frozen=True, eq=False)
class Site:
    """A node with its value and what it reads."""

    node: Node
    reads: tuple[Operand, ...]
    y: Any
    contract: Contract
    looks: tuple[Operand, ...] = ()  #: what its bound alone looks at
    in_place: bool = False  #: whether it may write to what it reads first
    feeds: bool = False  #: whether it is a sum that no dump shows, and a later sum reads
    chance: bool = False  #: whether errors are drawn at random: no worst case is needed but that of common errors
    is_normal: bool | None = None  #: of a part, what is `normal` of the whole

    @cached_property
    def xp(self) -> Any:
        """The namespace of its arrays."""
        return array_namespace(self.y)

    @cached_property
    def x(self) -> tuple[Any, ...]:
        """The values that it reads."""
        return tuple(one.value for one in self.reads)

    @cached_property
    def held(self) -> Any:
        """y, 0 where it is not finite."""
        return finite(self.y)

    @cached_property
    def normal(self) -> bool:
        """Where errors are drawn: whether no number of y is so small that what is flushed to 0 is more than a rounding
        of it.
        """
        if not self.chance or self.is_normal is not None:
            return bool(self.is_normal)
        size, least = abs(self.y), self.contract.floor / self.contract.unit
        if not prod(size.shape) or bool(self.xp.min(size) >= least):
            return True
        return not bool(self.xp.any((size < least) & (size > 0)))

    @cached_property
    def steepness(self) -> dict[int, Amount]:
        """|d y / d x| of operands, as far as a rule has asked for it."""
        return {}

    @cached_property
    def truth(self) -> Any:
        """The first operand as truths."""
        x = self.x[0]
        return x if x.dtype == self.xp.bool else x != 0

    @property
    def unshared(self) -> tuple[bool, ...]:
        """Of a node whose elements have roundings of their own."""
        return (False,) * self.y.ndim

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """What else the primitive takes."""
        return dict(self.node.attributes)

    @property
    def exact(self) -> bool:
        """Whether nothing that it reads is off."""
        return all(one.error is EXACT for one in self.reads)

    @property
    def u(self) -> float:
        """Unit roundoff of elementwise work."""
        return self.contract.unit

    def operand_error(self, rounded: int) -> tuple[float, bool]:
        """Relative error of a product of which so many operands may be rounded; whether they are cut off."""
        one, cut = OPERANDS[self.contract.operands]
        return (1 + one) ** rounded - 1, cut

    def small(self, x: Any, rounded: bool) -> Any | None:
        """What an operand loses, absolutely, where it is too small for its digits; None where nothing is."""
        below, lost = self.contract.least
        if not (rounded and lost):
            return None
        found = (x != 0) & (abs(x) < below)
        return lost * self.xp.astype(found, self.xp.float64) if bool(self.xp.any(found)) else None

    def rounds(self, bits: int) -> bool:
        """Whether the contract may round an operand of so many significant bits."""
        return OPERANDS[self.contract.operands][0] > 0 and bits > BITS[self.contract.operands]


def finite(x: Any) -> Any:
    """x, 0 where it is infinite or NaN."""
    xp = array_namespace(x)
    if bool(xp.isfinite(xp.sum(x))):  # one pass over it; a sum that overflows is looked at again
        return x
    held = xp.isfinite(x)
    return x if bool(xp.all(held)) else xp.where(held, x, 0.0)


def likely(one: Operand, elements: int | None = None) -> Amount:
    """How far an operand may be off all but surely, as the largest of so many errors; None: of its own."""
    if one.error is EXACT:
        return 0.0
    xp = array_namespace(one.value)
    found = one.error.common
    if not isinstance(one.error.variance, float):
        found = found + deviations(elements or one.elements or prod(one.value.shape)) * one.error.variance**0.5
    return xp.minimum(xp.asarray(found), xp.asarray(one.error.worst))
