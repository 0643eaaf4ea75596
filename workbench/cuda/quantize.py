"""From float tensors to codes of few bits and their scales, for a quantised attention kernel; NumPy arrays or torch
tensors.

Under test like a kernel: faults are put into this source, and `reference.quantize` is written apart from it. All
arithmetic is float32, each operation rounded to nearest. The formats (`kind`):

============= ======================================================================================================
``simulated`` a symmetric integer with zero point 128: value = (code - 128) / 127 * 448 * scale, codes 1 to 255
``e4m3``      OCP FP8 (Micikevicius et al. 2022, "FP8 formats for deep learning"): value = float8(code) * scale; largest
              448, no infinity, NaN is 0x7f and 0xff
``e5m2``      the same with largest 57344, infinity 0x7c and 0xfc, NaN 0x7d to 0x7f and 0xfd to 0xff
``mxfp8-*``   OCP MX 1.0: the same, a power of two for each 32 dims
``nvfp4``     float4(code) * scale * scale of the tensor, E2M1 codes, a scale in e4m3 for each 16 dims
``int8``      a signed byte * scale, -127 to 127
``int4``      (code - zero point) * scale, codes and zero points 0 to 15, for each 64 dims
============= ======================================================================================================
"""

from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from workbench.case.case import Case
from workbench.case.fields import QUANTISED
from workbench.case.formats import FORMATS, TILE_ROWS
from workbench.case.stages import BLOCKS
from workbench.refusal import Refusal


class Encoding(NamedTuple):
    """How codes of a format are made."""

    largest: float  #: the largest value before the scale
    fraction_bits: int = 0  #: of floats; 0 for integers
    smallest_exponent: int = 0  #: of a float's normal numbers
    overflow: int = 0  #: code of what lies beyond the largest value
    nan: int = 0  #: code of NaN; 0: there is none
    sign: int = 128  #: of floats, added to the code of negative ones


_E4M3 = {"fraction_bits": 3, "smallest_exponent": -6, "overflow": 0x7F, "nan": 0x7F}
_E5M2 = {"fraction_bits": 2, "smallest_exponent": -14, "overflow": 0x7C, "nan": 0x7F}
_FIELDS: Mapping[str, Mapping[str, int]] = {
    "e4m3": _E4M3,
    "mxfp8-e4m3": _E4M3,
    "e5m2": _E5M2,
    "mxfp8-e5m2": _E5M2,
    "nvfp4": {"fraction_bits": 1, "smallest_exponent": 0, "overflow": 7, "sign": 8},
}
KINDS: Mapping[str, Encoding] = {
    name: Encoding(form.largest, **_FIELDS.get(name, {})) for name, form in FORMATS.items()
}
SCALINGS = QUANTISED["quantiser_scale"]
#: a tensor without a normal number in it is as good as zero: its scale is 1
SMALLEST_NORMAL = 2.0**-126
#: the largest e4m3, the exponents of E8M0, and the largest code of four bits
LARGEST_E4M3, LEAST_E8M0, LAST_E8M0, LAST_4_BITS = 448.0, -127, 127, 15


class Quantized(NamedTuple):
    """Codes and the scales that belong to them, in the library and on the device of what was quantised."""

    codes: Any  #: uint8, of the input's shape, one a byte
    scale: Any  #: float32


def quantized(x: Any, name: str, case: Case) -> dict[str, Any]:
    """The codes of the input `name`, x [batch, head, row, dim], as a case with codes says (`codes`, `quantiser_scale`,
    `scale_of`), and all that belongs to them, by the names of their stages: codes uint8, one a byte, others float32.
    """
    kind, scaling, form = str(case.codes), case.quantiser_scale or SCALINGS[0], FORMATS[str(case.codes)]
    if case.scale_of not in BLOCKS:
        made = quantize(x, kind, scaling=scaling)
        return {f"codes_{name}": made.codes, f"scale_{name}": made.scale}
    dims = form.block if case.scale_of == "block" else x.shape[-1]
    found: dict[str, Any] = {}
    over = zero = None
    if form.tensor_scale:
        over = tensor_scale_of(x, kind, scaling=scaling)
        found[f"global_{name}"] = over
    if case.scale_of == "tile":
        scale = over_rows(scale_of(x, kind, rows=TILE_ROWS, scaling=scaling), TILE_ROWS, x.shape[2])
    else:
        scale = scale_of(x, kind, dims=dims, scaling=scaling, over=over)
    if form.zero:
        zero = zero_of(x, scale, dims)
        found[f"zero_{name}"] = zero
    by = spread(scale, dims, x.shape[-1])
    if over is not None:
        by = by * over[:, None, None]
        by[by == 0] = float("inf")  # of a block far below the largest number of the tensor: all become 0
    codes = encode(x, by, kind, zero=None if zero is None else spread(zero, dims, x.shape[-1]))
    return {f"codes_{name}": codes, f"scale_{name}": scale, **found}


def spread(scale: Any, dims: int, head_dim: int) -> Any:
    """A scale of every `dims` dims [batch, head, row, block] as one of each of them, [batch, head, row, head_dim]."""
    return scale[..., [d // dims for d in range(head_dim)]]


def over_rows(scale: Any, block_rows: int, rows: int) -> Any:
    """A scale of every `block_rows` rows [batch, head, block] as one of each of them, [batch, head, row, 1]."""
    return scale[:, :, [row // block_rows for row in range(rows)], None]


def quantize(x: Any, kind: str, *, scaling: str = "dynamic") -> Quantized:
    """The codes of x [batch, head, row, dim], finite floats, and the scale of each head, float32.

    What lies beyond the largest value becomes that value. `scaling` as in `scale_of`. Zeros become code 128
    (simulated), 0 or 0x80 by their sign. Refusal for an unknown option, and for an x without a finite scale.
    """
    scale = scale_of(x, kind, scaling=scaling)
    return Quantized(encode(x, scale[:, None, None], kind), scale)


def scale_of(x: Any, kind: str, *, rows: int = 0, scaling: str = "dynamic", dims: int = 0, over: Any = None) -> Any:
    """What a code of the largest size stands for, over that size: max|x| / largest, float32; 1 where |x| < 2^-126.

    x [batch, head, row, dim]. Of a head, [head], over all batches; of every `rows` rows, [batch, head, block]; or of
    every `dims` dims, [batch, head, row, block]; the last of what is left. `scaling` static: half of it, as of a
    calibration that saw smaller values.

    Of mxfp8 2^(floor(log2 max|x|) - floor(log2 largest)), 2^-127 to 2^127 (OCP MX 1.0, section 6.3); of nvfp4 max|x| /
    largest / `over`, the scale of the tensor [head], rounded to e4m3; of int4 (max(x, 0) - min(x, 0)) / 15.
    """
    for name, value, accepted in (("kind", kind, KINDS), ("scaling", scaling, SCALINGS)):
        if value not in accepted:
            raise Refusal(f"{name} must be one of {', '.join(accepted)}; got {value!r}")
    x, xp = _float32(x)
    size = xp.abs(x)
    if dims:
        largest = _over_dims(size, dims, xp.amax, xp)
    elif rows:
        starts = range(0, x.shape[2], rows)
        largest = xp.stack([xp.amax(size[:, :, i : i + rows], axis=(2, 3)) for i in starts], axis=2)
    else:
        largest = xp.amax(size, axis=(0, 2, 3))
    if not bool(xp.all(xp.isfinite(largest))):
        raise Refusal("inputs of a quantiser must be finite; got NaN or infinity")
    if kind.startswith("mxfp8"):
        least = _exponent(xp.full_like(largest, KINDS[kind].largest), xp)
        exponent = _exponent(largest, xp) - least - int(scaling == "static")
        exponent = xp.where(largest == 0, xp.full_like(exponent, LEAST_E8M0), exponent)
        return xp.ldexp(xp.ones_like(largest), xp.clip(exponent, LEAST_E8M0, LAST_E8M0))
    if kind == "nvfp4":
        wanted = largest / KINDS[kind].largest / over[:, None, None]
        return decoded_e4m3(encode(wanted, 1.0, "e4m3"), xp)
    if kind == "int4":
        low = _over_dims(x, dims, xp.amin, xp)
        high = _over_dims(x, dims, xp.amax, xp)
        largest = xp.clip(high, 0, None) - xp.clip(low, None, 0)
    scale = largest / KINDS[kind].largest
    scale = scale / 2 if scaling == "static" else scale
    return xp.where(largest < SMALLEST_NORMAL, xp.ones_like(scale), scale)


def tensor_scale_of(x: Any, kind: str, *, scaling: str) -> Any:
    """The scale of nvfp4's scales, alike for all heads, float32 [head]: max|x| / (largest value * largest e4m3), half
    of it where `scaling` is static; 1 where |x| < 2^-126.
    """
    x, xp = _float32(x)
    largest = xp.amax(xp.abs(x))
    scale = largest / (KINDS[kind].largest * LARGEST_E4M3)
    scale = scale / 2 if scaling == "static" else scale
    scale = xp.where(largest < SMALLEST_NORMAL, xp.ones_like(largest), scale)
    return scale * xp.ones_like(x[0, :, 0, 0])


def zero_of(x: Any, scale: Any, dims: int) -> Any:
    """The code of 0 of every `dims` dims, a whole number 0 to 15 in float32, of x and its scale."""
    x, xp = _float32(x)
    low = _over_dims(x, dims, xp.amin, xp)
    return xp.clip(xp.round(-xp.clip(low, None, 0) / scale), 0, LAST_4_BITS)


def encode(x: Any, scale: Any, kind: str, *, zero: Any = None) -> Any:
    """The codes of x / scale, uint8, to the nearest value, ties to even, and at most the largest; NaN becomes NaN,
    which integers refuse. `scale` float32, and `zero`, the code of 0 of int4, broadcast against x.
    """
    form = KINDS[kind]
    x, xp = _float32(x)
    y = x / scale
    y = xp.clip(y, -form.largest, form.largest)
    if kind == "simulated":
        if not bool(xp.all(xp.isfinite(y))):
            raise Refusal("simulated codes cannot represent NaN or infinity; got one of them")
        return _uint8(_int32(xp.round(y * 127 / form.largest)) + 128)
    if kind == "int8":
        return _uint8(_int32(xp.round(y)))
    if kind == "int4":
        return _uint8(_int32(xp.clip(xp.round(x / scale) + zero, 0, LAST_4_BITS)))
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
    return _uint8(code + form.sign * _int32(xp.signbit(y)))


def decoded_e4m3(codes: Any, xp: ModuleType) -> Any:
    """What codes of e4m3 stand for, float32."""
    values = FORMATS["e4m3"].values.astype(np.float32)
    return values[codes] if xp is np else xp.from_numpy(values).to(codes.device)[codes.long()]


def _over_dims(x: Any, dims: int, take: Any, xp: ModuleType) -> Any:
    """Of every `dims` dims of x the largest or the smallest, [batch, head, row, block]."""
    return xp.stack([take(x[..., i : i + dims], axis=-1) for i in range(0, x.shape[-1], dims)], axis=-1)


def _exponent(x: Any, xp: ModuleType) -> Any:
    """floor(log2 x) of float32 x, exact, int32."""
    return xp.frexp(x)[1] - 1


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
