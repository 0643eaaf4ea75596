"""What the stages of a run are computed from: the table, the inputs, what was dumped, and the kernel's promises."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from workbench.case.contract import Contract
from workbench.case.promises import BY_LSE
from workbench.case.stages import INPUT_AXES
from workbench.case.tiling import Tiling
from workbench.reference.arithmetic import Arithmetic
from workbench.reference.losses import Losses
from workbench.reference.sites import sites_of
from workbench.reference.stage import Table

Arrays = Mapping[str, np.ndarray]
#: axes of the inputs of attention, where h is the query head of q and the kv head of k and v
OF_ATTENTION: Mapping[str, str] = {**INPUT_AXES, "mask": "bhqk", "dropout_mask": "bhqk", "sinks": "bhq"}


@dataclass(frozen=True)
class Codes:
    """How inputs were quantised, and what products read of them."""

    format: str  #: one of `formats.FORMATS`
    scaling: str = "dynamic"  #: or static
    scale_of: str | None = None  #: what has a scale of its own (`Case.scale_of`)
    coded: str = "qkv"  #: the inputs that were (`Case.coded`)
    slack: float = 0.0  #: relative error of a division beyond its rounding
    #: input -> dtype to which its decoded rows are rounded; None where nobody told
    operands: Mapping[str, str | None] | None = None


@dataclass(frozen=True, eq=False)
class Cut:
    """The keys of a part, where its queries see no others, and what bounds ask of all keys of a row."""

    left: slice
    keys: int  #: all of them
    largest_v: np.ndarray  #: largest |v| of each dim, [b, kv_heads, 1, d]
    longest_k: np.ndarray  #: largest |k|, [b, kv_heads]


@dataclass(frozen=True, eq=False)  # compared and hashed by identity: it holds arrays
class Problem:
    """One run's values, all in float64 (or all in float32, for a control); -inf and NaN are allowed in stages."""

    table: Table
    contract: Contract
    losses: Losses
    #: q [b, h, q, d], k and v [b, kv_heads, k, d], and mask, bool, which keys are seen, [q, k] or [b, h, q, k]; sinks
    #: [1, h, 1], natural logits, and dropout_mask, bool [b, h, q, k], where there are any
    inputs: Arrays
    numbers: Mapping[str, float]  #: of the case: its scale, and its softcap where it has one
    attn_bias: np.ndarray | None  #: added to scaled scores, [b, h, q, k] or [q, k]
    exact_products: bool  #: products of q and k are exact in float32 (inputs of at most 12 bits)
    tiling: Tiling  #: the key tiles, all keys in one where they are not known
    given: Arrays  #: the dumped stages, which others are computed from
    hidden_maxima: bool = False  #: row_max is not what the kernel had before the last tile of a split
    #: size of each whole stage, of which these may be a part; None: of `deviations`
    elements: Mapping[str, int | None] | None = None
    statistics: bool = True  #: whether statistical bounds are wanted; without them they are the worst case
    input_errors: Arrays | None = None  #: bounds of |what the kernel read - q, k or v|, of those that nobody saw
    codes: Codes | None = None  #: of a kernel on codes
    bias_computed: np.ndarray | None = None  #: what of attn_bias a kernel computes itself, as ALiBi's
    #: maxima pass over NaN, as fmax does, and a weight of 0 over a NaN of the values, as a loop that skips masked tiles
    passes_over_nan: bool = False
    score_mod: Callable[[np.ndarray], np.ndarray] | None = None  #: of scaled and capped scores [b, h, q, k]
    cut: Cut | None = None  #: of what the inputs have left; None: they are whole
    #: rounding site -> what is promised there; empty: float32
    arithmetic: Mapping[str, Arithmetic] = field(default_factory=dict)

    def size_of(self, axis: str) -> int:
        """How long an axis of a stage is, by its letter."""
        b, h, q, _ = self.inputs["q"].shape
        sizes = {
            "b": b,
            "h": h,
            "q": q,
            "k": self.keys_left,
            "d": self.inputs["v"].shape[-1],
            "t": len(self.tiling.keys),
        }
        return int(sizes[axis])

    @property
    def scale(self) -> float:
        """The factor of the dot products."""
        return self.numbers["scale"]

    @property
    def splits(self) -> int:
        """How many splits the keys have."""
        return len(self.tiling.splits)

    def elements_of(self, name: str) -> int | None:
        """Size of a whole stage, as of `deviations`."""
        return None if self.elements is None else self.elements[name]

    @property
    def keys(self) -> int:
        """Keys of a row, those that were cut off among them."""
        return self.keys_left if self.cut is None else self.cut.keys

    @property
    def keys_left(self) -> int:
        """Keys of a row that its arrays hold."""
        return int(self.inputs["k"].shape[-2])

    @property
    def merges(self) -> bool:
        """Whether results of splits are merged."""
        return any("s" in stage.axes for stage in self.table.values())

    def declared(self, field: str) -> bool:
        """Whether the kernel declares a field of its contract; a preset alone does not say that it loses so much."""
        return field not in self.contract.open

    @property
    def casts_normalised(self) -> bool:
        """Whether probs may be divided by row_sum before they are cast, so that nobody knows what is rounded."""
        return self.contract.probs_normalised is not False or self.contract.normalisation == BY_LSE

    @property
    def cast_aware(self) -> bool:
        """Whether the reference casts probs as the kernel does: the cast and the tiles are declared, and what probs are
        below is the running maximum or was seen, so that an error only counts where it takes probs over a rounding
        boundary.
        """
        known = self.contract.block_k is not None and (not self.merges or self.contract.splits is not None)
        known = known and not self.casts_normalised
        known = known and (self.contract.row_max == "running" or bool({"row_max", "probs"} & {*self.given}))
        site = sites_of(self.contract).probs
        declared = self.declared("probs_dtype") and self.declared("probs_rounding") and site.rounding != "any"
        return known and declared and not self.hidden_maxima and not site.wide

    @property
    def predicted_casts(self) -> frozenset[str]:
        """Which of the casts of probs and partials the reference makes as the kernel does."""
        site = sites_of(self.contract).partials
        declared = self.declared("partials_dtype") and self.declared("partials_rounding") and site.rounding != "any"
        found = {"probs": self.cast_aware, "partials": declared and not site.wide}
        return frozenset(name for name, predicted in found.items() if predicted)

    @property
    def products_error(self) -> float:
        """Relative error of a product of a cast prob and a value, or of the correction and acc, without the additions:
        that of operands that are float32, and of the product, which a narrow accumulator rounds to its own dtype.
        """
        losses, wide = self.losses, (self.contract.probs_dtype == "float32") + (not self.exact_products)
        return losses.product + (losses.operands(wide) if wide else 0.0)
