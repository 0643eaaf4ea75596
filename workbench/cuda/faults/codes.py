"""Faults of quantised codes: the quantiser, how codes and scales are read, attention on them."""

from workbench.case.case import Case
from workbench.cuda.faults.conditions import ragged, several_kv_heads, several_tiles
from workbench.cuda.faults.fault import Fault

QUANTISER = "quantize.py"
_SCALES, _CODES = ("scale_q", "scale_k", "scale_v"), ("codes_q", "codes_k", "codes_v")
_TABLE = {"decode": "table"}
_SIMULATED_TABLE = {"codes": "simulated", "decode": "table"}
_MXFP8, _NVFP4, _INT4 = {"codes": "mxfp8-e4m3"}, {"codes": "nvfp4"}, {"codes": "int4"}
#: a row of which has several scales
_SEVERAL = _MXFP8 | {"head_dim": 80}
_DECODED = ("dequant_q", "dequant_k", "dequant_v")
_MMA = {"scores": "mma"}


def several_blocks(case: Case) -> bool:
    """Whether a row has several scales."""
    return case.sizes["g"] > 1


def several_rows(case: Case) -> bool:
    """Whether queries and keys are several."""
    return case.seqlen_q > 1 and case.seqlen_k > 1


def _any_blocks(case: Case) -> bool:
    """Whether a swizzle moves a scale."""
    return several_rows(case) and several_blocks(case)


FAULTS: tuple[Fault, ...] = (
    # ---- the quantiser
    Fault(
        "quantiser-amax-without-abs",
        "fp8",
        "the scale uses max(x), not max(|x|)",
        "size = xp.abs(x)",
        "size = x",
        _SCALES,
        file=QUANTISER,
        source="LightLLM#943",
    ),
    Fault(
        "no-saturation",
        "fp8",
        "values beyond the largest code do not saturate: they wrap or become NaN or infinity",
        "    y = xp.clip(y, -form.largest, form.largest)",
        "    pass",
        _CODES,
        needs={"quantiser_scale": "static"},
        file=QUANTISER,
        source="ml_dtypes#400, pytorch#160957",
    ),
    Fault(
        "quantiser-truncates",
        "fp8",
        "values are truncated to codes, not rounded to the nearest",
        "xp.round(y * 127 / form.largest)",
        "xp.trunc(y * 127 / form.largest)",
        _CODES,
        needs={"codes": "simulated"},
        file=QUANTISER,
        source="FreeToken#103",
    ),
    # ---- codes, and a scale for a head
    Fault(
        "scale-of-head-0",
        "fp8",
        "every head of K is decoded with the scale of head 0",
        "k_scale = scale_k[kv_h]",
        "k_scale = scale_k[0]",
        ("lut_k", "dequant_k"),
        source="rocm-libraries#10474",
        shows=several_kv_heads,
    ),
    Fault(
        "v-uses-k-scale",
        "fp8",
        "V is decoded with the scale of K",
        "v_scale = scale_v[kv_h]",
        "v_scale = scale_k[kv_h]",
        ("lut_v", "dequant_v"),
        source="sglang#26852",
    ),
    Fault(
        "scale-not-applied",
        "fp8",
        "the decode table of K leaves out the scale",
        "s_lut_k[c] = decoded(c, k_scale)",
        "s_lut_k[c] = decoded(c, float32(1))",
        ("lut_k",),
        needs=_TABLE,
        source="vllm#42580, flashinfer#1416",
    ),
    Fault(
        "zero-point-127",
        "fp8",
        "the decode table of K has zero point 127: all scores of a row shift equally, out stays right",
        "s_lut_k[c] = decoded(c, k_scale)",
        "s_lut_k[c] = decoded(c + 1, k_scale)",
        ("lut_k",),
        needs=_SIMULATED_TABLE,
        source="synthetic",
    ),
    Fault(
        "v-tile-row-shift",
        "fp8",
        "every row of a V tile contains the next key",
        "decode_tile(s_kv, codes_v, s_lut_v, v_scale, b, kv_h, first_key, keys, head_dim)",
        "decode_tile(s_kv, codes_v, s_lut_v, v_scale, b, kv_h, first_key + 1, keys - 1, head_dim)",
        ("dequant_v",),
        source="synthetic",
    ),
    Fault(
        "partial-tile-codes-not-zeroed",
        "fp8",
        "a partial last tile keeps stale codes of another tile past its last key",
        "            tile[i] = 0\n",
        "            pass\n",
        ("acc",),
        needs={"block_k": 48},
        source="flashinfer#1029",
        shows=ragged,
    ),
    # ---- a scale for a block or token, codes of 4 bits and int8
    Fault(
        "block-scales-read-swizzled",
        "fp8",
        "row-major scales are read as if in the 128x4 swizzle of block-scaled MMA",
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
        "int8 codes are decoded as unsigned",
        "float32(code - 256 if code > 127 else code)",
        "float32(code)",
        ("lut_k", "lut_v", *_DECODED),
        needs={"codes": "int8"},
        source="synthetic",
    ),
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
    # ---- attention
    Fault(
        "b-leading-dimension",
        "fp8",
        "K is read without the padding between its rows",
        "first = (key + half + g) * LD + d + 2 * t",
        "first = (key + half + g) * HEAD_DIM + d + 2 * t",
        ("qk",),
        needs=_MMA,
        source="flash-attention eeca63a7",
    ),
    Fault(
        "fragment-rows-swapped",
        "fp8",
        "rows g and g + 8 of Q are swapped",
        "    lower = upper + 8 * LD\n    first, second = pair(s_q, upper, upper + 1), pair(s_q, lower, lower + 1)\n",
        "    lower = upper + 8 * LD\n    second, first = pair(s_q, upper, upper + 1), pair(s_q, lower, lower + 1)\n",
        ("qk",),
        needs=_MMA,
        source="synthetic",
    ),
    Fault(
        "scores-loaded-by-one-lane",
        "fp8",
        "each lane takes the row max over all scores but loaded only a quarter of them",
        "        tile_max = NEG_INF\n"
        "        for c in range(lane, keys, LANES):\n"
        "            tile_max = max(tile_max, s_p[r * BLOCK_K + c])\n"
        "        m_prev = s_max[r]\n"
        "        m = max(m_prev, row_max_of(tile_max))\n",
        "        tile_max = NEG_INF; row_scores = cuda.local.array(BLOCK_K, float32)\n"
        "        for c in range(lane, keys, LANES): row_scores[c] = s_p[r * BLOCK_K + c]\n"
        "        for c in range(keys): tile_max = max(tile_max, row_scores[c])\n"
        "        m_prev = s_max[r]\n"
        "        m = max(m_prev, tile_max)\n",
        ("row_max", "probs", "acc"),  # the lanes of a row go on with a max each
        finding="uninitialised-read",
        unwritten_memory=True,
        source="llama.cpp#24451",
    ),
    Fault(
        "rescale-per-lane",
        "fp8",
        "only the first lane applies the correction to its dims of the accumulator",
        "s_acc[r, d] = s_acc[r, d] * correction",
        "s_acc[r, d] = s_acc[r, d] * (correction if lane == 0 else float32(1))",
        ("acc",),
        shows=several_tiles,
        source="synthetic",
    ),
)
