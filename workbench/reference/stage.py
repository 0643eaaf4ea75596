"""A stage of an attention kernel: its axes, and the step that makes it of others.

A step is a frozen record that names what it reads. It knows all about its kind of operation: the value in float64, the
same in a kernel's float32, the sizes of the terms of a sum, the error bound, and the definition in words. `walk`
interprets a table of stages; a change of one step is an edit of the table, which carries its values and bounds along.
"""

from collections.abc import Hashable
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, NamedTuple, Protocol

import numpy as np

from workbench.reference.bound import Bound

#: what a step reads: a stage, a parameter or an input; "-name": a running state after the previous tile
Ref = Annotated[str, "read"]
#: what a kernel may have read in place of something else, which only the bound allows for
Near = Annotated[str, "near"]


class Bounded(NamedTuple):
    """What a step's bound tells."""

    bound: Bound
    #: infinite, or what the bound is measured against: the sizes of the terms, beside which a bound as large is vacuous
    size: np.ndarray | float = np.inf


class Step(Hashable, Protocol):
    """One kind of operation; `at` is a `Context`, which gives what is read at one tile, or at none.

    Most steps have more of these methods: `control(at)`, the result in float32, every operation rounded to nearest, or
    as `at.mode` says (without it, the value); `bound(at)`, a `Bounded` of a kernel's error, from those of what it
    reads (without it, exact); `magnitude(at)`, of sums, the sum of the sizes of their terms.
    """

    def value(self, at: Any) -> np.ndarray:
        """The result in float64."""

    @property
    def words(self) -> str:
        """The definition, with the names of its fields in braces for what they name."""


@dataclass(frozen=True)
class Stage:
    """One intermediate of an algorithm."""

    axes: str  #: one letter an axis, outermost first, as in `stages.py`
    step: Step
    initial: float | None = None  #: of a running state, before its first tile
    begins: str = ""  #: the parameter or input with which the first split of a row begins instead
    dumped: bool = True  #: False: a parameter, which no kernel dumps, but which may be what is wrong
    #: a tighter bound of several steps in one, for runs of which nobody saw what lies between
    fused: "Step | None" = None


#: stages and parameters by name, in data-flow order
Table = dict[str, Stage]


@dataclass(frozen=True)
class Same:
    """Another stage, under a name that says what it is used for."""

    of: Ref

    def value(self, at: Any) -> np.ndarray:
        return at(self.of)

    def bound(self, at: Any) -> Bounded:
        return Bounded(at.error(self.of))

    words = "{of}"


def named(step: Step, near: bool = True) -> dict[str, str]:
    """Field -> what it names, of the fields that a step reads; with `near` also of those that its bound looks at."""
    kinds = (Ref, Near) if near else (Ref,)
    found = {one.name: getattr(step, one.name) for one in fields(step) if one.type in kinds}  # type: ignore[arg-type]
    changed = named(step.step, near) if hasattr(step, "step") else {}
    also = {f"also {ref}": ref for ref in getattr(step, "also", ())}
    return {name: ref for name, ref in (changed | also | found).items() if ref}


@cache
def reads(step: Step, near: bool = False) -> tuple[str, ...]:
    """What a step reads, in order; with `near` also what its bound looks at."""
    return tuple(dict.fromkeys(ref.lstrip("-") for ref in named(step, near).values()))
