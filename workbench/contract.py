"""What a kernel promises about its arithmetic, as data.

Budgets read it. What a foreign kernel does not say is assumed to be the weakest choice, and shown as assumed.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from workbench.case import DTYPES, Case
from workbench.refusal import Refusal
from workbench.tiling import Tiling, tiling

#: how a sum of products is accumulated: in float32 and rounded to nearest in any order; in the aligned, truncated
#: blocks of a tensor core; or either
ACCUMULATIONS = ("nearest", "tensor-core", "any")
#: how a cast rounds: to the nearest value, ties to even; toward zero; or either
ROUNDINGS = ("nearest", "toward-zero", "any")
#: what exp is given: the difference of a rounded score and its maximum; exp2(fma(score, scale * log2(e), -max_scaled))
#: as in FlashAttention-2 (Dao 2023, arXiv 2307.08691), where max_scaled is the rounded product; or either
EXP_ARGUMENTS = ("difference", "fma", "any")
#: what row_max and partial_max hold: the running maximum; a number at least as large, such as a bound by norms; or any
#: number, such as a maximum that is raised late
ROW_MAXIMA = ("running", "upper_bound", "any")
#: how weights are normalised: by one division; as exp(score - lse) and in merges by lse, without one; or either
NORMALISATIONS = ("division", "lse", "any")
#: order in which a row visits its key tiles, where it is not a list of tiles
TILE_ORDERS = ("ascending", "descending")
#: how float32 operands of products are rounded, in Triton's words
INPUT_PRECISIONS = ("ieee", "tf32", "tf32x3")
#: ex2.approx is off by 2 ulp, __expf by 2 + 1.173 |x| (PTX ISA, ex2; CUDA programming guide, intrinsic functions),
#: counted from the nearest float32; half an ulp more counts from the exact result: an H200 takes 2.05 and, for small x,
#: between 2 and 3 (`workbench calibrate`)
EX2_ULPS = 2.5
FAST_EXP_ULPS, FAST_EXP_ULPS_PER_X = 3.0, 1.173
#: format of codes -> the dtype that holds them
FLOAT8 = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
#: the tensor core that loses most: blocks of 4 products without extra bits, as V100's (Fasi et al., Numerical behavior
#: of NVIDIA tensor cores, 2021, PeerJ CS-330)
WEAKEST_MMA = {"mma_block": 4, "mma_extra_bits": 0}
#: the same on float8 operands, of which Hopper's wgmma retains around 14 bits, 10 fewer than float32 (DeepSeek-AI,
#: DeepSeek-V3 Technical Report, 2024, section 3.3.2)
WEAKEST_FLOAT8_MMA = WEAKEST_MMA | {"mma_extra_bits": -10}


@dataclass(frozen=True)
class Contract:
    """Arithmetic of one kernel; arithmetic not named here is float32, rounded to nearest."""

    block_k: int | None  #: keys in a tile; None: unknown, so stages with a tile axis cannot be judged
    #: splits of whole tiles, ceil(tiles / splits) each; None: the keys are not split, or it is unknown how
    splits: int | None
    scores_dtype: str  #: in which qk and scores are rounded
    probs_dtype: str  #: to which probs are cast before they meet v; float32 means no cast
    partials_dtype: str  #: in which partial_O is stored
    out_dtype: str  #: in which out is stored
    row_sum_of_cast: bool | None  #: whether row_sum adds the cast probs; None: unknown, so it may be either
    accumulation: str = "nearest"  #: of qk and acc, one of ACCUMULATIONS
    acc_accumulation: str | None = None  #: of acc where that is another one; None: as `accumulation`
    mma_block: int = 16  #: products that a tensor core aligns and adds at once
    mma_extra_bits: int = 2  #: bits that it keeps below float32's last; negative where its accumulator is narrower
    accumulator_dtype: str = "float32"  #: in which the sums of qk and acc are rounded after each addition
    input_precision: str = "ieee"  #: how float32 operands of products are rounded, one of INPUT_PRECISIONS
    scaled_q_dtype: str = "float32"  #: to which q times scale is rounded before the product; float32: it is not
    exp_ulps: float = 2.0  #: error of exp, at most ...
    exp_ulps_per_x: float = 0.0  #: ... and so much more for each unit of the argument (FAST_EXP_ULPS_PER_X)
    exp_flushes: bool = True  #: whether exp may turn subnormal results into 0
    #: least argument of exp2, to which lower ones, those of masked keys included, may be raised; None: it has none
    exp_floor: float | None = None
    exp_argument: str = "difference"  #: what exp is given, one of EXP_ARGUMENTS
    fast_math: bool = False  #: whether division and log are approximate (CUDA's __fdividef, __logf)
    base2: bool = False  #: whether scores and maxima are in units of log2: scale * log2(e), exp2 for exp
    scores_scaled: bool = True  #: whether scores and maxima hold the scale; if not, they are masked products of q and k
    row_max: str = "running"  #: what row_max and partial_max hold, one of ROW_MAXIMA
    normalisation: str = "division"  #: how weights are normalised, one of NORMALISATIONS
    #: keys at which splits begin and end, such as (0, 40, 128), where they are not `splits` of whole tiles
    split_bounds: tuple[int, ...] | None = None
    tile_order: str | tuple[int, ...] = (
        "ascending"  #: in which a row visits its tiles, one of TILE_ORDERS or their numbers
    )
    skips_masked_tiles: bool = (
        False  #: whether tiles in which a row sees no key may be skipped, whatever their slots hold
    )
    mask_sentinel: float = (
        -math.inf
    )  #: what scores and maxima hold in place of -inf; what is at most half of it is masked
    empty_out: float = 0.0  #: out of a row without keys
    empty_lse: float = -math.inf  #: lse of a row without keys
    probs_rounding: str = "nearest"  #: one of ROUNDINGS
    partials_rounding: str = "nearest"  #: one of ROUNDINGS
    out_rounding: str = "nearest"  #: one of ROUNDINGS
    #: to which 8-bit codes are decoded before products read them; float32: not rounded
    operands_dtype: str = "float32"
    saturates: bool = False  #: whether casts turn what is too large into the largest value instead of an infinity
    assumed: tuple[str, ...] = ()  #: fields that nobody declared

    @property
    def accumulation_of_acc(self) -> str:
        """How acc is accumulated, one of ACCUMULATIONS."""
        return self.acc_accumulation or self.accumulation

    def tiling(self, seqlen_k: int) -> Tiling:
        """The key tiles of a row, one of all keys where it is unknown, and the tiles of its splits."""
        block_k, splits = self.block_k or max(seqlen_k, 1), self.splits or 1
        return tiling(seqlen_k, block_k, splits, split_bounds=self.split_bounds, tile_order=self.tile_order)

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain Python values, for JSON; numbers that are not finite as strings."""
        plain = {name: list(x) if isinstance(x, tuple) else x for name, x in asdict(self).items()}
        return {name: str(x) if isinstance(x, float) and not math.isfinite(x) else x for name, x in plain.items()}


def of_dict(plain: Mapping[str, Any]) -> Contract:
    """The contract that `as_dict` wrote; Refusal for a field that it lacks or that does not exist, and for a value
    outside its rule.
    """
    known = {field.name for field in fields(Contract)}
    if lacking := [name for name in sorted(known) if name not in plain]:
        raise Refusal(f'"contract" lists what is "assumed", and so holds every field; it lacks {", ".join(lacking)}')
    given = numbers({name: value for name, value in plain.items() if name != "assumed"})
    for name, value in _plain(given).items():
        if value is not None or name not in _MAY_BE_NONE:
            _check(name, value)
    if not isinstance(plain["assumed"], list) or not {*map(str, plain["assumed"])} <= known:
        raise Refusal(f'"assumed" of a "contract" must list its fields; got {plain["assumed"]!r}')
    return Contract(**_plain(given), assumed=tuple(plain["assumed"]))


def numbers(plain: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a contract in JSON, inf and nan, which it writes as strings, as numbers."""
    return {
        name: float(value) if name in _NUMBERS and isinstance(value, str) and value in _NOT_FINITE else value
        for name, value in plain.items()
    }


_NUMBERS, _NOT_FINITE = ("mask_sentinel", "empty_out", "empty_lse"), ("inf", "-inf", "nan")
#: fields that a trace may hold as null: nobody knows, or there is none
_MAY_BE_NONE = ("block_k", "splits", "acc_accumulation", "row_sum_of_cast", "exp_floor", "split_bounds")
_PROBS_DTYPES = (*DTYPES, *FLOAT8.values())
#: field -> its rule in words, and whether a value keeps it
_RULES: Mapping[str, tuple[str, Any]] = {
    **dict.fromkeys(
        ("block_k", "splits", "mma_block"), ("a whole number of at least 1", lambda x: _whole(x) and x >= 1)
    ),
    "mma_extra_bits": ("a whole number", lambda x: _whole(x)),
    **dict.fromkeys(
        ("scores_dtype", "partials_dtype", "operands_dtype", "out_dtype", "accumulator_dtype", "scaled_q_dtype"),
        (f"one of {', '.join(DTYPES)}", lambda x: x in DTYPES),
    ),
    "probs_dtype": (f"one of {', '.join(_PROBS_DTYPES)}", lambda x: x in _PROBS_DTYPES),
    **dict.fromkeys(
        ("accumulation", "acc_accumulation"), (f"one of {', '.join(ACCUMULATIONS)}", lambda x: x in ACCUMULATIONS)
    ),
    **dict.fromkeys(
        ("probs_rounding", "partials_rounding", "out_rounding"),
        (f"one of {', '.join(ROUNDINGS)}", lambda x: x in ROUNDINGS),
    ),
    **{
        name: (f"one of {', '.join(values)}", lambda x, values=values: x in values)
        for name, values in (
            ("exp_argument", EXP_ARGUMENTS),
            ("row_max", ROW_MAXIMA),
            ("normalisation", NORMALISATIONS),
            ("input_precision", INPUT_PRECISIONS),
        )
    },
    "exp_floor": ("a negative number, or None", lambda x: x is None or (_number(x) and -math.inf < x < 0)),
    "split_bounds": (
        "the keys at which splits begin and end, from 0 on and none below the one before, such as [0, 40, 128]",
        lambda x: _numbers(x) and len(x) > 1 and x[0] == 0 and list(x) == sorted(x),
    ),
    "tile_order": (
        f"{', '.join(TILE_ORDERS)}, or a list of all tiles, such as [0, 2, 1]",
        lambda x: x in TILE_ORDERS if isinstance(x, str) else _numbers(x) and sorted(x) == list(range(len(x))),
    ),
    **dict.fromkeys(("exp_ulps", "exp_ulps_per_x"), ("a number of at least 0", lambda x: _number(x) and x >= 0)),
    "mask_sentinel": ("a negative number", lambda x: _number(x) and x < 0),
    **dict.fromkeys(("empty_out", "empty_lse"), ("a number, inf or nan", lambda x: _number(x))),
    **dict.fromkeys(
        (
            *("row_sum_of_cast", "exp_flushes", "fast_math", "base2", "scores_scaled", "skips_masked_tiles"),
            "saturates",
        ),
        ("true or false", lambda x: isinstance(x, bool)),
    ),
}


def of_kernel(case: Case) -> Contract:
    """The contract of this project's own kernels for a settled case: float32 throughout, but for the cast of probs and
    for out, which is in the storage dtype.
    """
    return Contract(
        block_k=case.block_k,
        splits=case.splits,
        scores_dtype="float32",
        probs_dtype=case.probs_dtype or "float32",
        partials_dtype="float32",
        out_dtype=case.dtype,
        row_sum_of_cast=False,
    )


def of_foreign(declared: Mapping[str, Any], case: Case, operands_dtype: str | None = None) -> Contract:
    """The contract that a foreign kernel declares, the weakest choice where it is silent.

    `operands_dtype`: the 16-bit dtype of the decoded inputs of a kernel on 8-bit codes, where these were seen; else its
    products may be of float8.

    The units of what is dumped (base2, scores_scaled, mask_sentinel), the order of tiles and the rows without keys
    (empty_out, empty_lse) have no weakest choice: they are assumed to be natural, scaled, -inf, ascending, 0 and -inf.
    Of exp_floor, accumulator_dtype, input_precision and scaled_q_dtype the weakest choice would forgive most bugs: they
    are assumed to be none, float32 and ieee (`assumptions.alternatives` has the others).

    Raises Refusal for a field that does not exist, a value outside its rule, bounds of splits that do not end with the
    keys of the case, and tiles that are not those of the case.
    """
    told = _plain(declared)
    for name, value in told.items():
        _check(name, value)
    if "split_bounds" in told:
        told = {"splits": len(told["split_bounds"]) - 1, **told}
    dtype = case.dtype if case.codes is None else operands_dtype or "bfloat16"
    float8 = case.codes in FLOAT8 and operands_dtype is None
    tensor_cores = dtype != "float32" or told.get("input_precision", "ieee") != "ieee"
    weakest = {
        "block_k": None,
        "splits": None,
        "scores_dtype": dtype,
        "probs_dtype": FLOAT8[str(case.codes)] if float8 else dtype,
        "partials_dtype": dtype,
        "out_dtype": dtype,
        "row_sum_of_cast": None,
        # tensor cores take no float32: TF32 would round the inputs, which a kernel has to declare
        "accumulation": "any" if tensor_cores else "nearest",
        **(WEAKEST_FLOAT8_MMA if float8 else WEAKEST_MMA),
        "accumulator_dtype": "float32",
        "input_precision": "ieee",
        "scaled_q_dtype": "float32",
        "exp_ulps": FAST_EXP_ULPS,
        "exp_ulps_per_x": FAST_EXP_ULPS_PER_X,
        "exp_flushes": True,
        "exp_floor": None,
        "exp_argument": "any",
        "fast_math": True,
        "base2": False,
        "scores_scaled": True,
        "row_max": "running",
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
    promise = Contract(**(weakest | told), assumed=tuple(name for name in weakest if name not in told))
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


def _check(name: str, value: Any) -> None:
    """Refusal for a field that does not exist or a value outside its rule."""
    if name not in _RULES:
        known = ", ".join(field.name for field in fields(Contract) if field.name != "assumed")
        raise Refusal(f'"contract" has the fields {known}; got {name!r}')
    rule, holds = _RULES[name]
    if not holds(value):
        raise Refusal(f'"contract" field {name} must be {rule}; got {value!r}')


def _plain(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with lists as tuples and NumPy's numbers as Python's."""

    def plain(value: Any) -> Any:
        if isinstance(value, list | tuple | np.ndarray):
            return tuple(plain(x) for x in value)
        return value.item() if isinstance(value, np.generic) else value

    return {name: plain(value) for name, value in given.items()}


def _numbers(x: Any) -> bool:
    return isinstance(x, tuple) and all(_whole(one) and one >= 0 for one in x)


def _whole(x: Any) -> bool:
    return isinstance(x, int) and not isinstance(x, bool)


def _number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)
