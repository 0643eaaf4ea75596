"""What budgets are computed from: the inputs, the values of all stages, and the kernel's promises."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from workbench.case.contract import Contract
from workbench.case.tiling import Tiling
from workbench.reference.budget.losses import Losses

Arrays = Mapping[str, np.ndarray]

#: a score or a sum below this is as good as zero, and a bound as large as it still means something
NEGLIGIBLE = 2.0**-100


@dataclass(frozen=True)
class Budget:
    """Bounds of one stage, of |actual - expected|; float64 arrays of the stage's shape, NaN where an input is NaN."""

    bound: np.ndarray  #: never exceeded by a kernel that keeps its contract
    statistical: np.ndarray  #: all but never exceeded, if roundings are independent; at most `bound`
    size: np.ndarray | float  #: infinite, or what the bound is measured against: a bound as large says nothing


@dataclass(frozen=True)
class Problem:
    """One run's values, all in float64; q [b, h, q, d], k and v [b, kv_heads, k, d]; -inf and NaN are allowed in
    stages.
    """

    algorithm: str  #: "flash" or "split_k"
    contract: Contract
    losses: Losses
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    scale: float
    bias: np.ndarray | None  #: added to scaled scores, [b, h, q, k]
    exact_products: bool  #: products of q and k are exact in float32 (inputs of at most 12 bits)
    tiling: Tiling  #: the key tiles, all keys in one where they are not known
    hidden_maxima: bool  #: row_max is not what the kernel had before the last tile of a split
    computed: Arrays  #: every stage as the reference computes it from `given`
    given: Arrays  #: the dumped stages
    elements: Mapping[str, int | None]  #: size of each whole stage, of which these are a part; None: of `deviations`
    statistics: bool  #: whether statistical bounds are wanted; without them they are the worst case
    input_errors: Arrays  #: bounds of |what the kernel read - q, k or v|, of those that nobody saw

    @property
    def splits(self) -> int:
        """How many splits the keys have."""
        return len(self.tiling.splits)

    @cached_property
    def seen(self) -> Arrays:
        """What later stages read: the dumped values where there are any, the computed ones elsewhere."""
        return {**self.computed, **self.given}

    def input_error(self, name: str) -> np.ndarray:
        """The bound of how far q, k or v may be from what the kernel read; 0 where that was seen."""
        value: np.ndarray = getattr(self, name)
        return self.input_errors.get(name, 0.0 * value)

    def declared(self, field: str) -> bool:
        """Whether the kernel told a field of its contract."""
        return field not in self.contract.assumed

    def predicted(self, cast: str) -> bool:
        """Whether the reference can make the `probs` or `partials` cast itself: dtype and rounding are declared."""
        return (
            self.declared(f"{cast}_dtype")
            and self.declared(f"{cast}_rounding")
            and getattr(self.contract, f"{cast}_rounding") != "any"
        )

    @property
    def casts_normalised(self) -> bool:
        """Whether probs may be divided by row_sum before they are cast, so that nobody knows what is rounded."""
        return self.contract.probs_normalised is not False or self.contract.normalisation == "lse"

    @property
    def cast_aware(self) -> bool:
        """Whether the reference casts probs as the kernel does: the cast and the tiles are declared, so that an error
        only counts where it takes probs over a rounding boundary.
        """
        known = self.contract.block_k is not None and (self.algorithm == "flash" or self.contract.splits is not None)
        known = known and not self.casts_normalised
        return known and not self.hidden_maxima and self.contract.probs_dtype != "float32" and self.predicted("probs")
