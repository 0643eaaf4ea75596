"""What a kernel promises about its arithmetic, as data.

Budgets read it. What a foreign kernel does not say is assumed to be the weakest choice, and shown as assumed.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from workbench.case import DTYPES, Case
from workbench.refusal import Refusal

#: how a sum of products is accumulated: in float32 and rounded to nearest in any order; in the aligned, truncated
#: blocks of a tensor core; or either
ACCUMULATIONS = ("nearest", "tensor-core", "any")
#: how a cast rounds: to the nearest value, ties to even; toward zero; or either
ROUNDINGS = ("nearest", "toward-zero", "any")
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
    splits: (
        int | None
    )  #: splits of whole tiles, ceil(tiles / splits) each; None: the keys are not split, or it is unknown how
    scores_dtype: str  #: in which qk and scores are rounded
    probs_dtype: str  #: to which probs are cast before they meet v; float32 means no cast
    partials_dtype: str  #: in which partial_O is stored
    out_dtype: str  #: in which out is stored
    row_sum_of_cast: bool  #: whether row_sum adds the cast probs
    accumulation: str = "nearest"  #: of qk and acc, one of ACCUMULATIONS
    acc_accumulation: str | None = None  #: of acc where that is another one; None: as `accumulation`
    mma_block: int = 16  #: products that a tensor core aligns and adds at once
    mma_extra_bits: int = 2  #: bits that it keeps below float32's last; negative where its accumulator is narrower
    exp_ulps: float = 2.0  #: error of exp, at most ...
    exp_ulps_per_x: float = 0.0  #: ... and so much more for each unit of the argument (FAST_EXP_ULPS_PER_X)
    exp_flushes: bool = True  #: whether exp may turn subnormal results into 0
    fast_math: bool = False  #: whether division and log are approximate (CUDA's __fdividef, __logf)
    base2: bool = False  #: whether scores and maxima are in units of log2: scale * log2(e), exp2 for exp
    mask_sentinel: float = -math.inf  #: what scores and maxima hold in place of -inf
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

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain Python values, for JSON; numbers that are not finite as strings."""
        plain = {**asdict(self), "assumed": list(self.assumed)}
        return {name: str(x) if isinstance(x, float) and not math.isfinite(x) else x for name, x in plain.items()}


def of_dict(plain: Mapping[str, Any]) -> Contract:
    """The contract that `as_dict` wrote; Refusal for a field that it lacks or that does not exist, and for a value
    outside its rule.
    """
    known = {field.name for field in fields(Contract)}
    if lacking := [name for name in sorted(known) if name not in plain]:
        raise Refusal(f'"contract" lists what is "assumed", and so holds every field; it lacks {", ".join(lacking)}')
    given = numbers({name: value for name, value in plain.items() if name != "assumed"})
    for name, value in given.items():
        if value is not None or name not in ("block_k", "splits", "acc_accumulation"):
            _check(name, value)
    if not isinstance(plain["assumed"], list) or not {*map(str, plain["assumed"])} <= known:
        raise Refusal(f'"assumed" of a "contract" must list its fields; got {plain["assumed"]!r}')
    return Contract(**given, assumed=tuple(plain["assumed"]))


def numbers(plain: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a contract in JSON, inf and nan, which it writes as strings, as numbers."""
    return {
        name: float(value) if name in _NUMBERS and isinstance(value, str) and value in _NOT_FINITE else value
        for name, value in plain.items()
    }


_NUMBERS, _NOT_FINITE = ("mask_sentinel", "empty_out", "empty_lse"), ("inf", "-inf", "nan")
_PROBS_DTYPES = (*DTYPES, *FLOAT8.values())
#: field -> its rule in words, and whether a value keeps it
_RULES: Mapping[str, tuple[str, Any]] = {
    **dict.fromkeys(
        ("block_k", "splits", "mma_block"), ("a whole number of at least 1", lambda x: _whole(x) and x >= 1)
    ),
    "mma_extra_bits": ("a whole number", lambda x: _whole(x)),
    **dict.fromkeys(
        ("scores_dtype", "partials_dtype", "operands_dtype", "out_dtype"),
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
    **dict.fromkeys(("exp_ulps", "exp_ulps_per_x"), ("a number of at least 0", lambda x: _number(x) and x >= 0)),
    "mask_sentinel": ("a negative number", lambda x: _number(x) and x < 0),
    **dict.fromkeys(("empty_out", "empty_lse"), ("a number, inf or nan", lambda x: _number(x))),
    **dict.fromkeys(
        ("row_sum_of_cast", "exp_flushes", "fast_math", "base2", "saturates"),
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

    The units of what is dumped (base2, mask_sentinel) and the rows without keys (empty_out, empty_lse) have no weakest
    choice: they are assumed to be natural, -inf, 0 and -inf. Raises Refusal for a field that does not exist or a value
    outside its rule.
    """
    for name, value in declared.items():
        _check(name, value)
    dtype = case.dtype if case.codes is None else operands_dtype or "bfloat16"
    float8 = case.codes in FLOAT8 and operands_dtype is None
    weakest = {
        "block_k": None,
        "splits": None,
        "scores_dtype": dtype,
        "probs_dtype": FLOAT8[str(case.codes)] if float8 else dtype,
        "partials_dtype": dtype,
        "out_dtype": dtype,
        "row_sum_of_cast": False,
        # tensor cores take no float32: TF32 would round the inputs, which a kernel has to declare
        "accumulation": "nearest" if dtype == "float32" else "any",
        **(WEAKEST_FLOAT8_MMA if float8 else WEAKEST_MMA),
        "exp_ulps": FAST_EXP_ULPS,
        "exp_ulps_per_x": FAST_EXP_ULPS_PER_X,
        "exp_flushes": True,
        "fast_math": True,
        "base2": False,
        "mask_sentinel": -math.inf,
        "empty_out": 0.0,
        "empty_lse": -math.inf,
        "probs_rounding": "any",
        "partials_rounding": "any",
        "out_rounding": "any",
        "saturates": False,
        **({} if case.codes is None else {"operands_dtype": dtype}),
    }
    return Contract(**(weakest | dict(declared)), assumed=tuple(name for name in weakest if name not in declared))


def _check(name: str, value: Any) -> None:
    """Refusal for a field that does not exist or a value outside its rule."""
    if name not in _RULES:
        known = ", ".join(field.name for field in fields(Contract) if field.name != "assumed")
        raise Refusal(f'"contract" has the fields {known}; got {name!r}')
    rule, holds = _RULES[name]
    if not holds(value):
        raise Refusal(f'"contract" field {name} must be {rule}; got {value!r}')


def without_float8(promise: Contract) -> Contract | None:
    """The contract of a kernel that neither casts probs to float8 nor multiplies float8 on tensor cores, where that is
    what was assumed of it; None elsewhere.
    """
    if not ({"probs_dtype", "mma_extra_bits"} <= {*promise.assumed} and promise.probs_dtype in FLOAT8.values()):
        return None
    block, bits = WEAKEST_MMA["mma_block"], WEAKEST_MMA["mma_extra_bits"]
    return replace(promise, probs_dtype="bfloat16", mma_block=block, mma_extra_bits=bits)


def _whole(x: Any) -> bool:
    return isinstance(x, int) and not isinstance(x, bool)


def _number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)
