"""What a kernel promises of the roundings at one site of an operation."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from workbench.floats import array_namespace, round_to, smallest_subnormal, ulp, unit_roundoff


def gamma(n: int, u: float) -> float:
    """g(n) = n u / (1 - n u), the relative error of n operations that each lose u (Higham 2002, section 3.1); inf from
    n u = 1 on.
    """
    return n * u / (1 - n * u) if n * u < 1 else np.inf


@dataclass(frozen=True)
class Arithmetic:
    """How results of a site are rounded, and how its sums are added."""

    dtype: str = "float32"  #: to which each result and each partial sum is rounded
    rounding: str = "nearest"  #: one of `promises.ROUNDINGS`
    accumulation: str = "nearest"  #: one of `promises.ACCUMULATIONS`
    ulps: float | None = None  #: of a function in units of that dtype; None: what the step says
    factor: float = 1.0  #: power of two by which results are multiplied where they are rounded
    saturates: bool = False  #: whether what is too large becomes the largest value
    least: float = 0.0  #: below this a cast may lose all; 0: below the smallest subnormal of its dtype

    @property
    def wide(self) -> bool:
        """Whether it is float32, so that nothing is cast."""
        return self.dtype == "float32"

    @property
    def unit(self) -> float:
        """Unit roundoff u of one operation."""
        return unit_roundoff(self.dtype)

    @property
    def floor(self) -> float:
        """What one operation may lose to underflow."""
        return smallest_subnormal(self.dtype) / 2

    def sum(self, n: int) -> float:
        """Relative error of n operations in any order, of the sum of magnitudes."""
        return gamma(n, self.unit)

    def cast(self) -> tuple[float, float]:
        """Relative and absolute error of a cast that may happen: half an ulp, or a whole one where it may truncate."""
        whole = 1 if self.rounding == "nearest" else 2
        return whole * self.unit, whole * max(smallest_subnormal(self.dtype), self.least) / 2 / self.factor

    def rounded(self, x: Any, toward_zero: bool | None = None) -> Any:
        """`x` after the cast; toward zero or not, where that is not what the rounding says."""
        cut = self.rounding == "toward-zero" if toward_zero is None else toward_zero
        x = x if self.factor == 1 else x * self.factor
        made = round_to(x, self.dtype, toward_zero=cut, saturates=self.saturates)
        return made if self.factor == 1 else made / self.factor

    def reach(self, value: np.ndarray, bound: np.ndarray | float) -> np.ndarray:
        """Distance from `value`, known to `bound`, to what it may be after the cast.

        Rounding is monotone, so the ends of the interval decide; where it may be any rounding, it is within an ulp, and
        0 stays 0. What is too large for the dtype is rounded as if it had more exponents: whether an infinity is right
        is not for a bound to say.
        """
        if self.rounding == "any":
            end = abs(value) + bound
            return bound + array_namespace(value).where(end == 0, 0.0, ulp(end, self.dtype))
        up, down = (self._spaced(value + end) for end in (bound, -bound))
        return array_namespace(value).maximum(up - value, value - down)

    def flips(self, value: np.ndarray, bound: np.ndarray | float) -> np.ndarray:
        """As `reach`, from the rounding of `value`: 0 unless the interval holds a rounding boundary."""
        if self.factor != 1:
            return replace(self, factor=1.0).flips(value * self.factor, bound * self.factor) / self.factor
        here, up, down = (self._spaced(value + end) for end in (0.0, bound, -bound))
        return array_namespace(value).maximum(up - here, here - down)

    def _spaced(self, x: np.ndarray) -> np.ndarray:
        xp, spacing = array_namespace(x), ulp(x, self.dtype)
        return (xp.trunc if self.rounding == "toward-zero" else xp.round)(x / spacing) * spacing


FLOAT32 = Arithmetic()
