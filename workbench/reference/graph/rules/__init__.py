"""One rule for each primitive: value, own roundings, how errors of operands move it, reverse rule, words."""

from collections.abc import Mapping
from typing import Any, Protocol

from workbench.reference.graph.error import Amount, Own
from workbench.reference.graph.rules.applied import APPLIED
from workbench.reference.graph.rules.choices import CHOICES
from workbench.reference.graph.rules.elementwise import ELEMENTWISE
from workbench.reference.graph.rules.moves import MOVES
from workbench.reference.graph.rules.places import PLACES
from workbench.reference.graph.rules.sums import SUMS
from workbench.reference.graph.site import Site


class Rule(Protocol):
    """What is known of a primitive."""

    words: str

    def value(self, *x: Any, **attributes: Any) -> Any:
        """The result in float64."""

    def own(self, s: Site) -> Own:
        """Bounds of its own roundings."""

    def linear(self, s: Site, i: int, e: Any) -> Any:
        """|d y / d x| times errors e of operand i."""

    def squared(self, s: Site, i: int, v: Any) -> Any:
        """The same of squares of independent errors."""

    def adjoint(self, s: Site, i: int, g: Any) -> Any:
        """d / d x of operand i, from g = d / d y."""

    def beyond(self, s: Site) -> Amount:
        """What operands' worst errors may move y by, beyond first order."""

    def grows(self, s: Site) -> float:
        """Relative growth of the operands' errors by the node's own roundings."""

    def alike(self, s: Site, i: int) -> bool:
        """Whether errors that elements of operand i share add up in one element of y."""

    def shared(self, s: Site, i: int) -> tuple[bool, ...]:
        """Axes of y along which one rounding of operand i is in several elements."""

    def bits(self, s: Site) -> int:
        """Significant bits of y at most."""


#: primitive -> its rule; a primitive without one is refused
RULES: Mapping[str, Any] = {**ELEMENTWISE, **SUMS, **APPLIED, **MOVES, **CHOICES, **PLACES}
#: of a node that is no primitive: what was put in, and values that the reference holds itself
INPUT, CONSTANT = "input", "constant"
