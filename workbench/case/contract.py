"""What a kernel promises about its arithmetic, as data.

Budgets read it. What a foreign kernel does not say is assumed to be the weakest choice, and shown as assumed.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from types import NoneType
from typing import Any, get_args

from workbench.case.case import Case
from workbench.case.formats import float8_of
from workbench.case.promises import (
    ACCUMULATIONS,
    AT_LEAST_0,
    BOUNDS,
    COUNT,
    DEGREE,
    DTYPE,
    EMPTY,
    EMPTY_LSE,
    EXP_ARGUMENTS,
    FLOOR,
    GENERATION,
    INPUT_PRECISIONS,
    LAG,
    MMA_BLOCK,
    MMA_EXTRA_BITS,
    NEGATIVE,
    NORMALISATIONS,
    OFFSET,
    OFFSETS,
    ORDER,
    PARTIAL_STATS,
    PARTIALS,
    PROBS_DTYPE,
    ROUNDINGS,
    ROW_MAXIMA,
    SCALED,
    SPLITS,
    TRUTH,
    clause,
    plain,
    unwrapped,
)
from workbench.case.tensor_cores import GENERATIONS, known_of
from workbench.case.tiling import Tiling, tiling
from workbench.records import Rule, number, one_of
from workbench.refusal import Refusal, unknown

#: ex2.approx is off by 2 ulp, __expf by 2 + 1.173 |x| (PTX ISA, ex2; CUDA programming guide, intrinsic functions),
#: counted from the nearest float32; half an ulp more counts from the exact result: an H200 takes 2.05 and, for small x,
#: between 2 and 3 (`workbench calibrate`)
EX2_ULPS = 2.5
FAST_EXP_ULPS, FAST_EXP_ULPS_PER_X = 3.0, 1.173
#: the tensor core that loses most
WEAKEST_MMA = GENERATIONS["volta"]["float16"].fields()
#: the same on float8 operands, of which Hopper's wgmma retains around 14 bits, 10 fewer than float32 (DeepSeek-AI,
#: DeepSeek-V3 Technical Report, 2024, section 3.3.2)
WEAKEST_FLOAT8_MMA = WEAKEST_MMA | {"mma_extra_bits": -10}
#: relative errors of tanh: within 2 ulp of the nearest float32, half an ulp more from the exact result (tanhf, CUDA
#: programming guide, mathematical functions); within 2^-11 of its value (tanh.approx.f32, PTX ISA)
TANH = {"exact": 2.5 * 2.0**-23, "approx": 2.0**-11}


@dataclass(frozen=True)
class Contract:
    """Arithmetic of one kernel; arithmetic not named here is float32, rounded to nearest."""

    block_k: int | None = clause("keys per tile; none: unknown, and stages with a tile axis cannot be judged", COUNT)
    splits: int | None = clause(
        "number of key splits, of ceil(tiles / splits) whole tiles each; none: no splits, or unknown", SPLITS
    )
    scores_dtype: str = clause("dtype to which qk and scores are rounded", DTYPE)
    probs_dtype: str = clause("dtype to which probs are cast before PV; float32: no cast", PROBS_DTYPE)
    partials_dtype: str = clause("dtype of the stored partial_O", DTYPE)
    out_dtype: str = clause("dtype of the stored out; known from out itself", DTYPE)
    row_sum_of_cast: bool | None = clause(
        "whether row_sum adds the cast probs; none: unknown, either is accepted", TRUTH
    )
    row_sum_lanes: int = clause(
        "number of lanes that sum their own keys until the row ends; dumps of row_sum add up the lanes", COUNT, 1
    )
    accumulation: str = clause("how qk and acc are summed", one_of(ACCUMULATIONS), "nearest")
    acc_accumulation: str | None = clause("how acc is summed, if differently", one_of(ACCUMULATIONS), None)
    tensor_core: str | None = clause(
        "GPU generation of the tensor cores; sets accumulation and, by operand type, mma_block and mma_extra_bits; "
        "none: unknown, or no tensor cores",
        GENERATION,
        None,
    )
    mma_block: int = clause("products that a tensor core aligns and adds at once", MMA_BLOCK, 16)
    mma_extra_bits: int = clause(
        "bits that a tensor core keeps below float32's last bit; negative for a narrower accumulator", MMA_EXTRA_BITS, 2
    )
    accumulator_dtype: str = clause(
        "dtype to which sums of qk and acc are rounded after each addition", DTYPE, "float32"
    )
    input_precision: str = clause(
        "how float32 operands of products are rounded, in Triton's terms", one_of(INPUT_PRECISIONS), "ieee"
    )
    input_rounding: str = clause(
        "how they are rounded to TF32: to nearest, ties away, as cvt.rna; or truncated, as a tensor core reads float32",
        one_of(ROUNDINGS),
        "any",
    )
    scaled_q_dtype: str = clause(
        "dtype to which q * scale is rounded before the product; float32: not rounded", DTYPE, "float32"
    )
    scale_in: str = clause(
        "where the scale is applied: to scores; to q, to k, or its root to both, in float32 before the product; or any",
        one_of(SCALED),
        "scores",
    )
    exp_ulps: float = clause("largest error of exp, in ulps", AT_LEAST_0, 2.0)
    exp_ulps_per_x: float = clause(
        f"further ulps of exp per unit of its argument; {FAST_EXP_ULPS_PER_X} for __expf", AT_LEAST_0, 0.0
    )
    exp_polynomial: int | None = clause(
        "degree of the polynomial that computes exp2 of some or all probs; none: no polynomial", DEGREE, None
    )
    exp_flushes: bool = clause("whether exp may flush subnormal results to 0", TRUTH, True)
    exp_floor: float | None = clause(
        "lower limit of exp2's argument; lower ones, masked keys included, may be raised to it; none: no limit",
        FLOOR,
        None,
    )
    exp_argument: str = clause(
        "argument of exp: score - max, both rounded; or, as in FlashAttention-2, fma(score, scale * log2(e), "
        "-max_scaled)",
        one_of(EXP_ARGUMENTS),
        "difference",
    )
    sinks: str = clause(
        "when sinks enter row_max and row_sum: before the first tile; or last, when out and lse are computed",
        one_of(("last", "first")),
        "last",
    )
    lse_includes_sink: bool = clause("whether lse includes the sink", TRUTH, True)
    score_mod_ulps: float = clause("error of a score_mod, in ulps of its result or its score", AT_LEAST_0, 4.0)
    tanh: str = clause(
        "tanh of a softcap: error at most 2 ulp; or at most 2^-11 of the value, as tanh.approx.f32",
        one_of(TANH),
        "exact",
        function=("softcap", TANH),
    )
    fast_math: bool = clause("whether division and log are approximate (CUDA's __fdividef, __logf)", TRUTH, False)
    base2: bool = clause("whether scores and maxima are in base 2: scale * log2(e), exp2 for exp", TRUTH, False)
    lse_base2: bool = clause("whether lse is in base 2, lse * log2(e)", TRUTH, False)
    scores_scaled: bool = clause(
        "whether scores and maxima include the scale; if not, they are unscaled masked products of q and k", TRUTH, True
    )
    row_max: str = clause(
        "what row_max and partial_max are: the running maximum; an upper bound; a maximum that lags behind; or any",
        one_of(ROW_MAXIMA),
        "running",
    )
    row_max_lag: float = clause("how far a lagging maximum may lag, in base 2", LAG, 8.0)
    probs_offset: int = clause(
        "exponent of the power of two that multiplies probs and acc; out is divided by it again", OFFSET, 0
    )
    offset_in: str = clause(
        "where the offset is applied: in exp, so row_sum includes it; or in the cast, so row_sum includes it only if "
        "it adds cast probs",
        one_of(OFFSETS),
        "exp",
    )
    probs_normalised: bool | None = clause(
        "whether probs are divided by row_sum before they are cast, as torch's softmax does; none: unknown",
        TRUTH,
        False,
    )
    normalisation: str = clause(
        "how weights are normalised: by one division; or without one, as exp(score - lse) or in merges by lse",
        one_of(NORMALISATIONS),
        "division",
    )
    partials: str = clause(
        "whether partial_O is the numerator of a split, or divided by its sum; with an lse it is normalised",
        one_of(PARTIALS),
        "unnormalised",
    )
    partial_stats: str = clause(
        "what is stored with partial_O: partial_max and partial_sum; or, as partial_max, the split's lse, or its lse2 "
        "= lse * log2(e)",
        one_of(PARTIAL_STATS),
        "max,sum",
    )
    split_bounds: tuple[int, ...] | None = clause(
        "keys at which splits begin and end, if not `splits` of whole tiles", BOUNDS, None
    )
    tile_order: str | tuple[int, ...] = clause("order in which a row visits its key tiles", ORDER, "ascending")
    skips_masked_tiles: bool = clause(
        "whether tiles without a visible key may be skipped, so their slots are ignored", TRUTH, False
    )
    mask_sentinel: float = clause(
        "value of masked scores and maxima in place of -inf; anything at or below half of it counts as masked",
        NEGATIVE,
        -math.inf,
    )
    empty_out: float | str = clause(
        "out of an empty row (no visible key); libraries: 0, NaN or a mean of v, as libraries return; any: not judged",
        EMPTY,
        0.0,
    )
    empty_lse: float | str = clause(
        "lse of an empty row; libraries: 0, NaN, an infinity or a number in its place", EMPTY_LSE, -math.inf
    )
    probs_rounding: str = clause("how the cast of probs rounds", one_of(ROUNDINGS), "nearest")
    partials_rounding: str = clause("how the cast of partial_O rounds", one_of(ROUNDINGS), "nearest")
    out_rounding: str = clause("how the cast of out rounds", one_of(ROUNDINGS), "nearest")
    operands_dtype: str = clause(
        "dtype to which codes are decoded before products; float32: not rounded", DTYPE, "float32"
    )
    saturates: bool = clause(
        "whether casts saturate at the largest finite value instead of overflowing to infinity", TRUTH, False
    )
    assumed: tuple[str, ...] = ()  #: fields that nobody declared
    of_preset: tuple[str, ...] = ()  #: fields that only a preset says: a kernel may be more exact, and dump otherwise

    @property
    def open(self) -> frozenset[str]:
        """Fields that nobody said of this very kernel."""
        return frozenset((*self.assumed, *self.of_preset))

    @property
    def stores_lse(self) -> bool:
        """Whether partial_max holds the lse of each split, in either base."""
        return self.partial_stats != "max,sum"

    @property
    def lse_of_nothing(self) -> float:
        """The lse of a row, or of a rank, without keys where one number stands for it: -inf where libraries choose."""
        return -math.inf if isinstance(self.empty_lse, str) else self.empty_lse

    @property
    def accumulation_of_acc(self) -> str:
        """How acc is accumulated, one of ACCUMULATIONS."""
        return self.acc_accumulation or self.accumulation

    @property
    def lag(self) -> float:
        """By how much maxima may lag behind the running one, in natural units."""
        return self.row_max_lag * math.log(2) if self.row_max == "lagging" else 0.0

    @property
    def offset_of_row_sum(self) -> int:
        """The power of two by which row_sum is larger than a sum of exp(score - max)."""
        return self.probs_offset if self.offset_in == "exp" or self.row_sum_of_cast else 0

    def functions(self, numbers: Collection[str]) -> dict[str, float]:
        """Relative errors of the functions that a case with these `numbers` (`Case.numbers`) takes, by name."""
        return {name: losses[getattr(self, name)] for name, (due, losses) in _FUNCTIONS.items() if due in numbers}

    def tiling(self, seqlen_k: int, splits: int | None = None) -> Tiling:
        """The key tiles of a row and of its splits, of which there are `splits` where the contract does not declare
        them; one tile holds all keys of a split, in the order of keys, where it does not declare block_k.
        """
        order = "ascending" if self.block_k is None else self.tile_order
        splits = self.splits or splits or 1
        return tiling(seqlen_k, self.block_k or seqlen_k, splits, split_bounds=self.split_bounds, tile_order=order)

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain Python values, for JSON; numbers that are not finite as strings."""
        return {name: number(x) for name, x in asdict(self).items()}


def of_dict(document: Mapping[str, Any]) -> Contract:
    """The contract that `as_dict` wrote; Refusal for a field that it lacks or that does not exist, and for a value
    outside its rule.
    """
    known = {field.name for field in fields(Contract)}
    document = {**{name: _USUAL[name] for name in _LATER}, "of_preset": [], **document}
    if lacking := [name for name in sorted(known) if name not in document]:
        raise Refusal(f'a "contract" with "assumed" must list every field; it lacks {", ".join(lacking)}')
    given = plain(numbers({name: value for name, value in document.items() if name in _RULES or name not in known}))
    for name, value in given.items():
        if value is not None or name not in _MAY_BE_NONE:
            _check(name, value)
    for which in ("assumed", "of_preset"):
        if not isinstance(document[which], list) or not {*map(str, document[which])} <= known:
            raise Refusal(f'"{which}" of a "contract" must list its fields; got {document[which]!r}')
    return Contract(**given, assumed=tuple(document["assumed"]), of_preset=tuple(document["of_preset"]))


def numbers(plain: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a contract in JSON, inf and nan, which it writes as strings, as numbers."""
    return {
        name: float(value) if name in _NUMBERS and isinstance(value, str) and value in _NOT_FINITE else value
        for name, value in plain.items()
    }


#: field -> what is meant where nobody says it
_USUAL: Mapping[str, Any] = {one.name: one.default for one in fields(Contract)}
#: fields that came after the first traces of this schema, which mean what is usual
_LATER = (
    *("tanh", "tensor_core", "input_rounding", "sinks", "lse_includes_sink", "score_mod_ulps", "row_sum_lanes"),
    *("partials", "partial_stats", "scale_in", "row_max_lag", "probs_offset", "offset_in", "exp_polynomial"),
    "lse_base2",
)
#: field that says how a function is computed -> the number of the case that it is due to, and its relative errors
_FUNCTIONS: Mapping[str, tuple[str, Mapping[str, float]]] = {
    one.name: one.metadata["function"] for one in fields(Contract) if one.metadata.get("function")
}
_NUMBERS, _NOT_FINITE = ("mask_sentinel", "empty_out", "empty_lse"), ("inf", "-inf", "nan")
#: fields that a trace may hold as null: nobody knows, or there is none
_MAY_BE_NONE = tuple(one.name for one in fields(Contract) if NoneType in get_args(one.type))
#: field -> its rule; what it means is beside it
_RULES: Mapping[str, Rule] = {one.name: one.metadata["rule"] for one in fields(Contract) if one.metadata}


def of_foreign(
    declared: Mapping[str, Any],
    case: Case,
    operands_dtype: str | None = None,
    gpu: str | None = None,
    merges: bool = False,
) -> Contract:
    """The contract that a foreign kernel declares, the weakest choice where it is silent.

    `operands_dtype`: the 16-bit dtype of the decoded inputs of a kernel on codes, where these were seen; else its
    products may be of float8. `gpu`: the generation of the GPU on which it ran, where that is known: what its tensor
    cores keep is assumed, and that they multiply is not. `merges`: it dumped results of splits, and may say what
    these are.

    The units of what is dumped (base2, scores_scaled, mask_sentinel), the order of tiles and the rows without keys
    (empty_out, empty_lse) have no weakest choice: they are assumed to be natural, scaled, -inf, ascending, 0 and -inf.
    Nor has what results of splits are: a numerator, a maximum and a sum are assumed, and normalised ones with an lse.
    Of exp_floor, accumulator_dtype, input_precision and scaled_q_dtype the weakest choice would forgive most bugs: they
    are assumed to be none, float32 and ieee (`assumptions.alternatives` has the others).

    A value that is a `promises.OfPreset` says what such kernels lose at most.

    Raises Refusal for a field that does not exist, a value outside its rule, bounds of splits that do not end with the
    keys of the case, tiles that are not those of the case, and tensor cores that do not multiply its operands.
    """
    own, of_preset = unwrapped(plain(declared))
    for name, value in own.items():
        if value is not None or name not in _MAY_BE_NONE:
            _check(name, value)
    if "accumulation" in of_preset and own["accumulation"] == "tensor-core":
        own["accumulation"] = "any"  # sums that are rounded to nearest lose less
    if own.get("partial_stats", "max,sum") != "max,sum":
        if "partial_stats" in of_preset and "partials" not in own:
            of_preset = (*of_preset, "partials")
        # what is not divided by its sum cannot be weighed by an lse
        if own.setdefault("partials", "normalised") != "normalised":
            raise Refusal(
                f'"contract" fields partials=unnormalised and partial_stats={own["partial_stats"]} contradict each '
                "other: a merge by lse needs partial_O divided by the sum of its split"
            )
    if own.get("split_bounds") is not None:
        own = {"splits": len(own["split_bounds"]) - 1, **own}
    dtype = case.dtype if case.codes is None else operands_dtype or "bfloat16"
    float8 = None if operands_dtype is not None or "q" not in case.coded else float8_of(case.codes)
    tf32 = own.get("input_precision", "ieee") != "ieee"
    tensor_cores = dtype != "float32" or tf32
    # a core that takes both adds TF32 in the shorter blocks
    operands = "tf32" if tf32 else "float8" if float8 else dtype if case.codes is None else operands_dtype or "float16"
    known = known_of(own.get("tensor_core", gpu), operands, declared="tensor_core" in own)
    weakest = {
        "block_k": None,
        "splits": None,
        "scores_dtype": dtype,
        "probs_dtype": float8 or dtype,
        "partials_dtype": dtype,
        "out_dtype": dtype,
        "row_sum_of_cast": None,
        "probs_normalised": None,
        # tensor cores take no float32: TF32 would round the inputs, which a kernel has to declare
        "accumulation": "any" if tensor_cores else "nearest",
        **({"tensor_core": gpu} if known and "tensor_core" not in own else {}),
        **(WEAKEST_FLOAT8_MMA if float8 else WEAKEST_MMA),
        "accumulator_dtype": "float32",
        "input_precision": "ieee",
        **({"input_rounding": "any"} if tf32 else {}),
        "scaled_q_dtype": "float32",
        # scores without a scale are products of q and k as they are
        "scale_in": "any" if own.get("scores_scaled", True) else "scores",
        "exp_ulps": FAST_EXP_ULPS,
        "exp_ulps_per_x": FAST_EXP_ULPS_PER_X,
        "exp_flushes": True,
        "exp_floor": None,
        "exp_argument": "any",
        **{name: max(x, key=x.__getitem__) for name, (due, x) in _FUNCTIONS.items() if due in case.numbers},
        "fast_math": True,
        "base2": False,
        **({"lse_base2": False} if own.get("base2") else {}),
        "scores_scaled": True,
        "row_max": "running",
        **({"row_max_lag": _USUAL["row_max_lag"]} if own.get("row_max") == "lagging" else {}),
        **({"offset_in": "exp"} if own.get("probs_offset") else {}),
        **({} if case.sinks is None else {name: _USUAL[name] for name in ("sinks", "lse_includes_sink")}),
        **({name: _USUAL[name] for name in ("partials", "partial_stats")} if merges else {}),
        **({} if case.score_mod is None else {"score_mod_ulps": _USUAL["score_mod_ulps"]}),
        "normalisation": "any",
        "tile_order": "ascending",
        "skips_masked_tiles": False,
        "mask_sentinel": -math.inf,
        "empty_out": 0.0,
        "empty_lse": -math.inf,
        "probs_rounding": "any",
        "partials_rounding": "any",
        "out_rounding": "any",
        "saturates": False,
        **({} if case.codes is None else {"operands_dtype": dtype}),
    }
    if case.sinks is not None and (own.get("sinks"), own.get("lse_includes_sink")) == ("first", False):
        raise Refusal(
            '"contract" fields sinks=first and lse_includes_sink=false contradict each other: row_sum then starts with '
            "the sink, and lse is computed from it"
        )
    if own.get("probs_offset") and own.get("offset_in") == "cast" and own.get("row_sum_of_cast") is None:
        raise Refusal(
            '"contract" fields probs_offset and offset_in=cast need row_sum_of_cast, which decides whether row_sum '
            "includes the offset"
        )
    assumed = tuple(name for name in weakest if name not in known and name not in own)
    promise = Contract(**(weakest | known | own), assumed=assumed, of_preset=of_preset)
    _check_tiles(promise, case)
    return promise


def _check_tiles(promise: Contract, case: Case) -> None:
    """Refusal for bounds of splits or an order of tiles that do not fit the case, or each other."""
    bounds, order = promise.split_bounds, promise.tile_order
    if bounds is not None and bounds[-1] != case.seqlen_k:
        raise Refusal(
            f'"contract" field split_bounds must end with {case.seqlen_k}, the keys of this case; got {[*bounds]}'
        )
    if bounds is not None and promise.splits != len(bounds) - 1:
        raise Refusal(
            f'"contract" fields split_bounds and splits contradict each other: {[*bounds]} are {len(bounds) - 1} '
            f"splits; got splits={promise.splits}"
        )
    if isinstance(order, str) or promise.block_k is None:
        return
    tiles = len(replace(promise, tile_order="ascending").tiling(case.seqlen_k).keys)
    if len(order) != tiles:
        raise Refusal(f'"contract" field tile_order must list the {tiles} tiles of this case; got {[*order]}')


def check_names(declared: Iterable[str]) -> None:
    """Refusal for a field that no contract has."""
    for name in declared:
        if name not in _RULES:
            raise Refusal(unknown('"contract" has no field', name, _RULES))


def _check(name: str, value: Any) -> None:
    """Refusal for a field that does not exist or a value outside its rule."""
    check_names([name])
    rule = _RULES[name]
    if not rule.holds(value):
        raise Refusal(f'"contract" field {name} must be {rule.words}; got {value!r}')
