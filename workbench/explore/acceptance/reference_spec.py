"""What a function must do that a plain reference says: sizes of its inputs, dtypes, and what it promises."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from workbench.explore.draw import Among, Between
from workbench.floats import DTYPES
from workbench.operations.reference.case import ReferenceCase, axes_of
from workbench.operations.reference.inputs import Given
from workbench.operations.reference.traced import References
from workbench.refusal import Refusal, unknown

#: sizes of an axis of which nothing is said, in units of its default, and so many more: past the end of a second tile
#: of the size for which the default was chosen
WIDER, MORE = 2, 1
#: cases that are drawn for the smallest of them, where no size matters
DRAWS = 3


@dataclass(frozen=True)
class ReferenceSpec:
    """What a function must do.

    `reference`, `inputs`: as of `workbench.diff`. `axes`: keyword of `inputs` -> a size, or a range
    (`draw.Between`, `draw.Among`) of which any may come; none: keywords with a whole number as default, from 1 to
    twice that and one more. `without`: families that the function need not stand. `fixed`: inputs whose values no
    family changes, such as a mean that belongs to another input.
    """

    reference: References
    inputs: Given
    axes: Mapping[str, Any] = field(default_factory=dict)
    dtype: Any = "float32"  #: a name, or several (`draw.Among`)
    arrays: str = ""  #: a library, in place of that of the inputs; empty: none
    device: str | None = None
    contract: str | None = None  #: words, as --contract takes them
    contiguous: bool = False  #: whether arrays always lie contiguously
    alignment: int = 1  #: of their starts, in bytes; 1: that of an element
    fresh: bool = False  #: whether a call may not overwrite the results of the one before
    without: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()

    def checked(self, where: str) -> "ReferenceSpec":
        """The spec with a range for each axis; Refusal for axes that `inputs` does not take, and for other dtypes."""
        usual = axes_of(self.inputs)
        if others := [name for name in self.axes if usual and name not in usual]:
            raise Refusal(unknown(f"{where}: inputs take no axis", others[0], usual))
        if wrong := [name for name in self.dtypes if name not in DTYPES]:
            raise Refusal(f"{where}: dtype must be one of {', '.join(DTYPES)}; got {wrong[0]!r}")
        return (
            self if self.axes else replace(self, axes={name: Between(1, WIDER * n + MORE) for name, n in usual.items()})
        )

    @property
    def usual(self) -> ReferenceCase:
        """The case of the sizes that are defaults of `inputs`, where they may come."""
        axes = axes_of(self.inputs)
        sizes = {name: sizes_of(range_) for name, range_ in self.axes.items()}
        return ReferenceCase(
            {name: max((n for n in of if n <= axes.get(name, n)), default=of[0]) for name, of in sizes.items()},
            self.dtypes[0],
        )

    @property
    def dtypes(self) -> tuple[Any, ...]:
        """The names of the dtypes that may come."""
        return self.dtype.values if isinstance(self.dtype, Among) else (self.dtype,)

    @property
    def varying(self) -> dict[str, list[int]]:
        """The axes that have several sizes -> these, in order."""
        several = {name: sizes_of(range_) for name, range_ in self.axes.items()}
        return {name: sizes for name, sizes in several.items() if len(sizes) > 1}

    def draw(self, random: np.random.Generator, of: Callable[[list[int]], list[int]] | None = None) -> ReferenceCase:
        """A random case; `of`: which sizes are drawn from those that an axis has. Without it the smallest of a few."""
        drawn = [self._draw(random, of) for _ in range(1 if of else DRAWS)]
        return min(drawn, key=lambda case: prod(case.axes.values()))

    def _draw(self, random: np.random.Generator, of: Callable[[list[int]], list[int]] | None) -> ReferenceCase:
        axes = {}
        for name, range_ in self.axes.items():
            sizes = sizes_of(range_)
            chosen = (of(sizes) if of else sizes) or sizes
            axes[name] = int(chosen[int(random.integers(len(chosen)))])
        dtype = self.dtypes[int(random.integers(len(self.dtypes)))]
        return ReferenceCase(axes, dtype, int(random.integers(2**31)))


def sizes_of(range_: Any) -> list[int]:
    """Every size of a range, in order."""
    if isinstance(range_, Between):
        return [*range(range_.low, range_.high + 1)]
    return sorted(range_.values) if isinstance(range_, Among) else [int(range_)]
