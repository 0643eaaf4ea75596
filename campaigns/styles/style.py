"""What a style of kernel is, and what of its contract it tells."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray
Stages = dict[str, Any]
Kernel = Callable[..., Stages]
Case = dict[str, Any]
# A value that is a function depends on the inputs: it is called with q and k.
Fields = Mapping[str, Any]

SIXTEEN = ("float16", "bfloat16")
ALL = ("float32", *SIXTEEN)


def input_dtype(q: Array, k: Array) -> str:
    """The name of the dtype of q, k and v, for fields such as probs_dtype."""
    return str(q.dtype.name)


# What NumPy's float32 does where a kernel says nothing else. Its exp is within 2.4 ulps and its exp2 within 1 of two
# million random arguments each; its documentation promises 4. log and division are correctly rounded in these kernels.
IEEE: Fields = {
    "scores_dtype": "float32",
    "scale_in": "scores",
    "probs_dtype": "float32",
    "partials_dtype": "float32",
    "row_sum_of_cast": False,
    "accumulation": "nearest",
    "accumulator_dtype": "float32",
    "input_precision": "ieee",
    "exp_ulps": 4.0,
    "exp_ulps_per_x": 0.0,
    "exp_flushes": False,
    "exp_floor": None,
    "exp_argument": "difference",
    "normalisation": "division",
    "fast_math": False,
    "out_rounding": "nearest",
}
# The same with probs cast to the dtype of v, as tensor cores want them.
CAST: Fields = {**IEEE, "probs_dtype": input_dtype, "probs_rounding": "nearest"}
# exp2 of a product with log2(e): the rounding of the product (2^-24) and of the constant (2^-24 where it is scale *
# log2(e)) each move the result by at most one ulp per unit of |score - max|.
BY_EXP2: Fields = {"exp_ulps_per_x": 2.0}


def always(case: Mapping[str, Any]) -> bool:
    """True: a kernel that is fit for every case of its dtypes."""
    return True


def every_row_has_keys(case: Mapping[str, Any]) -> bool:
    """Whether no row of the case is without keys."""
    return not case["causal"] or case["seqlen_k"] >= case["seqlen_q"]


def small_inputs(case: Mapping[str, Any]) -> bool:
    """Whether the inputs' standard deviation is 1 at most."""
    return bool(case["input_std"] <= 1)


@dataclass(frozen=True)
class Style:
    """A correct kernel and what can be said of it.

    `function(q, k, v, *, scale, causal)` returns stages. `group` is one of exponent, row-sum, additive-mask, lse,
    clamp, arithmetic, workspace, order, wild. `dtypes` are those of q, k and v that it is for. `units` are the contract
    fields without which its dumps mean something else, `arithmetic` the others; values that are functions are called
    with q and k. `why` names where such kernels are found. `explained_by` names the fields without which an
    error as large as this kernel's has no explanation. `fits` tells the cases in which it is correct.
    """

    function: Kernel
    group: str
    dtypes: tuple[str, ...]
    units: Fields
    arithmetic: Fields
    why: str
    explained_by: tuple[str, ...] = ()
    fits: Callable[[Mapping[str, Any]], bool] = always

    @property
    def name(self) -> str:
        return self.function.__name__

    def contract(self, q: Array, k: Array, level: str) -> dict[str, Any]:
        """The contract for these inputs: of `level` full, units, or silent (rows without keys, if unusual)."""
        fields = {
            "full": {**self.units, **self.arithmetic},
            "units": dict(self.units),
            "silent": {name: x for name, x in self.units.items() if name.startswith("empty_")},
        }[level]
        return {name: x(q, k) if callable(x) else x for name, x in fields.items()}


def of_arithmetic(function: Kernel, dtypes: tuple[str, ...], units: Fields, fields: Fields, why: str) -> Style:
    """A style of group arithmetic that is explained by all of `fields`; otherwise its probs alone are cast."""
    return Style(function, "arithmetic", dtypes, units, {**CAST, **fields}, why, explained_by=tuple(fields))


def declared(style: Style, level: str) -> Kernel:
    """The style's kernel, whose dict has a contract of `level`: full, units, or silent, with out and lse alone."""

    def kernel(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
        stages = style.function(q, k, v, scale=scale, causal=causal)
        contract = style.contract(q, k, level)
        if level == "silent":
            stages = {name: stages[name] for name in ("out", "lse")}
        return {**stages, "contract": contract} if contract else stages

    kernel.__name__ = kernel.__qualname__ = f"{style.name}_{level}"
    return kernel


def cases(style: Style, count: int = 20, seed: int = 0) -> list[Case]:
    """`count` case options for which the style is fit, drawn from `seed`; each has a seed of its own."""
    return drawn(style.dtypes, style.fits, count, seed)


#: cases that are drawn for some that fit, at most: one in a thousand does where that is all that is asked
DRAWS = 100_000


def drawn(dtypes: tuple[str, ...], fits: Callable[[Mapping[str, Any]], bool], count: int, seed: int) -> list[Case]:
    """`count` case options of these dtypes that `fits` accepts: short and ragged lengths, grouped heads, empty rows."""
    rng = np.random.default_rng(seed)
    found: list[Case] = []
    for _ in range(DRAWS):
        if len(found) == count:
            return found
        case = _case(rng, dtypes)
        work = case["batch"] * case["heads"] * case["seqlen_q"] * case["seqlen_k"] * case["head_dim"]
        if work <= 1 << 22 and fits(case):
            found.append(case)
    raise ValueError(f"{len(found)} of {DRAWS} drawn cases fit, and {count} are wanted; seed {seed}")


def _case(rng: np.random.Generator, dtypes: tuple[str, ...]) -> Case:
    edges = (1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 200, 255, 256, 257, 300)
    lengths = [int(rng.choice(edges)) if rng.random() < 0.4 else int(rng.integers(1, 301)) for _ in range(2)]
    if rng.random() < 0.5:
        lengths[0] = lengths[1]
    heads, kv_heads = [(1, 1), (2, 2), (2, 1), (4, 2), (4, 1), (3, 1)][rng.integers(6)]
    return {
        "batch": int(rng.integers(1, 3)),
        "heads": heads,
        "kv_heads": kv_heads,
        "seqlen_q": lengths[0],
        "seqlen_k": lengths[1],
        "head_dim": int(rng.choice((16, 32, 64, 128), p=(0.1, 0.4, 0.4, 0.1))),
        "dtype": str(rng.choice(dtypes)),
        "causal": bool(rng.random() < 0.5),
        "distribution": "normal",
        "input_std": float(rng.choice((0.1, 1.0, 4.0), p=(0.2, 0.5, 0.3))),
        "seed": int(rng.integers(1 << 31)),
    }
