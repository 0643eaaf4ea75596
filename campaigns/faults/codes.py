"""Faults of the quantiser, which makes codes and scales, and of how the kernel on codes decodes them."""

from campaigns.faults.conditions import batched, several_heads, shared_kv
from workbench.cuda.faults.codes import QUANTISER
from workbench.cuda.faults.conditions import several_kv_heads
from workbench.cuda.faults.fault import Fault

_SCALES, _CODES = ("scale_q", "scale_k", "scale_v"), ("codes_q", "codes_k", "codes_v")
_TABLE = {"decode": "table"}
_SIMULATED_TABLE = {"codes": "simulated", "decode": "table"}
_E4M3 = {"codes": "e4m3"}
#: where a value that is decoded wrongly shows first: in tables where there are some, and in Q, which has none
_DECODED = ("lut_k", "lut_v", "dequant_q", "dequant_k", "dequant_v")

FAULTS: tuple[Fault, ...] = (
    # ---- the quantiser
    # scales
    Fault(
        "quantiser-zero-scale",
        "fp8",
        "a head of zeros gets a tiny scale, not 1",
        "return xp.where(largest < SMALLEST_NORMAL, xp.ones_like(scale), scale)",
        "return xp.clip(scale, 1e-12, None)",
        _SCALES,
        needs={"distribution": "zero-head"},
        file=QUANTISER,
        source="lmdeploy#3652, vllm#53339",
    ),
    Fault(
        "quantiser-largest-240",
        "fp8",
        "the scale uses 240, the largest value of e4m3fnuz",
        "scale = largest / KINDS[kind].largest",
        "scale = largest / 240",
        _SCALES,
        needs={"codes": "e4m3"},
        file=QUANTISER,
        source="vllm#42893",
    ),
    Fault(
        "quantiser-scale-rounded-down",
        "fp8",
        "the scale is rounded down to a power of two: the largest values are clipped",
        "scale = largest / KINDS[kind].largest",
        "scale = xp.exp2(xp.floor(xp.log2(largest / KINDS[kind].largest)))",
        _SCALES,
        file=QUANTISER,
        source="humming#39",
    ),
    Fault(
        "quantiser-scale-float16",
        "fp8",
        "the scale is rounded to float16 and may be too small for the largest value",
        "scale = largest / KINDS[kind].largest",
        "scale = xp.asarray(xp.asarray(largest / KINDS[kind].largest, dtype=xp.float16), dtype=xp.float32)",
        _SCALES,
        file=QUANTISER,
        source="burn#5261",
    ),
    # codes
    Fault(
        "quantiser-scale-of-head-0",
        "fp8",
        "all heads are encoded with the scale of head 0",
        "encode(x, scale[:, None, None], kind)",
        "encode(x, scale[:1, None, None], kind)",
        _CODES,
        shows=several_heads,
        file=QUANTISER,
        source="sgl-kernel-xpu#252",
    ),
    Fault(
        "quantiser-rounds-twice",
        "fp8",
        "values are rounded to float16 before they are rounded to codes",
        "    y = x / scale\n",
        "    y = xp.asarray(xp.asarray(x / scale, dtype=xp.float16), dtype=xp.float32)\n",
        _CODES,
        needs={"codes": "e4m3"},
        file=QUANTISER,
        source="triton#11753",
    ),
    Fault(
        "quantiser-subnormals-lost",
        "fp8",
        "values below the smallest normal number of float8 become 0",
        "code = steps + (exponent",
        "code = steps * (size >= 2.0**form.smallest_exponent) + (exponent",
        _CODES,
        needs={"codes": "e4m3", "distribution": "outlier-channels"},
        file=QUANTISER,
        source="vllm#55696",
    ),
    # ---- codes and their scales
    # scales
    Fault(
        "q-scale-of-kv-head",
        "fp8",
        "Q is decoded with the scale at the index of its kv head",
        "q_scale = scale_q[h]",
        "q_scale = scale_q[kv_h]",
        ("dequant_q",),
        shows=shared_kv,
        source="SageAttention 9cd0915",
    ),
    Fault(
        "direct-scale-not-applied",
        "fp8",
        "without tables, K and V are decoded without their scales",
        "table[code] if TABLE else decoded(code, scale)",
        "table[code] if TABLE else decoded(code, float32(1))",
        ("dequant_k", "dequant_v"),
        needs={"decode": "direct"},
        source="flashinfer#1023, vllm#55559",
    ),
    Fault(
        "scale-applied-twice",
        "fp8",
        "the decode table of K applies the scale twice",
        "s_lut_k[c] = decoded(c, k_scale)",
        "s_lut_k[c] = libdevice.fmul_rn(decoded(c, k_scale), k_scale)",
        ("lut_k",),
        needs=_TABLE,
        source="vllm#48016",
    ),
    Fault(
        "v-scales-permuted",
        "fp8",
        "the scales of V are read in another order than they were stored in",
        "v_scale = scale_v[kv_h]",
        "v_scale = scale_v[scale_v.shape[0] - 1 - kv_h]",
        ("lut_v", "dequant_v"),
        shows=several_kv_heads,
        source="vllm#46329",
    ),
    # values of codes
    Fault(
        "codes-read-as-signed",
        "fp8",
        "the decode tables index codes as signed: those from 128 up as 256 less",
        "            s_lut_k[c] = decoded(c, k_scale)\n            s_lut_v[c] = decoded(c, v_scale)\n",
        "            s_lut_k[c] = decoded(c - c // 128 * 256, k_scale)\n"
        "            s_lut_v[c] = decoded(c - c // 128 * 256, v_scale)\n",
        ("lut_k", "lut_v"),
        needs=_SIMULATED_TABLE,
        source="synthetic",
    ),
    Fault(
        "e5m2-read-as-e4m3",
        "fp8",
        "codes with 5 exponent bits are decoded as codes with 4",
        "float8(code, FRACTION_BITS)",
        "float8(code, 3)",
        ("lut_k", "lut_v", "dequant_q", "dequant_k", "dequant_v"),
        needs={"codes": "e5m2"},
        source="vllm#45720",
    ),
    Fault(
        "float8-fnuz-bias",
        "fp8",
        "e4m3 codes are decoded with the exponent bias of e4m3fnuz, one more",
        "power = max(exponent, 1) - ((1 << (6 - fraction_bits)) - 1) - fraction_bits",
        "power = max(exponent, 1) - (1 << (6 - fraction_bits)) - fraction_bits",
        _DECODED,
        needs=_E4M3,
        source="vllm#45720",
    ),
    Fault(
        "float8-subnormals-with-leading-bit",
        "fp8",
        "subnormal numbers and 0 get the leading bit of normal ones",
        "significand = fraction | (1 << fraction_bits if exponent > 0 else 0)",
        "significand = fraction | 1 << fraction_bits",
        _DECODED,
        needs=_E4M3,
        source="tilelang#2704, b12x#388",
    ),
    Fault(
        "float8-subnormals-are-zero",
        "fp8",
        "subnormal numbers are decoded as 0",
        "significand = fraction | (1 << fraction_bits if exponent > 0 else 0)",
        "significand = fraction | 1 << fraction_bits if exponent > 0 else 0",
        _DECODED,
        needs=_E4M3,
        source="vllm#55696",
    ),
    Fault(
        "float8-sign-lost",
        "fp8",
        "the sign bit is ignored",
        "return -value if code > 127 else value",
        "return value",
        _DECODED,
        needs=_E4M3,
        source="synthetic",
    ),
    # tiles
    Fault(
        "k-codes-batch-dropped",
        "fp8",
        "every batch reads the codes of K of batch 0",
        "decode_tile(s_kv, codes_k, s_lut_k, k_scale, b, kv_h, first_key, keys, head_dim)",
        "decode_tile(s_kv, codes_k, s_lut_k, k_scale, 0, kv_h, first_key, keys, head_dim)",
        ("dequant_k",),
        shows=batched,
        source="flash-attention#2550",
    ),
    Fault(
        "v-codes-of-head-0",
        "fp8",
        "every head reads the codes of V of head 0",
        "decode_tile(s_kv, codes_v, s_lut_v, v_scale, b, kv_h, first_key, keys, head_dim)",
        "decode_tile(s_kv, codes_v, s_lut_v, v_scale, b, 0, first_key, keys, head_dim)",
        ("dequant_v",),
        shows=several_kv_heads,
        source="attorch#14",
    ),
)
