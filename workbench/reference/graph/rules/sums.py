"""Sums, in any order: of the elements along axes, of all before each, and of products."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from array_api_compat import device

from workbench.floats import array_namespace
from workbench.reference.arithmetic import gamma
from workbench.reference.graph.contract import ADDITIONS
from workbench.reference.graph.error import Amount, Own, none
from workbench.reference.graph.rules.roundings import product_bits
from workbench.reference.graph.shapes import spread, to_shape
from workbench.reference.graph.site import FLOAT32_BITS, Operand, Site


def _axes(s: Site) -> tuple[int, ...]:
    axis, ndim = s.attributes["axis"], s.x[0].ndim
    return tuple(range(ndim)) if axis is None else tuple(a % ndim for a in axis)


@dataclass(frozen=True)
class Sum:
    """The sum along axes."""

    words: str = "sum of {0}"

    def value(self, x: Any, *, axis: tuple[int, ...] | None, keepdims: bool = False) -> Any:
        return array_namespace(x).sum(x, axis=axis, keepdims=keepdims)

    def terms(self, s: Site) -> dict[str, Any]:
        """The terms of it, those of sums that nobody saw among them."""
        x, n = s.reads[0], prod(s.x[0].shape[a] for a in _axes(s))
        parts = (x.magnitude, x.squares, x.attributed)
        size, squares, attributed = (
            one if isinstance(one, float) else self.value(spread(one, x.value), **s.attributes) for one in parts
        )
        return {"additions": n * (x.additions + 1) - 1, "terms": n * x.terms, "size": size, "of_squares": squares,
                "attributed": attributed}  # fmt: skip

    def own(self, s: Site) -> Own:
        """g(n - 1) of the sizes, less what the terms have of it already."""
        x, y, c = s.reads[0], s.held, s.contract
        u, cut = ADDITIONS[c.accumulate] if x.contracted else (s.u, False)
        floor = c.floor_of_addition if x.contracted else c.floor
        whole = Operand(y, **self.terms(s))
        # a product that is added in fewer bits is rounded to them
        products = int(u > s.u and not cut)
        worst = gamma(max(whole.additions + products, 0), u) * whole.size + whole.terms * floor * (whole.size != 0)
        if x.additions:
            worst = worst - gamma(x.additions, s.u) * whole.size
        variance = u * u * (s.xp.maximum(whole.prefixes(y) - whole.attributed, 0.0 * y) + products * whole.of_squares)
        variance = variance + whole.terms * floor**2
        if not none(x.lost):
            worst = worst + self.value(spread(x.lost, x.value), **s.attributes)
            variance = variance + self.value(spread(x.lost, x.value) ** 2, **s.attributes)
        return of_operands(s, x.rounded, worst, variance, whole.size, whole.of_squares, cut)

    def linear(self, s: Site, i: int, e: Any) -> Any:
        return self.value(spread(e, s.x[0]), **s.attributes)

    squared = linear

    def adjoint(self, s: Site, i: int, g: Any) -> Any:
        if not s.attributes.get("keepdims"):
            kept = [1 if a in _axes(s) else n for a, n in enumerate(s.x[0].shape)]
            g = s.xp.reshape(g, tuple(kept))
        return s.xp.broadcast_to(g, s.x[0].shape)

    def beyond(self, s: Site) -> Amount:
        return 0.0

    def grows(self, s: Site) -> float:
        return s.contract.sum(prod(s.x[0].shape[a] for a in _axes(s)) + 1)

    def alike(self, s: Site, i: int) -> bool:
        return any(s.reads[0].error.shared[a] for a in _axes(s))

    def shared(self, s: Site, i: int) -> tuple[bool, ...]:
        axes, of_x = _axes(s), s.reads[0].error.shared
        if s.attributes.get("keepdims"):
            return tuple(a not in axes and one for a, one in enumerate(of_x))
        return tuple(one for a, one in enumerate(of_x) if a not in axes)

    def bits(self, s: Site) -> int:
        return 53


@dataclass(frozen=True)
class Running:
    """The sums of all elements up to each, along one axis."""

    words: str = "running sum of {0}"

    def value(self, x: Any, *, axis: int) -> Any:
        xp = array_namespace(x)
        return xp.cumulative_sum(x, axis=axis)

    def own(self, s: Site) -> Own:
        """As of a sum, of as many terms as an element has."""
        x, xp = s.reads[0].held, s.xp
        axis = s.attributes["axis"] % x.ndim
        places = [1] * x.ndim
        places[axis] = -1
        n = xp.reshape(xp.arange(x.shape[axis], dtype=xp.float64, device=device(x)), tuple(places))
        size, squares = self.value(abs(x), axis=axis), self.value(x * x, axis=axis)
        u, y = s.u, s.held
        worst = n * u / (1 - n * u) * size + (n + 1) * s.contract.floor * (size != 0)
        floor = ((n + 1) * s.contract.floor) ** 2 * (size != 0)
        return Own(worst, xp.sqrt(u * u * (n + 1) * (n > 0) * (squares / 2 + y * y / 3) + floor))

    def linear(self, s: Site, i: int, e: Any) -> Any:
        return self.value(spread(e, s.x[0]), **s.attributes)

    squared = linear

    def adjoint(self, s: Site, i: int, g: Any) -> Any:
        axis = s.attributes["axis"]
        return s.xp.flip(self.value(s.xp.flip(g, axis=axis), axis=axis), axis=axis)

    def beyond(self, s: Site) -> Amount:
        return 0.0

    def grows(self, s: Site) -> float:
        return s.contract.sum(s.x[0].shape[s.attributes["axis"]] + 1)

    def alike(self, s: Site, i: int) -> bool:
        return s.reads[0].error.shared[s.attributes["axis"]]

    def shared(self, s: Site, i: int) -> tuple[bool, ...]:
        """What an element lost all later ones lost too."""
        axis = s.attributes["axis"] % s.y.ndim
        return tuple(one or a == axis for a, one in enumerate(s.reads[0].error.shared))

    def bits(self, s: Site) -> int:
        return 53


@dataclass(frozen=True)
class Contraction:
    """Matrix products: sums of products over the last axis of one operand and the last but one of the other."""

    words: str = "{0} @ {1}"

    def value(self, a: Any, b: Any) -> Any:
        return a @ b

    def own(self, s: Site) -> Own:
        """g(n - 1), and one product where float32 does not hold it; operands as the contract says."""
        n, c, u, cut, products = self._counts(s)
        whole = Operand(s.held, **self.terms(s, sized=cut or not s.chance))
        size, squares = whole.size, whole.of_squares
        if s.contract.accumulate == "tensor-core":
            worst = gamma(max(n, 1), u) * size
        else:
            worst = gamma(n - 1 + products, u) * size
        worst = worst if none(worst) else worst + n * c.floor_of_addition * (size != 0)
        own = u * u * (whole.prefixes(whole.value) + products * squares) + n * c.floor_of_addition**2
        rounds = [s.rounds(one.bits) for one in s.reads]
        a, b = (abs(one.held) for one in s.reads)
        for lost, squared in self._small(s, rounds, a, b):
            worst, own = worst + lost, own + squared
        rounded = sum(rounds)
        return of_operands(s, rounded, worst, own, size, squares, cut)

    @staticmethod
    def _small(s: Site, rounds: list[bool], a: Any, b: Any) -> Iterator[tuple[Any, Any]]:
        """What operands lose that are too small for their digits, and the same of squares."""
        of_a, of_b = s.small(a, rounds[0]), s.small(b, rounds[1])
        if of_a is not None:
            yield of_a @ b, (of_a * of_a) @ (b * b)
        if of_b is not None:
            yield a @ of_b, (a * a) @ (of_b * of_b)

    def _counts(self, s: Site) -> tuple[int, Any, float, bool, int]:
        n = s.x[0].shape[-1]
        u, cut = ADDITIONS[s.contract.accumulate]
        narrow = u > s.u and not cut
        exact = product_bits(tuple(one.bits for one in s.reads)) <= FLOAT32_BITS
        return n, s.contract, u, cut, int(narrow or not exact)

    def terms(self, s: Site, sized: bool = True) -> dict[str, Any]:
        """The products that it adds; what they add up to in magnitude only where it is asked."""
        n, _, _, _, products = self._counts(s)
        a, b = (one.held for one in s.reads)
        size = abs(a) @ abs(b) if sized else 0.0
        return {"additions": n - 1 + products, "terms": n, "size": size, "of_squares": (a * a) @ (b * b)}

    def linear(self, s: Site, i: int, e: Any) -> Any:
        a, b = s.reads
        return spread(e, a.value) @ abs(b.held) if i == 0 else abs(a.held) @ spread(e, b.value)

    def squared(self, s: Site, i: int, v: Any) -> Any:
        a, b = (one.held for one in s.reads)
        return spread(v, a) @ (b * b) if i == 0 else (a * a) @ spread(v, b)

    def adjoint(self, s: Site, i: int, g: Any) -> Any:
        a, b = (one.held for one in s.reads)
        made = g @ s.xp.swapaxes(b, -1, -2) if i == 0 else s.xp.swapaxes(a, -1, -2) @ g
        return to_shape(made, s.x[i].shape)

    def beyond(self, s: Site) -> Amount:
        """Errors of both operands at once."""
        e, f = (one.error.worst for one in s.reads)
        if isinstance(e, float) or isinstance(f, float):
            return 0.0
        return spread(e, s.x[0]) @ spread(f, s.x[1])

    def grows(self, s: Site) -> float:
        n, c, u, _, products = self._counts(s)
        rounded = sum(s.rounds(one.bits) for one in s.reads)
        return gamma(n + products, u) + s.operand_error(rounded)[0]

    def alike(self, s: Site, i: int) -> bool:
        return s.reads[i].error.shared[-1 if i == 0 else -2]

    def shared(self, s: Site, i: int) -> tuple[bool, ...]:
        """Along rows what an element of b lost, along columns what one of a did."""
        of, x, found = s.reads[i].error.shared, s.x[i], []
        for j in range(s.y.ndim - 2):
            k = j - s.y.ndim + x.ndim
            found.append(k < 0 or (x.shape[k] == 1 and s.y.shape[j] > 1) or of[k])
        return (*found, *((of[-2], True) if i == 0 else (True, of[-1])))

    def bits(self, s: Site) -> int:
        return 53


def of_operands(s: Site, rounded: int, worst: Any, variance: Any, size: Any, squares: Any, cut: bool) -> Own:
    """The roundings of a sum of products, of which so many operands may be rounded."""
    common: Any = 0.0
    if cut:  # of sums that are cut off nothing averages out
        common, variance = worst, 0.0 * worst
    if rounded:
        relative, one_side = s.operand_error(rounded)
        worst = worst + relative * (1 + s.u) * size
        if one_side:
            common = common + relative * size
        else:
            variance = variance + relative * relative * squares
    return Own(worst, s.xp.sqrt(variance), common)


SUMS: Mapping[str, Any] = {"sum": Sum(), "cumsum": Running(), "matmul": Contraction()}
