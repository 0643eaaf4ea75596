"""What the fields of a contract may say: their rules, and values of other libraries as Python's own."""

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any

import numpy as np

from workbench.case.formats import FLOAT8
from workbench.case.tensor_cores import GENERATIONS
from workbench.floats import DTYPES
from workbench.records import Rule, one_of

#: how a sum of products is accumulated: in float32 and rounded to nearest in any order; in the aligned, truncated
#: blocks of a tensor core; or either
ACCUMULATIONS = ("nearest", "tensor-core", "any")
#: how a cast rounds: to the nearest value, ties to even; toward zero; or either
ROUNDINGS = ("nearest", "toward-zero", "any")
#: what exp is given: the difference of a rounded score and its maximum; exp2(fma(score, scale * log2(e), -max_scaled))
#: as in FlashAttention-2 (Dao 2023, arXiv 2307.08691), where max_scaled is the rounded product; or either
EXP_ARGUMENTS = ("difference", "fma", "any")
#: what row_max and partial_max hold: the running maximum; a number at least as large, such as a bound by norms; one
#: that lags behind it by no more than a threshold, as FlashAttention-4's does, which rescales no sooner; or any number
ROW_MAXIMA = ("running", "upper_bound", "lagging", "any")
#: where probs get their power of two: in the argument of exp, as FlashAttention-3's Max_offset; or before their cast
OFFSETS = ("exp", "cast")
#: degree -> coefficients of FlashAttention-4's polynomials for 2^f on [0, 1), the constant first, which is pinned to 1
#: (flash_attn/cute/utils.py, POLY_EX2, made with Sollya); x is cut into a whole number and f (Cody and Waite 1980)
EXP_POLYNOMIALS: Mapping[int, tuple[float, ...]] = {
    1: (1.0, 0.922497093677520751953125),
    2: (1.0, 0.6657850742340087890625, 0.330107033252716064453125),
    3: (1.0, 0.695146143436431884765625, 0.227564394474029541015625, 0.077119089663028717041015625),
    4: (1.0, 0.693042695522308349609375, 0.2412912547588348388671875, 0.05222535878419876, 0.013434938155114651),
    5: (1.0, 0.693151414394378662109375, 0.24016360938549041748046875, 0.05580218881368637, 0.009014522656798363,
        0.0018681015353649855),
}  # fmt: skip
#: how weights are normalised: by one division; as exp(score - lse) and in merges by lse, without one; or either
BY_LSE = "lse"  #: weights are exp(score - lse), and no division follows
NORMALISATIONS = ("division", BY_LSE, "any")
#: what partial_O holds of a split: the numerator; or out of its keys alone, as FlashDecoding's and FlashInfer's
PARTIALS = ("unnormalised", "normalised")
#: what is stored of a split beside it: the maximum and the sum of its weights; or one number in partial_max, its lse,
#: as of FlashDecoding (Dao et al. 2023), or lse * log2(e), as of FlashInfer (Ye et al. 2025, arXiv 2501.01005)
PARTIAL_STATS = ("max,sum", "lse", "lse2")
#: order in which a row visits its key tiles, where it is not a list of tiles
TILE_ORDERS = ("ascending", "descending")
#: where the scale is applied: to scores; to q, to k, or its root to both, in float32 before the product; or any
SCALED = ("scores", "q", "k", "both", "any")
#: how float32 operands of products are rounded, in Triton's terms
INPUT_PRECISIONS = ("ieee", "tf32", "tf32x3")


@dataclass(frozen=True)
class OfPreset:
    """A value that a preset has for a field, and nobody said of the kernel itself."""

    value: Any


def unwrapped(said: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The fields with their values, and the names of those that only a preset says."""
    of_preset = tuple(name for name, value in said.items() if isinstance(value, OfPreset))
    return {name: x.value if isinstance(x, OfPreset) else x for name, x in said.items()}, of_preset


def clause(
    meaning: str, rule: Rule, default: Any = MISSING, function: tuple[str, Mapping[str, float]] | None = None
) -> Any:
    """A field of a contract, with what it means and what it may say. `function`: of one that says how a function is
    computed, the number of the case that the function is due to, and the relative error of each choice.
    """
    return field(default=default, metadata={"meaning": meaning, "rule": rule, "function": function})


def _whole(x: Any, low: float = -math.inf, high: float = math.inf) -> bool:
    return isinstance(x, int) and not isinstance(x, bool) and low <= x <= high


def _number(x: Any) -> bool:
    """Whether it is a number of float64, an infinity and NaN among them."""
    if not isinstance(x, int | float) or isinstance(x, bool):
        return False
    try:
        float(x)
    except OverflowError:
        return False
    return True


def _from(low: int, high: int) -> Rule:
    return Rule(f"a whole number from {low} to {high}", lambda x: _whole(x, low, high))


def _wholes(x: Any) -> bool:
    return isinstance(x, tuple) and all(_whole(one, 0) for one in x)


TRUTH = Rule("true or false", lambda x: isinstance(x, bool))
DEGREE = Rule(
    f"a degree from {min(EXP_POLYNOMIALS)} to {max(EXP_POLYNOMIALS)}, or None",
    lambda x: x is None or (_whole(x) and x in EXP_POLYNOMIALS),
)
COUNT = Rule("a whole number of at least 1", lambda x: _whole(x, 1))
INDEX = Rule("a whole number of at least 0", lambda x: _whole(x, 0))
#: most of them without keys: kernels have some hundred at most, and each costs the reference time and memory
SPLITS = _from(1, 4096)
#: hardware has 4 to 32; and float32 has 24 bits, all but one of which an accumulator may lack
MMA_BLOCK, MMA_EXTRA_BITS = _from(1, 4096), _from(-23, 64)
GENERATION = one_of([*GENERATIONS])
DTYPE, PROBS_DTYPE = one_of([*DTYPES]), one_of([*DTYPES, *FLOAT8.values()])
#: of a row without keys: 0, NaN, or a mean of v, as numbers that hide keys make one, with weights of any size
LIBRARIES = "libraries"
EMPTY_LSE = Rule("a number, inf, nan or libraries", lambda x: x == LIBRARIES or _number(x))
EMPTY = Rule("a number, inf, nan, libraries or any", lambda x: x in ("any", LIBRARIES) or _number(x))
#: no larger than exp2 of the rest can be multiplied by in float32
OFFSET = _from(0, 64)
LAG = Rule("a number from 0 to 64", lambda x: _number(x) and 0 <= x <= 64)
AT_LEAST_0 = Rule("a number of at least 0", lambda x: _number(x) and x >= 0)
NEGATIVE = Rule("a negative number", lambda x: _number(x) and x < 0)
FLOOR = Rule("a negative number, or None", lambda x: x is None or (_number(x) and -math.inf < x < 0))
BOUNDS = Rule(
    "whole numbers from 0, never decreasing, such as [0, 40, 128]",
    lambda x: _wholes(x) and len(x) > 1 and x[0] == 0 and list(x) == sorted(x),
)
ORDER = Rule(
    f"{', '.join(TILE_ORDERS)}, or a list of all tiles, such as [0, 2, 1]",
    lambda x: x in TILE_ORDERS if isinstance(x, str) else _wholes(x) and sorted(x) == list(range(len(x))),
)


def plain(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with lists as tuples, numbers and truths of other libraries as Python's, and dtypes by their names."""
    return {name: _plain(value) for name, value in given.items()}


def _plain(value: Any) -> Any:
    if hasattr(value, "item") and getattr(value, "shape", None) == ():  # NumPy's numbers, tensors of one
        return value.item()
    if isinstance(value, list | tuple | np.ndarray):
        return tuple(map(_plain, value))
    if isinstance(value, type | np.dtype) and issubclass(np.dtype(value).type, np.generic):
        return np.dtype(value).name
    return str(value).removeprefix("torch.") if str(value).startswith("torch.") else value
