"""Faults of codes with a scale for each token or block of dims: scales, zero points, two codes in a byte."""

from workbench.cuda.faults.codes import several_blocks, several_rows
from workbench.cuda.faults.fault import Fault

_MXFP8, _NVFP4, _INT4 = {"codes": "mxfp8-e4m3"}, {"codes": "nvfp4"}, {"codes": "int4"}
#: a row of which has several scales
_SEVERAL = _MXFP8 | {"head_dim": 80}
_DECODED = ("dequant_q", "dequant_k", "dequant_v")

FAULTS: tuple[Fault, ...] = (
    # scales
    Fault(
        "block-scale-of-next",
        "fp8",
        "a block of dims is decoded with the scale of the next one",
        "row, block = first_row + r, d // BLOCK",
        "row, block = first_row + r, min(d // BLOCK + 1, (head_dim - 1) // BLOCK)",
        _DECODED,
        needs=_SEVERAL,
        shows=several_blocks,
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
        shows=several_rows,
        source="synthetic",
    ),
    Fault(
        "block-of-16-for-32",
        "fp8",
        "a scale of 32 dims is used for 16",
        "row, block = first_row + r, d // BLOCK",
        "row, block = first_row + r, min(d // (BLOCK // 2), (head_dim - 1) // BLOCK)",
        _DECODED,
        needs=_SEVERAL,
        shows=several_blocks,
        source="synthetic",
    ),
    Fault(
        "e8m0-bias-128",
        "fp8",
        "the exponent of E8M0 is decoded with bias 128, not 127",
        "libdevice.int_as_float(int32(exponent << 23 if exponent > 0 else 1 << 22))",
        "libdevice.int_as_float(int32(exponent - 1 << 23 if exponent > 1 else 1 << 22))",
        _DECODED,
        needs=_MXFP8,
        source="synthetic",
    ),
    Fault(
        "tensor-scale-forgotten",
        "fp8",
        "block scales are not multiplied by the tensor's scale",
        "value = libdevice.fmul_rn(value, tensor_scales[h])",
        "value = value",
        _DECODED,
        needs=_NVFP4,
        source="synthetic",
    ),
    # values of codes
    Fault(
        "halves-of-bytes-swapped",
        "fp8",
        "the first of two codes in a byte is read from its high half",
        ">> d % 2 * 4 & 15",
        ">> (1 - d % 2) * 4 & 15",
        _DECODED,
        needs=_INT4,
        source="synthetic",
    ),
    # zero points
    Fault(
        "zero-point-off-by-one",
        "fp8",
        "the zero point is one too large, as if zero - 1 were stored",
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
    Fault(
        "block-of-32-for-16",
        "fp8",
        "a scale of 16 dims is used for 32",
        "row, block = first_row + r, d // BLOCK",
        "row, block = first_row + r, d // (2 * BLOCK)",
        _DECODED,
        needs=_NVFP4,
        shows=several_blocks,
        source="synthetic",
    ),
)
