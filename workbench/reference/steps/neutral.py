"""Steps of any operation: sums of products over axes, functions of elements, casts. Axes are letters, as of einsum.
They give values alone: budgets of an operation are of its plain code.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.reference.stage import Ref


def letters(at: Any, ref: str) -> str:
    """The axes of what `ref` names as a step sees it: of a running state without its tiles."""
    return str(at.axes(ref)).replace("t", "")


def spread(at: Any, ref: str, x: Any) -> Any:
    """What belongs to `ref`, shaped to broadcast over the axes of the stage that is visited."""
    own, wanted = letters(at, ref), letters(at, at.name)
    return x.reshape([x.shape[own.index(axis)] if axis in own else 1 for axis in wanted])


@dataclass(frozen=True)
class Sum:
    """Products of what is read, summed over the axes that the result lacks: any contraction."""

    spec: str  #: as of einsum: "nd,nd->n"
    of: tuple[str, ...]

    @property
    def also(self) -> tuple[str, ...]:
        """What it reads."""
        return self.of

    def value(self, at: Any) -> np.ndarray:
        return np.einsum(self.spec, *map(at, self.of))

    @property
    def words(self) -> str:
        return f"einsum('{self.spec}', {', '.join(f'{{also {ref}}}' for ref in self.of)})"


@dataclass(frozen=True)
class Map:
    """A function of elements."""

    of: tuple[str, ...]
    function: Callable[..., Any]
    said: str  #: in words, with what is read in braces by its number: "{0} * {1}"

    @property
    def also(self) -> tuple[str, ...]:
        """What it reads."""
        return self.of

    def value(self, at: Any) -> np.ndarray:
        return np.asarray(self.function(*(spread(at, ref, at(ref)) for ref in self.of)))

    @property
    def words(self) -> str:
        return self.said.format(*(f"{{also {ref}}}" for ref in self.of))


@dataclass(frozen=True)
class Total:
    """Some terms, each with its sign, added up element by element in any order."""

    of: tuple[str, ...]
    signs: tuple[float, ...]

    @property
    def also(self) -> tuple[str, ...]:
        """What it reads."""
        return self.of

    def value(self, at: Any) -> np.ndarray:
        return np.asarray(sum(sign * spread(at, ref, at(ref)) for sign, ref in zip(self.signs, self.of, strict=True)))

    @property
    def words(self) -> str:
        signs = ("-" if sign < 0 else "+" for sign in self.signs)
        return " ".join(f"{sign} {{also {ref}}}" for sign, ref in zip(signs, self.of, strict=True)).removeprefix("+ ")


@dataclass(frozen=True)
class CastTo:
    """What is read, stored in fewer bits."""

    of: Ref
    dtype: str

    def value(self, at: Any) -> np.ndarray:
        return np.asarray(at(self.of))

    @property
    def words(self) -> str:
        return f"{{of}} in {self.dtype}"


def product(a: str, b: str) -> Map:
    """a * b."""
    return Map((a, b), np.multiply, "{0} * {1}")


def difference(a: str, b: str) -> Map:
    """a - b."""
    return Map((a, b), np.subtract, "{0} - {1}")


def scaled(a: str, factor: float) -> Map:
    """A number times a."""
    return Map((a,), lambda x: factor * x, f"{factor:g} * {{0}}")
