"""Formats of codes: what each code stands for before its scale, and how far a scale reaches.

simulated   (c - 128) / 127 * 448 of the code c, 1 to 255: a symmetric integer with zero point 128
e4m3, e5m2  OCP's "8-bit floating point specification (OFP8)" 1.0, sections 5.1 and 5.2, as ml_dtypes has them
mxfp8-*     the same in blocks of 32 with a power of two for a scale (E8M0): OCP's "Microscaling formats (MX)" 1.0,
            sections 5 and 6
nvfp4       E2M1 of the same specification in blocks of 16, whose scales are e4m3 and have a float32 scale of their own,
            one a tensor: NVIDIA, "Pretraining large language models with NVFP4" (arXiv 2509.25149), appendix C
int8        signed bytes -127 to 127, symmetric
int4        0 to 15 with a zero point, asymmetric, as of KV caches: Liu et al., "KIVI" (arXiv 2402.02750), section 3.1

What a code c stands for is (value of c - zero point) * scale * scale of the tensor, of those that its format has.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from workbench.floats import smallest_normal

#: rows that share a scale where a tile of them does: the most that a block of FlashAttention-3 has
TILE_ROWS = 128


@dataclass(frozen=True, eq=False)
class Format:
    """A format of codes."""

    values: np.ndarray  #: of its 256 or 16 codes, float64
    dtype: np.dtype | None  #: that holds them, one a byte, beside uint8; None where there is none
    encode_roundings: int  #: of float32, on the way from x to what is rounded to a code
    decode_roundings: int  #: of float32, on the way from a code and its scales to what it stands for
    scales: tuple[str, ...] = ("head",)  #: what may share a scale; the first where nobody says
    block: int = 0  #: dims that share a scale in blocks
    scale_dtype: str = "float32"  #: or what a scale is rounded to
    zero: bool = False  #: whether a scale has a zero point beside it
    tensor_scale: bool = False  #: whether scales have a scale of their own, one a tensor

    @property
    def largest(self) -> float:
        """The largest value, which max|x| is mapped to."""
        return float(self.values[np.isfinite(self.values)].max())

    @property
    def kinds(self) -> tuple[str, ...]:
        """What codes are decoded with, as the first words of stages: scale, and zero or global where it has them."""
        return ("scale", *["zero"] * self.zero, *["global"] * self.tensor_scale)

    @property
    def smallest_normal(self) -> float:
        """The smallest value that has all its digits; 0 of whole numbers."""
        return 0.0 if self.dtype is None or self.dtype == _INT8 else smallest_normal(self.dtype)

    @property
    def four_bits(self) -> bool:
        """Whether two codes lie in a byte."""
        return len(self.values) == 16


_E4M3, _E5M2 = (np.dtype(x) for x in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2))
_E2M1, _INT8 = np.dtype(ml_dtypes.float4_e2m1fn), np.dtype(np.int8)


def _values(dtype: np.dtype, codes: int = 256) -> np.ndarray:
    return np.arange(codes, dtype=np.uint8).view(dtype).astype(np.float64)


def _float8(dtype: np.dtype) -> Format:
    return Format(_values(dtype), dtype, 1, 1, scales=("head", "token", "block", "tile"), block=128)


def _mxfp8(dtype: np.dtype) -> Format:
    # quotients and products with powers of two are exact
    return Format(_values(dtype), dtype, 0, 0, scales=("block",), block=32, scale_dtype="float8_e8m0fnu")


#: every format by the name of `fields.QUANTISED["codes"]`
FORMATS: Mapping[str, Format] = {
    "simulated": Format((np.arange(256) - 128) / 127 * 448, None, encode_roundings=3, decode_roundings=3),
    "e4m3": _float8(_E4M3),
    "e5m2": _float8(_E5M2),
    "mxfp8-e4m3": _mxfp8(_E4M3),
    "mxfp8-e5m2": _mxfp8(_E5M2),
    # x over the product of both scales, or times their reciprocals; a code times one scale, then the other
    "nvfp4": Format(
        _values(_E2M1, 16), _E2M1, 4, 2, ("block",), block=16, scale_dtype="float8_e4m3fn", tensor_scale=True
    ),
    "int8": Format(_values(_INT8), _INT8, 2, 1, scales=("head", "token")),
    # c * scale - zero * scale rounds twice, and the difference
    "int4": Format(np.arange(16.0), None, 2, 3, scales=("block", "token"), block=64, zero=True),
}
#: format -> the name of the dtype that holds its codes, of float8 that needs no scale
FLOAT8: Mapping[str, str] = {"e4m3": _E4M3.name, "e5m2": _E5M2.name}
#: dtype of codes -> the plainest of their formats; uint8 codes may be of any
BY_DTYPE: Mapping[np.dtype, str] = {
    one.dtype: name for name, one in reversed([*FORMATS.items()]) if one.dtype is not None
}


def blocks_of(codes: str, scale_of: str | None, head_dim: int) -> int:
    """How many scales a row of `head_dim` codes has."""
    return -(-head_dim // FORMATS[codes].block) if scale_of == "block" else 1


def kinds_of(codes: str | None) -> tuple[str, ...]:
    """`Format.kinds`; those of any where the format is not declared."""
    return ("scale", "zero", "global") if codes is None else FORMATS[codes].kinds


def beside(codes: str, coded: str) -> list[str]:
    """The stages that codes of the inputs `coded`, such as kv, are decoded with: their scales, and the zero points and
    scales of tensors that the format has.
    """
    return [f"{kind}_{x}" for kind in FORMATS[codes].kinds for x in coded]


def said_by(dtype: str | None, codes: str | None) -> bool:
    """Whether codes in the dtype of the format `dtype` may be of the format `codes`."""
    return dtype is None or codes is None or FORMATS[dtype].dtype == FORMATS[codes].dtype


def float8_of(codes: str | None) -> str | None:
    """The name of the float8 dtype that holds codes of a format, whatever their scales are; None of other formats."""
    return None if codes is None else FLOAT8.get(codes.removeprefix("mxfp8-"))
