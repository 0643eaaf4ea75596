"""Formats of 8-bit codes: what each code stands for before the scale.

simulated   (c - 128) / 127 * 448 of the code c, 1 to 255: a symmetric integer with zero point 128
e4m3, e5m2  OCP's "8-bit floating point specification (OFP8)" 1.0, sections 5.1 and 5.2, as ml_dtypes has them
"""

from collections.abc import Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np


@dataclass(frozen=True, eq=False)
class Format:
    """A format of codes."""

    values: np.ndarray  #: of the 256 codes, float64
    dtype: np.dtype | None  #: that holds them, beside uint8; None where there is none
    encode_roundings: int  #: of float32, on the way from x to what is rounded to a code
    decode_roundings: int  #: of float32, on the way from a code to its entry in a table

    @property
    def largest(self) -> float:
        """The largest value, which max|x| is mapped to."""
        return float(self.values[np.isfinite(self.values)].max())


def _float8(dtype: type) -> Format:
    codes = np.arange(256, dtype=np.uint8)
    return Format(codes.view(dtype).astype(np.float64), np.dtype(dtype), encode_roundings=1, decode_roundings=1)


#: every format by the name of `fields.QUANTISED["codes"]`
FORMATS: Mapping[str, Format] = {
    "simulated": Format((np.arange(256) - 128) / 127 * 448, None, encode_roundings=3, decode_roundings=3),
    "e4m3": _float8(ml_dtypes.float8_e4m3fn),
    "e5m2": _float8(ml_dtypes.float8_e5m2),
}
#: format -> the name of the dtype that holds its codes
FLOAT8: Mapping[str, str] = {name: one.dtype.name for name, one in FORMATS.items() if one.dtype is not None}
#: dtype of codes -> their format; uint8 codes may be of any
BY_DTYPE: Mapping[np.dtype, str] = {one.dtype: name for name, one in FORMATS.items() if one.dtype is not None}
