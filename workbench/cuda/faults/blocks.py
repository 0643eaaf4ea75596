"""Faults of codes with a scale for each token or block of dims: scales, zero points, two codes in a byte."""

from workbench.case.case import Case
from workbench.cuda.faults.fault import Fault
from workbench.cuda.faults.quantiser import QUANTISER

_MXFP8, _NVFP4, _INT4 = {"codes": "mxfp8-e4m3"}, {"codes": "nvfp4"}, {"codes": "int4"}
#: a row of which has several scales
_SEVERAL = _MXFP8 | {"head_dim": 80}
_DECODED = ("dequant_q", "dequant_k", "dequant_v")


def _several_blocks(case: Case) -> bool:
    """Whether a row has several scales."""
    return case.sizes["g"] > 1


def _several_rows(case: Case) -> bool:
    """Whether queries and keys are several."""
    return case.seqlen_q > 1 and case.seqlen_k > 1


def _any_blocks(case: Case) -> bool:
    """Whether a swizzle moves a scale."""
    return _several_rows(case) and _several_blocks(case)


FAULTS: tuple[Fault, ...] = (
    # scales
    Fault(
        "block-scales-read-swizzled",
        "fp8",
        "scales that lie row by row are read as if they lay in the 128x4 swizzle of block-scaled matrix products",
        "value = libdevice.fmul_rn(value, scale_at(scales, b, h, row, block))",
        "n = scales.shape[3]; place = row // 128 * ((n + 3) // 4) * 512 + block // 4 * 512 + row % 32 * 16; "
        "place = (place + row % 128 // 32 * 4 + block % 4) % (scales.shape[2] * n); "
        "value = libdevice.fmul_rn(value, scale_at(scales, b, h, place // n, place % n))",
        _DECODED,
        needs=_SEVERAL,
        shows=_any_blocks,
        source="synthetic",
    ),
    Fault(
        "block-scale-of-next",
        "fp8",
        "a block of dims is decoded with the scale of the next one",
        "row, block = first_row + r, d // BLOCK",
        "row, block = first_row + r, min(d // BLOCK + 1, (head_dim - 1) // BLOCK)",
        _DECODED,
        needs=_SEVERAL,
        shows=_several_blocks,
        source="synthetic",
    ),
    Fault(
        "block-scale-of-next-token",
        "fp8",
        "a token is decoded with the scales of the next one",
        "scale_at(scales, b, h, row, block))",
        "scale_at(scales, b, h, min(row + 1, scales.shape[2] - 1), block))",
        _DECODED,
        needs={"codes": "e4m3", "scale_of": "token"},
        shows=_several_rows,
        source="synthetic",
    ),
    Fault(
        "v-uses-block-scales-of-k",
        "fp8",
        "V is decoded with the scales of K",
        "codes_v, scale_v, zero_v, global_v",
        "codes_v, scale_k, zero_v, global_v",
        ("dequant_v",),
        needs=_MXFP8,
        source="sglang#26852",
    ),
    Fault(
        "block-of-32-for-16",
        "fp8",
        "a scale of 16 dims is taken for that of 32",
        "row, block = first_row + r, d // BLOCK",
        "row, block = first_row + r, d // (2 * BLOCK)",
        _DECODED,
        needs=_NVFP4,
        shows=_several_blocks,
        source="synthetic",
    ),
    Fault(
        "block-of-16-for-32",
        "fp8",
        "a scale of 32 dims is taken for that of 16",
        "row, block = first_row + r, d // BLOCK",
        "row, block = first_row + r, min(d // (BLOCK // 2), (head_dim - 1) // BLOCK)",
        _DECODED,
        needs=_SEVERAL,
        shows=_several_blocks,
        source="synthetic",
    ),
    Fault(
        "e8m0-bias-128",
        "fp8",
        "the exponent of E8M0 is read with bias 128, which is one more",
        "libdevice.int_as_float(int32(exponent << 23 if exponent > 0 else 1 << 22))",
        "libdevice.int_as_float(int32(exponent - 1 << 23 if exponent > 1 else 1 << 22))",
        _DECODED,
        needs=_MXFP8,
        source="synthetic",
    ),
    Fault(
        "tensor-scale-forgotten",
        "fp8",
        "the scales of blocks are not multiplied with that of the tensor",
        "value = libdevice.fmul_rn(value, tensor_scales[h])",
        "value = value",
        _DECODED,
        needs=_NVFP4,
        source="synthetic",
    ),
    # values of codes
    Fault(
        "float4-subnormal-is-zero",
        "fp8",
        "0.5 and -0.5, the subnormal numbers of E2M1, are decoded as 0",
        "float32(0.5) * float32(fraction)",
        "float32(0.0) * float32(fraction)",
        _DECODED,
        needs=_NVFP4,
        source="synthetic",
    ),
    Fault(
        "int8-read-as-unsigned",
        "fp8",
        "bytes from 128 on are not taken for negative",
        "float32(code - 256 if code > 127 else code)",
        "float32(code)",
        ("lut_k", "lut_v", *_DECODED),
        needs={"codes": "int8"},
        source="synthetic",
    ),
    Fault(
        "halves-of-bytes-swapped",
        "fp8",
        "the first of two codes in a byte is taken from its high half",
        ">> d % 2 * 4 & 15",
        ">> (1 - d % 2) * 4 & 15",
        _DECODED,
        needs=_INT4,
        source="synthetic",
    ),
    # zero points
    Fault(
        "zero-point-forgotten",
        "fp8",
        "codes are decoded without their zero point",
        "value = value - zeros[b, h, row, block]",
        "value = value",
        _DECODED,
        needs=_INT4,
        source="synthetic",
    ),
    Fault(
        "zero-point-off-by-one",
        "fp8",
        "the zero point is taken for one more, as it is where zero - 1 is stored",
        "value = value - zeros[b, h, row, block]",
        "value = value - zeros[b, h, row, block] - float32(1)",
        _DECODED,
        needs=_INT4,
        source="synthetic",
    ),
    Fault(
        "v-uses-zero-points-of-k",
        "fp8",
        "V is decoded with the zero points of K",
        "codes_v, scale_v, zero_v, global_v",
        "codes_v, scale_v, zero_k, global_v",
        ("dequant_v",),
        needs=_INT4,
        source="synthetic",
    ),
    # the quantiser
    Fault(
        "quantiser-e8m0-to-nearest",
        "fp8",
        "the exponent of a block's scale is rounded to the nearest",
        'exponent = _exponent(largest, xp) - least - int(scaling == "static")',
        'exponent = xp.round(xp.log2(largest)).astype(int) - least - int(scaling == "static")',
        ("scale_q", "scale_k", "scale_v"),
        needs=_MXFP8,
        file=QUANTISER,
        source="synthetic",
    ),
    Fault(
        "quantiser-zero-truncated",
        "fp8",
        "zero points are truncated, not rounded to the nearest",
        "xp.round(-xp.clip(low, None, 0) / scale)",
        "xp.trunc(-xp.clip(low, None, 0) / scale)",
        ("zero_q", "zero_k", "zero_v"),
        needs=_INT4,
        file=QUANTISER,
        source="synthetic",
    ),
)
