"""Bounds of the stages before attention of a kernel on 8-bit codes: scales, codes, decode tables, decoded inputs.

u = 2^-24 is float32's unit roundoff. Half an ulp of the dtype that stores a stage is always allowed (`comparison.py`)
and is the one rounding of an exact stage: the division of a scale, of which a half is exact; the cast of an entry of a
dumped table to float16.
"""

from collections.abc import Mapping

import numpy as np

from workbench.errors import round_to, ulp
from workbench.reference import quantize

Arrays = Mapping[str, np.ndarray]


@np.errstate(all="ignore")
def decoding_error(value: np.ndarray, codes: str) -> np.ndarray:
    """Bound of |entry - value| of a code of the format `codes` decoded in float32, float64 of the shape of `value`.

    n rounded products and quotients, of which the last may underflow: g(n) |value| + 2^-150, g(n) = n u / (1 - n u)
    (Higham 2002, lemma 3.1). 0 for NaN and infinities, which are exact.
    """
    n = quantize.DECODE_ROUNDINGS[codes]
    gamma = n * quantize.U / (1 - n * quantize.U)
    return np.where(np.isfinite(value), gamma * np.abs(value) + quantize.HALF_SUBNORMAL, 0.0)


@np.errstate(all="ignore")
def decoded_interval(value: np.ndarray, codes: str) -> tuple[np.ndarray, np.ndarray]:
    """Smallest and largest float16, as float64, that a correct kernel decodes from a code that stands for `value`:
    rounding is monotone, so that the ends of the interval before the cast bound what comes after it.
    """
    error = decoding_error(value, codes)
    return round_to(value - error, "float16"), round_to(value + error, "float16")


@np.errstate(all="ignore")
def bound(name: str, value: np.ndarray, codes: str, looked_up: bool) -> np.ndarray:
    """Bound of |actual - value| of the stage `name` without the half ulp of an exact stage, float64.

    `value` is the stage from what it read, float64; `looked_up`: that was a dumped table. A table entry: its roundings.
    A decoded input: the cast to float16, half an ulp of what reaches it, and the roundings before the cast where no
    table was dumped. Scales and codes: 0; where roundings reach a tie between two codes, either is expected.
    """
    if name.startswith("lut"):
        return decoding_error(value, codes)
    if not name.startswith("dequant") or looked_up:
        return np.zeros_like(value)
    error = decoding_error(value, codes)
    return np.where(np.isfinite(value), error + ulp(np.abs(value) + error, "float16") / 2, 0.0)
