"""From float tensors to 8-bit codes and their scales, for a quantised attention kernel; NumPy arrays or torch tensors.

Under test like a kernel: faults are put into this source, and `reference.quantize` is written apart from it. All
arithmetic is float32, each operation rounded to nearest. The formats (`kind`):

============= ======================================================================================================
``simulated`` a symmetric integer with zero point 128: value = (code - 128) / 127 * 448 * scale, codes 1 to 255
``e4m3``      OCP FP8 (Micikevicius et al. 2022, "FP8 formats for deep learning"): value = float8(code) * scale; largest
              448, no infinity, NaN is 0x7f and 0xff
``e5m2``      the same with largest 57344, infinity 0x7c and 0xfc, NaN 0x7d to 0x7f and 0xfd to 0xff
============= ======================================================================================================
"""

from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from workbench.case.fields import QUANTISED
from workbench.case.formats import FORMATS
from workbench.refusal import Refusal


class Encoding(NamedTuple):
    """How codes of a format are made."""

    largest: float  #: the largest value before the scale
    fraction_bits: int = 0  #: of float8; 0 for simulated codes
    smallest_exponent: int = 0  #: of float8's normal numbers
    overflow: int = 0  #: code of what lies beyond the largest value
    nan: int = 0  #: code of NaN; 0: there is none


_FIELDS: Mapping[str, Mapping[str, int]] = {
    "e4m3": {"fraction_bits": 3, "smallest_exponent": -6, "overflow": 0x7F, "nan": 0x7F},
    "e5m2": {"fraction_bits": 2, "smallest_exponent": -14, "overflow": 0x7C, "nan": 0x7F},
}
KINDS: Mapping[str, Encoding] = {
    name: Encoding(form.largest, **_FIELDS.get(name, {})) for name, form in FORMATS.items()
}
SCALINGS = QUANTISED["quantiser_scale"]
GRANULARITIES = ("tensor", "head", "block")
#: a tensor without a normal number in it is as good as zero: its scale is 1
SMALLEST_NORMAL = 2.0**-126


class Quantized(NamedTuple):
    """8-bit codes and the scales that belong to them, in the library and on the device of what was quantised."""

    codes: Any  #: uint8, of the input's shape
    scale: Any  #: float32


def quantize(
    x: Any, kind: str, *, saturate: bool, per: str = "head", block_rows: int | None = None, scaling: str = "dynamic"
) -> Quantized:
    """The codes of x [batch, head, row, dim], finite floats, and their scale, float32.

    `saturate`: what lies beyond the largest value becomes that value; otherwise it becomes NaN in e4m3 and infinity in
    e5m2, and wraps around in simulated codes. `per` and `scaling` as in `scale_of`. Zeros become code 128 (simulated),
    0 or 0x80 by their sign. Refusal for an unknown option, and for an x without a finite scale.
    """
    scale = scale_of(x, kind, per=per, block_rows=block_rows, scaling=scaling)
    spread = scale
    if per == "head":
        spread = scale[:, None, None]
    elif per == "block":
        spread = scale[:, :, [row // block_rows for row in range(x.shape[2])], None]  # type: ignore[operator]
    return Quantized(encode(x, spread, kind, saturate=saturate), scale)


def scale_of(x: Any, kind: str, *, per: str = "head", block_rows: int | None = None, scaling: str = "dynamic") -> Any:
    """What a code of the largest size stands for, over that size: max|x| / largest, float32; 1 where |x| < 2^-126.

    x [batch, head, row, dim]. `per` tensor: a scalar; head: [head], over all batches; block: [batch, head, blocks] of
    `block_rows` rows each, the last of what is left. `scaling` static: half of it, as of a calibration that saw smaller
    values.
    """
    for name, value, accepted in (
        ("kind", kind, KINDS),
        ("per", per, GRANULARITIES),
        ("scaling", scaling, SCALINGS),
    ):
        if value not in accepted:
            raise Refusal(f"{name} is one of {', '.join(accepted)}; got {value!r}")
    if (per == "block") != (block_rows is not None) or (block_rows is not None and block_rows < 1):
        raise Refusal(f"block_rows, at least 1, is given with per='block' alone; got per={per!r}, {block_rows=}")
    x, xp = _float32(x)
    size = xp.abs(x)
    if per == "block":
        starts = range(0, x.shape[2], block_rows)  # type: ignore[arg-type]
        largest = xp.stack([xp.amax(size[:, :, i : i + block_rows], axis=(2, 3)) for i in starts], axis=2)  # type: ignore[operator]
    else:
        largest = xp.amax(size, axis=(0, 2, 3) if per == "head" else (0, 1, 2, 3))
    if not bool(xp.all(xp.isfinite(largest))):
        raise Refusal("what is quantised must be finite to have a scale; got NaN or infinity")
    scale = largest / KINDS[kind].largest
    scale = scale / 2 if scaling == "static" else scale
    return xp.where(largest < SMALLEST_NORMAL, xp.ones_like(scale), scale)


def encode(x: Any, scale: Any, kind: str, *, saturate: bool) -> Any:
    """The codes of x / scale, uint8, to the nearest value, ties to even; NaN becomes NaN, which simulated codes refuse.

    `scale` float32, broadcast against x; `saturate` as in `quantize`.
    """
    form = KINDS[kind]
    x, xp = _float32(x)
    y = x / scale
    if saturate:
        y = xp.clip(y, -form.largest, form.largest)
    if kind == "simulated":
        if not bool(xp.all(xp.isfinite(y))):
            raise Refusal("simulated codes have neither NaN nor infinity; got one of them")
        return _uint8(_int32(xp.round(y * 127 / form.largest)) + 128)
    size = xp.abs(y)
    known = xp.isfinite(size)
    size = xp.where(known, size, xp.zeros_like(size))
    # of the leading bit; zero and subnormals have that of the smallest normal number
    exponent = xp.frexp(xp.clip(size, 2.0**form.smallest_exponent, None))[1] - 1
    # in units of the last kept bit: all but the rounding is exact, and a carry runs over into the exponent's field
    steps = _int32(xp.round(xp.ldexp(size, form.fraction_bits - exponent)))
    code = steps + (exponent - form.smallest_exponent) * 2**form.fraction_bits
    code = xp.clip(code, None, form.overflow)
    code = xp.where(known, code, xp.full_like(code, form.overflow))
    code = xp.where(xp.isnan(y), xp.full_like(code, form.nan), code)
    return _uint8(code + 128 * _int32(xp.signbit(y)))


def _float32(x: Any) -> tuple[Any, ModuleType]:
    """`x` in float32, and the library it belongs to."""
    if isinstance(x, np.ndarray):
        return x.astype(np.float32), np
    import torch

    return x.to(torch.float32), torch


def _int32(x: Any) -> Any:
    return x.astype(np.int32) if isinstance(x, np.ndarray) else x.int()


def _uint8(x: Any) -> Any:
    """The low 8 bits of integers."""
    return (x & 255).astype(np.uint8) if isinstance(x, np.ndarray) else (x & 255).byte()
