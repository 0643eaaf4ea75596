"""Steps of any operation: sums of products over axes, functions of elements, casts. Axes are letters, as of einsum."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.reference.arithmetic import Arithmetic
from workbench.reference.bound import EXACT, NEGLIGIBLE, Bound, statistical
from workbench.reference.stage import Bounded, Ref

#: how much larger than its first order a bound of a function may be, of errors far below its argument
SECOND_ORDER = 1.01


def letters(at: Any, ref: str) -> str:
    """The axes of what `ref` names as a step sees it: of a running state without its tiles."""
    return str(at.axes(ref)).replace("t", "")


def spread(at: Any, ref: str, x: Any) -> Any:
    """What belongs to `ref`, shaped to broadcast over the axes of the stage that is visited."""
    own, wanted = letters(at, ref), letters(at, at.name)
    if isinstance(x, float):
        return x
    return x.reshape([x.shape[own.index(axis)] if axis in own else 1 for axis in wanted])


def error_of(at: Any, ref: str) -> Bound:
    """The bounds of the error of `ref` over the axes of the stage that is visited. Along an axis that `ref` lacks it is
    one error: what is independent from one element of `ref` to the next is common there, and adds up.
    """
    error = at.error(ref)
    if error is EXACT:
        return EXACT
    if {*letters(at, at.name)} - {*letters(at, ref)}:
        likely = statistical(error, at.p.elements_of(ref.lstrip("-")))
        error = Bound(error.worst, 0.0, likely)
    return Bound(*(spread(at, ref, x) for x in error))


@dataclass(frozen=True)
class Sum:
    """Products of what is read, summed over the axes that the result lacks: any contraction."""

    spec: str  #: as of einsum: "nd,nd->n"
    of: tuple[str, ...]
    site: str = ""  #: of the operation's arithmetic

    @property
    def also(self) -> tuple[str, ...]:
        """What it reads."""
        return self.of

    def value(self, at: Any) -> np.ndarray:
        return np.einsum(self.spec, *map(at, self.of))

    control = value  # in float32, where what is read is

    def magnitude(self, at: Any) -> np.ndarray:
        """The sum of the sizes of the terms."""
        return np.einsum(self.spec, *(abs(at(ref)) for ref in self.of))

    def bound(self, at: Any) -> Bounded:
        """g(n + m - 1) of the sum of n products of m factors, in any order; errors of a factor through the sizes of the
        others. Random: of each partial sum at most u times the sum of sizes, sqrt(n) of them.
        """
        arithmetic, terms = at.arithmetic(self.site), self._terms(at)
        size, roundings = self.magnitude(at), terms + len(self.of) - 1
        worst = arithmetic.sum(roundings) * size + (roundings + 1) * arithmetic.floor
        squares, common = (arithmetic.unit * size) ** 2 * roundings, (roundings + 1) * arithmetic.floor + 0.0 * size
        for moved in self._moved(at):
            worst = worst + moved.worst * (1 + arithmetic.sum(roundings))
            squares, common = squares + moved.random**2, common + moved.common
        return Bounded(Bound(worst, np.sqrt(squares), common), np.maximum(size, NEGLIGIBLE))

    def _moved(self, at: Any) -> Iterator[Bound]:
        """What the error of each factor moves the sum by."""
        sizes = [abs(at(ref)) for ref in self.of]
        for n, ref in enumerate(self.of):
            error = at.error(ref)
            if error is EXACT:
                continue
            parts = [np.zeros_like(sizes[n]) + x for x in error]
            # a factor that is far off meets others that are, too
            others = [x + (0.0 if m == n else at.error(self.of[m]).worst) for m, x in enumerate(sizes)]
            worst, common = (
                np.einsum(self.spec, *(x if m == n else others[m] for m in range(len(sizes)))) for x in parts[::2]
            )
            squares = np.einsum(self.spec, *(parts[1] ** 2 if m == n else sizes[m] ** 2 for m in range(len(sizes))))
            yield Bound(worst, np.sqrt(squares), common)

    def _terms(self, at: Any) -> int:
        """Products that are added for each element."""
        operands, result = self.spec.split("->")
        sizes = {axis: n for axes, ref in zip(operands.split(","), self.of, strict=True)
                 for axis, n in zip(axes, at(ref).shape, strict=True)}  # fmt: skip
        return int(np.prod([n for axis, n in sizes.items() if axis not in result], dtype=int))

    @property
    def words(self) -> str:
        return f"einsum('{self.spec}', {', '.join(f'{{also {ref}}}' for ref in self.of)})"


@dataclass(frozen=True)
class Map:
    """A function of elements."""

    of: tuple[str, ...]
    function: Callable[..., Any]
    slopes: tuple[Callable[..., Any], ...]  #: |derivative| by each of what is read
    said: str  #: in words, with what is read in braces by its number: "{0} * {1}"
    ulps: float = 0.5  #: of its result, all its roundings together; what is cancelled on the way is a stage of its own
    site: str = ""
    #: what an error of what is read becomes, in units of the slope, where it need not be small; None: 1.01 of itself
    grown: Callable[[Any], Any] | None = None

    @property
    def also(self) -> tuple[str, ...]:
        """What it reads."""
        return self.of

    def value(self, at: Any) -> np.ndarray:
        return np.asarray(self.function(*(spread(at, ref, at(ref)) for ref in self.of)))

    control = value

    def bound(self, at: Any) -> Bounded:
        """Its ulps, and errors of what is read times the slopes there, to first order or as far as they grow."""
        arithmetic = at.arithmetic(self.site)
        read = [spread(at, ref, at(ref)) for ref in self.of]
        value = abs(np.asarray(self.function(*read)))
        ulps = self.ulps if arithmetic.ulps is None else arithmetic.ulps
        own = 2 * arithmetic.unit * ulps * value + arithmetic.floor
        worst, squares, common = own + 0.0, own**2, 0.0 * own
        for ref, slope in zip(self.of, self.slopes, strict=True):
            error = error_of(at, ref)
            if error is not EXACT:
                moved = [self._growth(error.worst) * abs(slope(*read)) * x for x in error]
                worst, squares, common = worst + moved[0], squares + moved[1] ** 2, common + moved[2]
        return Bounded(Bound(worst, np.sqrt(squares), common))

    def _growth(self, worst: Any) -> Any:
        """How many times its first order an error up to `worst` becomes."""
        if self.grown is None:
            return SECOND_ORDER
        some = np.clip(worst, np.finfo(np.float64).tiny, 700.0)  # e^700 is a float64
        return np.maximum(self.grown(some) / some, 1.0)

    @property
    def words(self) -> str:
        return self.said.format(*(f"{{also {ref}}}" for ref in self.of))


@dataclass(frozen=True)
class Total:
    """Some terms, each with its sign, added up element by element in any order."""

    of: tuple[str, ...]
    signs: tuple[float, ...]
    site: str = ""

    @property
    def also(self) -> tuple[str, ...]:
        """What it reads."""
        return self.of

    def _terms(self, at: Any) -> list[Any]:
        return [sign * spread(at, ref, at(ref)) for sign, ref in zip(self.signs, self.of, strict=True)]

    def value(self, at: Any) -> np.ndarray:
        return np.asarray(sum(self._terms(at)))

    control = value

    def magnitude(self, at: Any) -> np.ndarray:
        """The sum of the sizes of the terms."""
        return np.asarray(sum(map(abs, self._terms(at))))

    def bound(self, at: Any) -> Bounded:
        """g(n - 1) of the sum of sizes, and the errors of the terms."""
        arithmetic, size, roundings = at.arithmetic(self.site), self.magnitude(at), len(self.of) - 1
        worst = arithmetic.sum(roundings) * size + roundings * arithmetic.floor
        squares, common = (arithmetic.unit * size) ** 2 * roundings, 0.0 * size
        for ref in self.of:
            error = error_of(at, ref)
            if error is not EXACT:
                worst, squares, common = worst + error.worst, squares + error.random**2, common + error.common
        return Bounded(Bound(worst, np.sqrt(squares), common))

    @property
    def words(self) -> str:
        signs = ("-" if sign < 0 else "+" for sign in self.signs)
        return " ".join(f"{sign} {{also {ref}}}" for sign, ref in zip(signs, self.of, strict=True)).removeprefix("+ ")


@dataclass(frozen=True)
class CastTo:
    """What is read, stored in fewer bits."""

    of: Ref
    dtype: str
    least_factor: float = 1.0  #: what is stored may be times a factor as small, and so subnormal sooner

    def value(self, at: Any) -> np.ndarray:
        return np.asarray(at(self.of))

    def bound(self, at: Any) -> Bounded:
        """Half an ulp of the dtype, and the error of what is read."""
        x, of = at(self.of), at.error(self.of)
        relative, absolute = Arithmetic(self.dtype, factor=self.least_factor).cast()
        own = relative * (abs(x) + of.worst) + absolute
        return Bounded(Bound(of.worst + own, np.sqrt(of.random**2 + own**2), of.common + 0.0 * own))

    @property
    def words(self) -> str:
        return f"{{of}} in {self.dtype}"


def product(a: str, b: str, site: str = "") -> Map:
    """a * b, rounded once."""
    return Map((a, b), np.multiply, (lambda x, y: y, lambda x, y: x), "{0} * {1}", site=site)


def difference(a: str, b: str, site: str = "") -> Map:
    """a - b, rounded once."""
    return Map((a, b), np.subtract, (one, one), "{0} - {1}", site=site)


def scaled(a: str, factor: float, ulps: float = 0.5) -> Map:
    """A number times a; `ulps`: what is lost with the number itself, too."""
    return Map((a,), lambda x: factor * x, (lambda x: abs(factor),), f"{factor:g} * {{0}}", ulps=ulps)


def one(*read: Any) -> float:
    """The slope of what is only added, or moved."""
    return 1.0
