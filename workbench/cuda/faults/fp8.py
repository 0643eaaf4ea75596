"""Faults of attention in the kernel on codes: fragments of tensor cores, and the softmax in shared memory."""

from workbench.cuda.faults.conditions import hides_keys, several_tiles
from workbench.cuda.faults.fault import Fault

_MMA = {"scores": "mma"}

FAULTS: tuple[Fault, ...] = (
    # scores
    Fault(
        "b-fragment-row-major",
        "fp8",
        "K is read as if its transpose lay in memory",
        "    first = (key + half + g) * LD + d + 2 * t\n"
        "    return pair(s_k, first, first + 1), pair(s_k, first + 8, first + 9)\n",
        "    first = (key + 2 * t) * LD + d + half + g\n"
        "    return pair(s_k, first, first + LD), pair(s_k, first + 8 * LD, first + 9 * LD)\n",
        ("qk",),
        needs=_MMA,
        source="flashinfer#2689",
    ),
    Fault(
        "b-leading-dimension",
        "fp8",
        "K is read as if its rows lay side by side, without the padding between them",
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
        "scores-tile-store-leading-dimension",
        "fp8",
        "a 16x16 tile of products is stored as if the whole were 16 columns wide",
        "s_p[(row + g + i // 2 * 8) * BLOCK_K + key + half + 2 * t + i % 2]",
        "s_p[row * BLOCK_K + (g + i // 2 * 8) * 16 + key + half + 2 * t + i % 2]",
        ("qk",),
        needs=_MMA,
        unwritten_memory=True,
        source="synthetic",
    ),
    Fault(
        "scores-tile-store-transposed",
        "fp8",
        "each 16x16 tile of products is stored transposed",
        "s_p[(row + g + i // 2 * 8) * BLOCK_K + key + half + 2 * t + i % 2]",
        "s_p[(row + half + 2 * t + i % 2) * BLOCK_K + key + g + i // 2 * 8]",
        ("qk",),
        needs=_MMA,
        source="synthetic",
    ),
    Fault(
        "b-fragment-lower-dims-twice",
        "fp8",
        "the upper 8 dims of a fragment of K hold the lower 8",
        "    return pair(s_k, first, first + 1), pair(s_k, first + 8, first + 9)\n",
        "    return pair(s_k, first, first + 1), pair(s_k, first, first + 1)\n",
        ("qk",),
        needs=_MMA,
        source="flashinfer#2689",
    ),
    Fault(
        "a-fragment-registers-swapped",
        "fp8",
        "the registers of rows g + 8 and of dims 8 to 15 of Q are swapped",
        "    return first, second, pair(s_q, upper + 8, upper + 9), pair(s_q, lower + 8, lower + 9)\n",
        "    return first, pair(s_q, upper + 8, upper + 9), second, pair(s_q, lower + 8, lower + 9)\n",
        ("qk",),
        needs=_MMA,
        source="synthetic",
    ),
    Fault(
        "mma-begins-anew",
        "fp8",
        "the right half of a tile is accumulated on 0 at each 16 dims, so that the last 16 alone count",
        "right = ptx.mma_m16n8k16_f16(a, b_fragment(s_k, key, 8, d), right)",
        "right = ptx.mma_m16n8k16_f16(a, b_fragment(s_k, key, 8, d), (float32(0), float32(0), float32(0), float32(0)))",
        ("qk",),
        needs=_MMA,
        shows=lambda case: case.head_dim > 16,
        source="flashinfer#448",
    ),
    Fault(
        "causal-mask-granular",
        "fp8",
        "the causal mask is that of the last of 16 rows for all of them",
        "if causal and first_key + c > row + diagonal:",
        "if causal and first_key + c > row // 16 * 16 + 15 + diagonal:",
        ("scores",),
        needs={"causal": True},
        shows=hides_keys,
        source="pytorch#196678",
    ),
    # softmax
    Fault(
        "scores-loaded-by-one-lane",
        "fp8",
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
        source="llama.cpp#24451",
    ),
    Fault(
        "probs-flush-subnormal",
        "fp8",
        "probs below float16's smallest normal number are cast to 0",
        "p_cast = CAST(p)",
        "p_cast = CAST(p) if p >= float32(2.0**-14) else float32(0)",
        ("probs_cast",),
        needs={"distribution": "peaked", "probs_dtype": "float16"},
        source="synthetic",
    ),
    Fault(
        "probs-saturate",
        "fp8",
        "probs are scaled so far for their cast that the largest ones saturate, and row_sum counts them in full",
        "p_cast = CAST(p)",
        "p_cast = min(CAST(p), float32(0.875))",
        ("probs_cast",),
        source="flash-attention#2717",
    ),
    Fault(
        "correction-float16",
        "fp8",
        "the correction is rounded to float16",
        "correction = math.exp(m_prev - m_safe)",
        "correction = libdevice.half2float(libdevice.float2half_rn(math.exp(m_prev - m_safe)))",
        ("correction",),
        shows=several_tiles,
        source="vllm-gaudi#1419",
    ),
    Fault(
        "row-sum-float16",
        "fp8",
        "the running sum is kept in float16",
        "l = s_sum[r] * correction + row_sum_of(tile_sum)",
        "l = libdevice.half2float(libdevice.float2half_rn(s_sum[r] * correction + row_sum_of(tile_sum)))",
        ("row_sum",),
        source="pytorch#174945",
    ),
    # the accumulator
    Fault(
        "rescale-per-lane",
        "fp8",
        "the first lane alone applies the correction to its dims of the accumulator",
        "s_acc[r, d] = s_acc[r, d] * correction",
        "s_acc[r, d] = s_acc[r, d] * (correction if lane == 0 else float32(1))",
        ("acc",),
        shows=several_tiles,
        source="synthetic",
    ),
    Fault(
        "acc-13-bits",
        "fp8",
        "the accumulator keeps 13 bits of its fraction from tile to tile, as that of Hopper's FP8 tensor cores",
        "            s_acc[r, d] = acc\n",
        "            s_acc[r, d] = libdevice.int_as_float(int32(libdevice.float_as_int(acc) & -1024))\n",
        ("acc",),
        source="flash-attention#2250, vllm#23813",
    ),
    # out and lse
    Fault(
        "v-scale-applied-to-out-too",
        "fp8",
        "out is multiplied by the scale of V, which the decoded V holds already",
        "out[b, h, row, d] = s_acc[r, d] / l if",
        "out[b, h, row, d] = s_acc[r, d] / l * v_scale if",
        ("out",),
        source="vllm#48016",
    ),
    Fault(
        "lse-keeps-offset",
        "fp8",
        "lse keeps the logarithm of the largest code, by which probs were scaled up",
        "lse[b, h, row] = m + math.log(l) if",
        "lse[b, h, row] = m + math.log(l * float32(448)) if",
        ("lse",),
        source="SageAttention 3ec1f13",
    ),
)
