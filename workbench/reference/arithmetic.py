"""What a kernel promises of the roundings at one site of an operation."""

from dataclasses import dataclass

import numpy as np

from workbench.floats import smallest_subnormal, unit_roundoff


@dataclass(frozen=True)
class Arithmetic:
    """How results of a site are rounded, and how its sums are added."""

    dtype: str = "float32"  #: to which each result and each partial sum is rounded
    ulps: float | None = None  #: of a function in units of that dtype; None: what the step says

    @property
    def unit(self) -> float:
        """Unit roundoff u of one operation."""
        return unit_roundoff(self.dtype)

    @property
    def floor(self) -> float:
        """What one operation may lose to underflow."""
        return smallest_subnormal(self.dtype) / 2

    def sum(self, n: int) -> float:
        """Relative error of n operations in any order: g(n) = n u / (1 - n u) of the sum of magnitudes (Higham 2002,
        section 4.2); inf from n u = 1 on.
        """
        return n * self.unit / (1 - n * self.unit) if n * self.unit < 1 else np.inf


FLOAT32 = Arithmetic()
