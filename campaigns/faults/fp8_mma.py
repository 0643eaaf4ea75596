"""Faults of the kernel that decodes codes for tensor cores: codes and scales, copies of them, products, softmax."""

from campaigns.faults.conditions import several_query_tiles, shared_kv
from campaigns.faults.online_softmax import online_softmax
from workbench.cuda.faults.conditions import several_kv_heads, several_tiles
from workbench.cuda.faults.fault import Fault

_E4M3 = {"codes": "e4m3"}
_DECODED = ("dequant_q", "dequant_k", "dequant_v")
_SIZE = "size = uint32((x & uint32(0x7F007F00)) >> uint32(1))"
_UNITS = "q_unit, k_unit = libdevice.fmul_rn(scale_q[h], UNIT), libdevice.fmul_rn(scale_k[kv_h], UNIT)"
_ASK_V = "        ask(tiles, CODES_V, units_v, codes_v, scale_v, b, kv_h, first_key + BLOCK_K, head_dim)\n"

FAULTS: tuple[Fault, ...] = (
    # codes
    Fault(
        "fp8-mma-sign-lost",
        "fp8_mma",
        "the sign bits of codes are left out",
        "uint32(x & uint32(0x80008000) | size |",
        "uint32(size |",
        _DECODED,
        needs=_E4M3,
        source="synthetic",
    ),
    Fault(
        "fp8-mma-subnormals-are-zero",
        "fp8_mma",
        "codes whose exponent is 0 are decoded as 0",
        _SIZE,
        f"{_SIZE}; size = uint32((size if size & uint32(0x3C00) else size & uint32(0xFFFF0000)) "
        "& (uint32(0xFFFFFFFF) if size & uint32(0x3C000000) else uint32(0xFFFF)))",
        _DECODED,
        needs=_E4M3 | {"distribution": "outlier-channels"},
        source="vllm#55696",
    ),
    Fault(
        "fp8-mma-bias-of-fnuz",
        "fp8_mma",
        "e4m3 codes are decoded with the exponent bias of e4m3fnuz, one more",
        _SIZE,
        "size = uint32((x & uint32(0x7F007F00)) >> uint32(2))",
        _DECODED,
        needs=_E4M3,
        source="vllm#45720",
    ),
    Fault(
        "fp8-mma-zero-point-127",
        "fp8_mma",
        "integers are decoded with zero point 127",
        "float32(2**23 + 128)",
        "float32(2**23 + 127)",
        _DECODED,
        needs={"codes": "simulated", "head_dim": 64},  # dims that there are not stand for 1 then, and reach qk
        source="synthetic",
    ),
    # scales
    Fault(
        "fp8-mma-scale-of-first-head",
        "fp8_mma",
        "every head of V is decoded with the scale of head 0",
        "v_unit = libdevice.fmul_rn(scale_v[kv_h], UNIT)",
        "v_unit = libdevice.fmul_rn(scale_v[0], UNIT)",
        ("dequant_v",),
        needs={"scale_of": "head"},
        shows=several_kv_heads,
        source="rocm-libraries#10474",
    ),
    Fault(
        "fp8-mma-q-scale-of-kv-head",
        "fp8_mma",
        "Q is decoded with the scale at the index of its kv head",
        _UNITS,
        _UNITS.replace("scale_q[h]", "scale_q[kv_h]"),
        ("dequant_q",),
        needs={"scale_of": "head"},
        shows=shared_kv,
        source="SageAttention 9cd0915",
    ),
    Fault(
        "fp8-mma-row-scale-of-first-block",
        "fp8_mma",
        "every block of queries uses the row scales of the first block",
        "unit_of(scales, b, h, this_row)",
        "unit_of(scales, b, h, this_row - first_row)",
        ("dequant_q",),
        needs=_E4M3 | {"scale_of": "block"},
        shows=several_query_tiles,
        source="synthetic",
    ),
    # copies and tiles
    Fault(
        "fp8-mma-v-codes-asked-for-again",
        "fp8_mma",
        "the next copy of V loads the tile that was just decoded",
        _ASK_V,
        _ASK_V.replace("first_key + BLOCK_K", "first_key"),
        ("dequant_v",),
        shows=several_tiles,
        source="synthetic",
    ),
    Fault(
        "fp8-mma-no-barrier-behind-v",
        "fp8_mma",
        "no barrier between decoding V and its products",
        "        cuda.syncthreads()  # all threads' V is decoded;",
        "        pass  # all threads' V is decoded;",
        finding="race",
        source="llama.cpp#13438",
    ),
    Fault(
        "fp8-mma-second-dims-over-first",
        "fp8_mma",
        "dims 64 to 127 of K and V are stored where dims 0 to 63 are",
        "        store(tiles, at, i, codes, units[i])\n",
        "        store(tiles, at, i // PANELS * PANELS, codes, units[i])\n",
        ("dequant_k", "dequant_v"),
        needs={"head_dim": 128},
        source="synthetic",
    ),
    # products
    Fault(
        "fp8-mma-fragment-rows-swapped",
        "fp8_mma",
        "rows g and g + 8 of a fragment of Q are swapped",
        "a = (q_registers[x], q_registers[x + 1], q_registers[x + 2], q_registers[x + 3])",
        "a = (q_registers[x + 1], q_registers[x], q_registers[x + 3], q_registers[x + 2])",
        ("qk",),
        source="synthetic",
    ),
    Fault(
        "fp8-mma-dims-added-up",
        "fp8_mma",
        "products with V of some dims start from those of the previous dims",
        "pv[j] = float32(0)\n",
        "pv[j] = pv[j] if i else float32(0)\n",
        ("acc",),
        needs={"head_dim": 64},
        source="flashinfer#448",
    ),
    Fault(
        "fp8-mma-no-rescale",
        "fp8_mma",
        "the accumulator is not rescaled when the max moves",
        "cuda.fma(acc[x], correction[r], pv[register(r, j, PV_DIMS)])",
        "cuda.fma(acc[x], float32(1), pv[register(r, j, PV_DIMS)])",
        ("acc",),
        shows=several_tiles,
        source="synthetic",
    ),
    # softmax: of the fraction of float16 10 bits, of float32 23
    *online_softmax("fp8_mma", "fp8-mma", 12, -(1 << 13)),
)
