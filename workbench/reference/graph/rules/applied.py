"""A function of single elements of which only its values are known, such as a score_mod of the user's."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from workbench.reference.graph.error import Error, Own
from workbench.reference.graph.shapes import spread
from workbench.reference.graph.site import Site, finite

#: what it loses, in ulps of what it makes or reads: as of a contract of attention
ULPS = 4.0


@dataclass(frozen=True)
class Applied:
    """f(x), 0 where that is not finite."""

    words: str = "f({0})"

    def value(self, x: Any, *, f: Callable[[Any], Any], reads: bool) -> Any:
        return finite(f(x))

    def own(self, s: Site) -> Own:
        """ULPS of what it makes and, where it `reads` with losses, of what it reads. Where not, of what it makes of 0,
        and of 1: a derivative may be a difference of numbers as large as it is elsewhere, such as 1 - tanh^2.
        """
        xp, x = s.xp, s.reads[0].held
        other = abs(x) if s.attributes["reads"] else xp.maximum(abs(finite(s.attributes["f"](0.0 * x))), 0.0 * x + 1.0)
        lost = 2 * s.u * ULPS * xp.maximum(abs(s.held), other) + s.contract.floor
        return Own(lost, 0.0, lost)

    def error(self, s: Site) -> Error:
        """Nothing of it averages out."""
        worst = self.own(s).worst + self.beyond(s)
        return Error(worst, 0.0, worst)

    def beyond(self, s: Site) -> Any:
        """As far as f is off at the ends of the interval of its argument, and at their quarters: of a function that is
        monotone between these. It is all of it, since nobody knows a derivative.
        """
        x, f = s.x[0], s.attributes["f"]
        off, found = spread(s.reads[0].error.worst, x), 0.0 * s.held
        for part in (-1.0, -0.5, 0.5, 1.0):
            found = s.xp.maximum(found, abs(finite(f(x + part * off)) - s.held))
        return found

    def adjoint(self, s: Site, i: int, g: Any) -> Any:
        return 0.0 * g

    def bits(self, s: Site) -> int:
        return 53


APPLIED: Mapping[str, Any] = {"applied": Applied()}
