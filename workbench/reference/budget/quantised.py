"""Bounds of what a kernel on 8-bit codes decodes. u = 2^-24 is float32's unit roundoff.

Half an ulp of the dtype that stores a stage is always allowed (`elements.py`) and is the one rounding of an exact
stage: the division of a scale, of which a half is exact; the cast of an entry of a dumped table.
"""

import numpy as np

from workbench.floats import round_to
from workbench.reference import quantize


@np.errstate(all="ignore")
def decoding_error(value: np.ndarray, codes: str, of_scale: float = 0.0) -> np.ndarray:
    """Bound of |entry - value| of a code of the format `codes` decoded in float32, float64 of the shape of `value`.

    n rounded products and quotients, of which the last may underflow: g(n) |value| + 2^-150, g(n) = n u / (1 - n u)
    (Higham 2002, lemma 3.1), and the relative error `of_scale`. 0 for NaN and infinities, which are exact.
    """
    n = quantize.DECODE_ROUNDINGS[codes]
    gamma = n * quantize.U / (1 - n * quantize.U)
    relative = gamma + of_scale * (1 + gamma)
    return np.where(np.isfinite(value), relative * np.abs(value) + quantize.HALF_SUBNORMAL, 0.0)


@np.errstate(all="ignore")
def as_operands(low: np.ndarray, high: np.ndarray, dtype: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Smallest and largest value, float64, to which a correct kernel rounds what lies from `low` to `high`: rounding is
    monotone, so that the ends decide.

    `dtype`: to which it rounds; float32 rounds no more; None: nobody told which of them and of the 16-bit ones.
    """
    possible = (dtype,) if dtype is not None else ("float32", "float16", "bfloat16")
    lows, highs = [low], [high]
    for one in possible:
        if one != "float32":
            below, above = round_to(low, one), round_to(high, one)
            # a dtype that cannot hold the value is not what the kernel chose
            lows.append(np.where(np.isinf(below) & np.isfinite(low) & (dtype is None), low, below))
            highs.append(np.where(np.isinf(above) & np.isfinite(high) & (dtype is None), high, above))
    if dtype is not None:
        return lows[-1], highs[-1]
    return np.min(lows, axis=0), np.max(highs, axis=0)
