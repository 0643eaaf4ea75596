"""Other values of inputs, made of those that a function returned: large, tiny, alike, outliers, gates at either end.

A distribution leaves every input in what its values show of its domain (`domain_of`). Arrays of whole numbers, of
masks, of rows that sum up to 1 or have a length of 1, and what else is no plain float, stay as they are. Signs and
zeros stay, and gates stay between 0 and 1. What values do not show no distribution knows, such as a mean that belongs
to another input.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from workbench.arrays import as_numpy, as_torch
from workbench.floats import FLOATS, largest, to_float64, unit_roundoff
from workbench.refusal import Refusal, unknown

#: domains: any number; none below 0; from 0 to 1; none above 0; and what stays as it is
ANY, POSITIVE, GATES, LOG_GATES, FIXED = "any", "positive", "gates", "log-gates", "fixed"
#: distinct values of an array of at least 4 times as many that may be a table of codes
CODES = 16
#: how far from 1 sums and lengths of rows are that were normalised in the dtype of the array, in its unit roundoffs
NORMALISED = 16
#: factors: exact in every dtype. Of N(0, 1) in float16 products of two tiny ones are no denormals of float32, and an
#: outlier times 64 others is no infinity
LARGE, TINY, OUTLIER = 2.0**2, 2.0**-8, 2.0**4
#: one channel of so many is an outlier
CHANNELS = 16
#: a gate is 2^-u away from 0 or 1; of a 16-bit dtype no gate rounds to 1
NEAR = (3.0, 7.0)

_NAMES = {one.name for one in FLOATS}
Array = np.ndarray
#: float64 values of an input, its domain, random numbers -> other values
Change = Callable[[Array, str, np.random.Generator], Array]


def _large(x: Array, domain: str, _: np.random.Generator) -> Array:
    """4 times as large; gates as they are."""
    return x * LARGE if domain in (ANY, POSITIVE) else x


def _tiny(x: Array, domain: str, _: np.random.Generator) -> Array:
    """2^-8 times as large; gates as they are."""
    return x * TINY if domain in (ANY, POSITIVE) else x


def _outliers(x: Array, domain: str, random: np.random.Generator) -> Array:
    """16 times as large in one channel of 16, along the last axis; gates as they are."""
    if domain not in (ANY, POSITIVE) or x.shape[-1] < 2:
        return x
    factor = np.ones(x.shape[-1])
    factor[random.permutation(factor.size)[: max(1, factor.size // CHANNELS)]] = OUTLIER
    return x * factor


def _equal_rows(x: Array, domain: str, _: np.random.Generator) -> Array:
    """All rows along the longest axis but the last are the first; where zeros make a pattern, as it is."""
    if x.ndim < 2 or not x.all() or _is_symmetric(x):
        return x
    axis = max(range(x.ndim - 1), key=lambda axis: x.shape[axis])
    return np.broadcast_to(x.take([0], axis), x.shape)


def _gates_shut(x: Array, domain: str, random: np.random.Generator) -> Array:
    """Gates from 2^-7 to 2^-3, log gates their logarithms; other inputs as they are."""
    u = random.uniform(*NEAR, x.shape)
    return 2.0**-u if domain == GATES else -u * np.log(2.0) if domain == LOG_GATES else x


def _gates_open(x: Array, domain: str, random: np.random.Generator) -> Array:
    """Gates from 1 - 2^-3 to 1 - 2^-7, log gates from -2^-3 to -2^-7; other inputs as they are."""
    u = random.uniform(*NEAR, x.shape)
    return 1 - 2.0**-u if domain == GATES else -(2.0**-u) if domain == LOG_GATES else x


def _whole(x: Array, domain: str, _: np.random.Generator) -> Array:
    """Whole numbers from -3 to 3, of either sign as before; gates in quarters."""
    if domain == GATES:
        return np.clip(np.round(4 * x), 1, 3) / 4
    return np.sign(x) * np.clip(np.ceil(abs(x)), 1, 3)


def _signs(x: Array, domain: str, _: np.random.Generator) -> Array:
    """1 and -1, of either sign as before; gates 1/2."""
    return np.full_like(x, 0.5) if domain == GATES else np.sign(x)


#: those that a function has to stand, by name
FAMILIES: Mapping[str, Change] = {
    "large": _large,
    "tiny": _tiny,
    "outliers": _outliers,
    "equal-rows": _equal_rows,
    "gates-shut": _gates_shut,
    "gates-open": _gates_open,
}
#: those that are easier to read than what the function of the inputs gives, the easiest first
SIMPLE: Mapping[str, Change] = {"signs": _signs, "whole": _whole}
DISTRIBUTIONS: Mapping[str, Change] = {**FAMILIES, **SIMPLE}


def changed(name: str, inputs: Mapping[str, Any], seed: int, fixed: Collection[str] = ()) -> dict[str, Any]:
    """Inputs of the distribution `name`, in the dtypes and libraries of `inputs`, the same for a seed; "": as they are.

    fixed: inputs that stay, whatever their values show. Refusal for an unknown name.
    """
    if name and name not in DISTRIBUTIONS:
        raise Refusal(unknown("distribution", name, DISTRIBUTIONS))
    found = dict(inputs)
    for place, (key, x) in enumerate(inputs.items()):
        before = None if not name or key in fixed else as_float_array(x)
        if before is not None and (domain := domain_of(before)) != FIXED:
            wide = to_float64(before)
            made = DISTRIBUTIONS[name](wide, domain, np.random.default_rng((seed, place)))
            most = float(largest(before.dtype))
            made = np.where(wide == 0, 0.0, np.clip(made, -most, most)).astype(before.dtype)
            found[key] = made if isinstance(x, np.ndarray) else as_torch(made, key).to(x.device)
    return found


def domain_of(x: Array) -> str:
    """What the values of an input show of the values that it may have.

    FIXED: fewer than 2 elements, non-finite values; all whole numbers, all equal, or few distinct values; of length 1
    along an axis, or nonnegative with sums of 1 along one; ordered along an axis.
    """
    if x.size < 2:
        return FIXED
    wide = to_float64(x)
    if not np.isfinite(wide).all() or (wide == np.round(wide)).all() or (wide == wide.flat[0]).all():
        return FIXED
    few = np.unique(wide).size
    if few <= CODES and x.size >= 4 * CODES:
        return FIXED
    near = NORMALISED * unit_roundoff(x.dtype)
    for axis, n in enumerate(x.shape):
        if n < 2:
            continue
        sums = np.sqrt((wide**2).sum(axis)), wide.sum(axis)
        if any((abs(one - 1) <= near).all() for one in sums[: 1 + bool((wide >= 0).all())]):
            return FIXED
        steps = np.diff(wide, axis=axis)
        if n > 2 and ((steps >= 0).all() or (steps <= 0).all()):
            return FIXED
    if (wide >= 0).all():
        return GATES if (wide <= 1).all() else POSITIVE
    return LOG_GATES if (wide <= 0).all() else ANY


def _is_symmetric(x: Array) -> bool:
    return x.shape[-1] == x.shape[-2] > 1 and bool((x == x.swapaxes(-1, -2)).all())


def as_float_array(x: Any) -> Array | None:
    """An array of NumPy or torch in NumPy; None of a dtype that is no float of 16 bits or more, and of what is none."""
    ours = isinstance(x, np.ndarray) or hasattr(x, "detach")
    return as_numpy(x, "input") if ours and str(x.dtype).removeprefix("torch.") in _NAMES else None
