"""The faults of the kernel on 8-bit codes and of its quantiser."""

from collections.abc import Mapping
from typing import Any

from workbench.cuda.faults.fault import Fault

QUANTISER = "quantize.py"


def _fault(id: str, summary: str, before: str, after: str, stages: tuple[str, ...], **more: Any) -> Fault:
    return Fault(id, "fp8", summary, before, after, stages, **more)


_SCALES, _CODES = ("scale_q", "scale_k", "scale_v"), ("codes_q", "codes_k", "codes_v")
_MMA: Mapping[str, Any] = {"scores": "mma"}
_TABLE: Mapping[str, Any] = {"decode": "table"}
_SIMULATED_TABLE: Mapping[str, Any] = {"codes": "simulated", "decode": "table"}

FAULTS: tuple[Fault, ...] = (
    # the quantiser
    _fault(
        "quantiser-zero-scale",
        "a head of zeros gets a tiny scale, not 1",
        "return xp.where(largest < SMALLEST_NORMAL, xp.ones_like(scale), scale)",
        "return xp.clip(scale, 1e-12, None)",
        _SCALES,
        needs={"distribution": "zero-head"},
        file=QUANTISER,
        source="lmdeploy#3652, vllm#53339",
    ),
    _fault(
        "quantiser-amax-without-abs",
        "the scale is that of the largest value, not of the largest in size",
        "size = xp.abs(x)",
        "size = x",
        _SCALES,
        file=QUANTISER,
        source="LightLLM#943",
    ),
    _fault(
        "no-saturation",
        "values beyond the largest one wrap around, or become NaN or infinity",
        "        y = xp.clip(y, -form.largest, form.largest)",
        "        pass",
        _CODES,
        needs={"quantiser_scale": "static"},
        file=QUANTISER,
        source="ml_dtypes#400, pytorch#160957",
    ),
    # decoding
    _fault(
        "scale-of-head-0",
        "every head of K is decoded with the scale of head 0",
        "k_scale = scale_k[kv_h]",
        "k_scale = scale_k[0]",
        ("lut_k", "dequant_k"),
        source="rocm-libraries#10474",
    ),
    _fault(
        "v-uses-k-scale",
        "V is decoded with the scale of K",
        "v_scale = scale_v[kv_h]",
        "v_scale = scale_k[kv_h]",
        ("lut_v", "dequant_v"),
        source="sglang#26852",
    ),
    _fault(
        "scale-not-applied",
        "the table of K leaves out the scale",
        "s_lut_k[c] = decoded(c, k_scale)",
        "s_lut_k[c] = decoded(c, float32(1))",
        ("lut_k",),
        needs=_TABLE,
        source="vllm#42580, flashinfer#1416",
    ),
    _fault(
        "codes-read-as-signed",
        "the tables take codes for signed numbers: those from 128 on stand for 256 less",
        "            s_lut_k[c] = decoded(c, k_scale)\n            s_lut_v[c] = decoded(c, v_scale)\n",
        "            s_lut_k[c] = decoded(c - c // 128 * 256, k_scale)\n"
        "            s_lut_v[c] = decoded(c - c // 128 * 256, v_scale)\n",
        ("lut_k", "lut_v"),
        needs=_SIMULATED_TABLE,
    ),
    _fault(
        "zero-point-127",
        "the table of K has zero point 127: all scores of a row shift alike, and out stays right",
        "s_lut_k[c] = decoded(c, k_scale)",
        "s_lut_k[c] = decoded(c + 1, k_scale)",
        ("lut_k",),
        needs=_SIMULATED_TABLE,
    ),
    _fault(
        "e5m2-read-as-e4m3",
        "codes with 5 exponent bits are decoded as codes with 4",
        "float8(code, FRACTION_BITS)",
        "float8(code, 3)",
        ("lut_k", "lut_v", "dequant_q", "dequant_k", "dequant_v"),
        needs={"codes": "e5m2"},
        source="vllm#45720",
    ),
    _fault(
        "v-tile-row-shift",
        "every row of a V tile holds the next key",
        "decode_tile(s_kv, codes_v, s_lut_v, v_scale, b, kv_h, first_key, keys, head_dim)",
        "decode_tile(s_kv, codes_v, s_lut_v, v_scale, b, kv_h, first_key + 1, keys - 1, head_dim)",
        ("dequant_v",),
    ),
    _fault(
        "partial-tile-codes-not-zeroed",
        "the last tile, where it is not full, keeps the codes of another tile beyond its last key",
        "            tile[i] = 0\n",
        "            pass\n",
        ("acc",),
        needs={"block_k": 48},
        source="flashinfer#1029",
    ),
    # scores
    _fault(
        "b-fragment-row-major",
        "K is read as if its transpose lay in memory",
        "    first = (key + half + g) * LD + d + 2 * t\n"
        "    return pair(s_k, first, first + 1), pair(s_k, first + 8, first + 9)\n",
        "    first = (key + 2 * t) * LD + d + half + g\n"
        "    return pair(s_k, first, first + LD), pair(s_k, first + 8 * LD, first + 9 * LD)\n",
        ("qk",),
        needs=_MMA,
    ),
    _fault(
        "b-leading-dimension",
        "K is read as if its rows lay side by side, without the padding between them",
        "first = (key + half + g) * LD + d + 2 * t",
        "first = (key + half + g) * HEAD_DIM + d + 2 * t",
        ("qk",),
        needs=_MMA,
    ),
    _fault(
        "fragment-rows-swapped",
        "rows g and g + 8 of Q are swapped",
        "    lower = upper + 8 * LD\n    first, second = pair(s_q, upper, upper + 1), pair(s_q, lower, lower + 1)\n",
        "    lower = upper + 8 * LD\n    second, first = pair(s_q, upper, upper + 1), pair(s_q, lower, lower + 1)\n",
        ("qk",),
        needs=_MMA,
    ),
    _fault(
        "scores-tile-store-leading-dimension",
        "a 16x16 tile of products is stored as if the whole were 16 columns wide",
        "s_p[(row + g + i // 2 * 8) * BLOCK_K + key + half + 2 * t + i % 2]",
        "s_p[row * BLOCK_K + (g + i // 2 * 8) * 16 + key + half + 2 * t + i % 2]",
        ("qk",),
        needs=_MMA,
        unwritten_memory=True,
    ),
    _fault(
        "scores-tile-store-transposed",
        "each 16x16 tile of products is stored transposed",
        "s_p[(row + g + i // 2 * 8) * BLOCK_K + key + half + 2 * t + i % 2]",
        "s_p[(row + half + 2 * t + i % 2) * BLOCK_K + key + g + i // 2 * 8]",
        ("qk",),
        needs=_MMA,
    ),
    # softmax
    _fault(
        "scores-loaded-by-one-lane",
        "each lane takes the max of a row of its own, of which it has loaded a quarter",
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
    ),
    _fault(
        "probs-flush-subnormal",
        "probs below float16's smallest normal number are cast to 0",
        "p_cast = CAST(p)",
        "p_cast = CAST(p) if p >= float32(2.0**-14) else float32(0)",
        ("probs_cast",),
        needs={"distribution": "peaked", "probs_dtype": "float16"},
    ),
    _fault(
        "rescale-per-lane",
        "the first lane alone applies the correction to its dims of the accumulator",
        "s_acc[r, d] = s_acc[r, d] * correction",
        "s_acc[r, d] = s_acc[r, d] * (correction if lane == 0 else float32(1))",
        ("acc",),
    ),
)
