"""Faults of the kernels on tensor cores: fragments, swizzled tiles, copies, masks, a softmax in lanes."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from campaigns.faults.conditions import blind_in_visited_tile, diagonal_within_warp, grouped, last_tile_of_block
from campaigns.faults.online_softmax import online_softmax
from workbench.case.case import Case
from workbench.cuda.faults.conditions import row_of_other_warp, scaled, several_tiles
from workbench.cuda.faults.fault import UNVISITED, Fault
from workbench.cuda.faults.inputs import PACKED

#: tiles of queries of which a warp has 32 rows, two of fragments
TALL: Mapping[str, Any] = {"block_q": 128}
_A = "a = (q_registers[x], q_registers[x + 1], q_registers[x + 2], q_registers[x + 3])"
_P = "\n                a = (p[x], p[x + 1], p[x + 2], p[x + 3])"
_PACK = "p[i] = PACK(s[2 * i], s[2 * i + 1])"
_K_CAME = (
    "            cuda.syncthreads()  # all threads' K has arrived; protects V, which all warps are done multiplying"
)
_V_CAME = (
    "            cuda.syncthreads()  # all threads' V has arrived; protects K, which all warps are done multiplying"
)
_WAIT = "            ptx.cp_async_wait_all()\n"
_NEXT = (
    "            if tile + 1 < end_tile:\n"
    "                first_next = first_k + first_key + BLOCK_K\n"
    "                copy_rows(tiles, K_AT, k, b, kv_h, first_next, first_k + seqlen_k, head_dim, BLOCK_K)\n"
)


def window_begins_within_tile(case: Case) -> bool:
    """Whether the window of some block of queries begins after the first key of a tile."""
    assert case.window is not None and case.block_q is not None and case.block_k is not None
    keys = np.arange(0, case.seqlen_q, case.block_q) + case.diagonal - case.window[0]
    return bool(np.any((keys > 0) & (keys < case.seqlen_k) & (keys % case.block_k != 0)))


FAULTS: tuple[Fault, ...] = (
    # ---- flash_tensor
    Fault(
        "tensor-q-of-first-warp",
        "flash_tensor",
        "every warp multiplies the rows of Q of warp 0",
        "x, y = warp_row + g, 8 * i + t",
        "x, y = g, 8 * i + t",
        ("qk",),
        shows=row_of_other_warp,
        source="synthetic",
    ),
    # ---- flash_mma
    # fragments of Q and K
    Fault(
        "mma-fragment-rows-swapped",
        "flash_mma",
        "rows g and g + 8 of a fragment of Q are swapped",
        _A,
        "a = (q_registers[x + 1], q_registers[x], q_registers[x + 3], q_registers[x + 2])",
        ("qk",),
        source="synthetic",
    ),
    Fault(
        "mma-fragment-registers-swapped",
        "flash_mma",
        "the registers of rows g + 8 and of dims 8 to 15 of Q are swapped",
        _A,
        "a = (q_registers[x], q_registers[x + 2], q_registers[x + 1], q_registers[x + 3])",
        ("qk",),
        source="synthetic",
    ),
    Fault(
        "mma-q-of-first-warp",
        "flash_mma",
        "every warp reads the rows of Q of warp 0",
        "lane_q = warp_row * HEAD_DIM + lane_v",
        "lane_q = lane_v",
        ("qk",),
        shows=row_of_other_warp,
        source="synthetic",
    ),
    Fault(
        "mma-second-rows-are-first",
        "flash_mma",
        "the second 16 rows of a warp use the fragments of Q of the first",
        "                    x = tall * 4\n"
        "                    if Q_IN_REGISTERS:\n"
        "                        x = (tall * (HEAD_DIM // 16) + i) * 4\n",
        "                    x = 0\n                    if Q_IN_REGISTERS:\n                        x = i * 4\n",
        ("qk",),
        needs=TALL,
        shows=lambda case: case.seqlen_q > 16,
        source="synthetic",
    ),
    Fault(
        "mma-k-matrices-as-of-v",
        "flash_mma",
        "lanes pass the addresses of K's matrices in the order for the transposed V",
        "lane_k = (lane >> 1 & 8 | lane & 7) * HEAD_DIM + (lane >> 3 & 1 ^ lane & 7) * 8",
        "lane_k = (lane & 15) * HEAD_DIM + (lane >> 4 ^ lane & 7) * 8",
        ("qk",),
        source="synthetic",
    ),
    Fault(
        "mma-right-half-begins-anew",
        "flash_mma",
        "the right half of a tile restarts from 0 at each 16 dims: only the last 16 count",
        "right_sums = MMA(a, (b2, b3), (s[y + 4], s[y + 5], s[y + 6], s[y + 7]))",
        "right_sums = MMA(a, (b2, b3), (float32(0), float32(0), float32(0), float32(0)))",
        ("qk",),
        shows=lambda case: case.seqlen_k > 8,
        source="flashinfer#448",
    ),
    Fault(
        "mma-kv-head-modulo",
        "flash_mma",
        "query head h reads kv head h % kv_heads",
        "kv_h = uint32(h * k.shape[1]) // uint32(q.shape[1])",
        "kv_h = h % k.shape[1]",
        ("qk", "acc"),
        shows=grouped,
        source="native-sparse-attention-triton#27",
    ),
    Fault(
        "mma-next-k-of-first-sequence",
        "flash_mma",
        "every K tile but a sequence's first is copied from the first sequence of the batch",
        "first_next = first_k + first_key + BLOCK_K",
        "first_next = first_key + BLOCK_K",
        ("qk",),
        needs=PACKED,
        source="TensorRT-LLM#10102",
    ),
    Fault(
        "mma-dims-not-zeroed",
        "flash_mma",
        "padding dims keep stale shared memory",
        "            elif first + more < count:\n",
        "            elif first + more < count and row + more >= rows:\n",
        ("qk",),
        finding="uninitialised-read",
        needs={"head_dim": 40},
        unwritten_memory=True,
        source="synthetic",
    ),
    # copies and barriers
    Fault(
        "mma-k-not-waited-for",
        "flash_mma",
        "K is read after a barrier but without waiting for its copy",
        _WAIT + _K_CAME,
        "            pass\n" + _K_CAME,
        ("qk",),
        finding="uninitialised-read",
        shows=several_tiles,
        source="FlashMLA 01a2772",
    ),
    Fault(
        "mma-v-waited-for-behind-barrier",
        "flash_mma",
        "threads wait for their copies of V after the barrier, not before: others may be in flight",
        _WAIT + _V_CAME,
        _V_CAME + "\n" + _WAIT.rstrip("\n"),
        finding="race",
        source="csarofeen#2457",
    ),
    Fault(
        "mma-no-barrier-before-v",
        "flash_mma",
        "no barrier between the wait for K and the copy of V over data that other warps multiply",
        _K_CAME,
        "            pass  # all threads' K has arrived; protects V, which all warps are done multiplying",
        finding="race",
        shows=several_tiles,
        source="llama.cpp#13438",
    ),
    Fault(
        "mma-next-k-too-early",
        "flash_mma",
        "the next K is copied before the barrier, over K that other warps still multiply",
        _V_CAME + "\n" + _NEXT,
        _NEXT + _V_CAME + "\n",
        finding="race",
        shows=several_tiles,
        source="rocm-libraries#4742",
    ),
    Fault(
        "mma-tail-not-zeroed",
        "flash_mma",
        "rows of V past the last key keep stale shared memory: 0 * NaN",
        "            elif first + more < count:\n",
        "            elif first + more < count and at != V_AT:\n",
        finding="uninitialised-read",
        needs={"block_k": 128},  # no tile before left numbers there
        shows=lambda case: case.seqlen_k < 128,
        seqlen=100,
        source="flashinfer#1029",
    ),
    # fragments of probs and V, and the accumulator
    Fault(
        "mma-packed-halves-swapped",
        "flash_mma",
        "the halves of a packed pair of probs are swapped",
        _PACK,
        "p[i] = PACK(s[2 * i + 1], s[2 * i])",
        ("acc",),
        source="synthetic",
    ),
    Fault(
        "mma-packed-as-float16",
        "flash_mma",
        "probs are packed as float16 but multiplied as bfloat16",
        _PACK,
        "p[i] = ptx.cvt_f16x2_f32(s[2 * i], s[2 * i + 1])",
        ("acc",),
        needs={"dtype": "bfloat16"},
        source="synthetic",
    ),
    Fault(
        "mma-probs-registers-swapped",
        "flash_mma",
        "the registers of rows g + 8 and of keys 8 to 15 of probs are swapped",
        _P,
        _P.replace("p[x + 1], p[x + 2]", "p[x + 2], p[x + 1]"),
        ("acc",),
        source="synthetic",
    ),
    Fault(
        "mma-v-swizzle-of-other-rows",
        "flash_mma",
        "chunks of V are read with the swizzle of half the row",
        "V_AT * HEAD_DIM + lane_v",
        "V_AT * HEAD_DIM + (lane & 15) * HEAD_DIM + (lane >> 4 ^ lane >> 1 & 7) * 8",
        ("acc",),
        source="flash-attention eeca63a7",
    ),
    Fault(
        "mma-v-read-from-k",
        "flash_mma",
        "probs are multiplied by the tile of K, into which the next K may be in flight",
        "at_k, at_v = K_AT * HEAD_DIM + lane_k, V_AT * HEAD_DIM + lane_v",
        "at_k, at_v = K_AT * HEAD_DIM + lane_k, K_AT * HEAD_DIM + lane_v",
        ("acc",),
        source="llama.cpp#9374",
    ),
    Fault(
        "mma-correction-of-upper-row",
        "flash_mma",
        "row g + 8 of the accumulator is rescaled by the correction of row g",
        "acc[x] = acc[x] * correction[r]",
        "acc[x] = acc[x] * correction[r // 2 * 2]",
        ("acc",),
        shows=lambda case: several_tiles(case) and case.seqlen_q > 8,
        source="synthetic",
    ),
    # ---- flash_mma beside its products
    # scores
    Fault(
        "mma-softcap-of-raw-scores",
        "flash_mma",
        "the softcap is applied before the scale",
        "                s[i] = libdevice.fmul_rn(s[i], scale)\n",
        "                pass\n",
        ("capped",),
        needs={"softcap": 5.0},
        shows=scaled,
        source="synthetic",
    ),
    Fault(
        "mma-mask-skipped-by-last-row",
        "flash_mma",
        "a warp skips the causal mask of a tile that only its last row sees in full",
        "high = min(high, first_row + warp_row + diagonal)\n",
        "high = min(high, first_row + warp_row + WARP_ROWS - 1 + diagonal)\n",
        ("scores",),
        needs={"causal": True},
        shows=diagonal_within_warp,
        source="pytorch#196678",
    ),
    Fault(
        "mma-window-off-by-one",
        "flash_mma",
        "the window hides the first key in it: < became <=",
        "if column(i, 0) < column_of_first:",
        "if column(i, 0) <= column_of_first:",
        ("scores",),
        needs={"window": (16, 0)},
        source="transformers#39408",
    ),
    Fault(
        "mma-causal-one-tile-short",
        "flash_mma",
        "the last visible tile of a block of queries is not visited",
        "(first_row + BLOCK_Q - 1 + diagonal + BLOCK_K) // BLOCK_K",
        "(first_row + BLOCK_Q - 1 + diagonal) // BLOCK_K",
        UNVISITED,
        needs={"causal": True},
        shows=last_tile_of_block,
        source="synthetic",
    ),
    Fault(
        "mma-window-one-tile-late",
        "flash_mma",
        "the first tile of a window is rounded up: the tile with its first key is skipped",
        "first_tile = max(0, first_row + diagonal - left) // BLOCK_K",
        "first_tile = (max(0, first_row + diagonal - left) + BLOCK_K - 1) // BLOCK_K",
        UNVISITED,
        needs={"window": (16, 0)},
        shows=window_begins_within_tile,
        source="synthetic",
    ),
    # softmax
    *online_softmax("flash_mma", "mma", 12, -(1 << 16), {"dtype": "bfloat16"}),
    Fault(
        "mma-no-masked-tile-guard",
        "flash_mma",
        "exp2(-inf - (-inf)) in rows that see no key of the first tile of their block",
        "safe = largest if largest > NEG_INF else float32(0)",
        "safe = largest",
        ("row_sum", "acc", "out", "lse"),  # what came of the tile itself is not judged: it might have been skipped
        needs={"causal": True},
        shows=blind_in_visited_tile,
        source="xformers 540fcbfd",
    ),
    Fault(
        "mma-max-not-scaled",
        "flash_mma",
        "exp2(fma(s, scale, -max)) subtracts the max of unscaled scores",
        "s[x] = ptx.ex2_approx(cuda.fma(s[x], exp2_scale, -scaled_max))",
        "s[x] = ptx.ex2_approx(cuda.fma(s[x], exp2_scale, -safe))",
        ("probs", "acc"),  # that of probs so small that they are subnormal, of which a tensor core loses more
        source="synthetic",
    ),
    Fault(
        "mma-scale-twice",
        "flash_mma",
        "capped scores, already scaled, are scaled again in exp2",
        "        exp2_scale = LOG2_E\n",
        "        pass\n",
        ("correction", "probs"),
        needs={"softcap": 5.0},
        shows=scaled,
        source="vllm#48016",
    ),
)
