"""Faults of the kernels on tensor cores: fragments, copies that are under way meanwhile, what warps share."""

from collections.abc import Mapping
from typing import Any

from workbench.case.case import Case
from workbench.case.formats import TILE_ROWS
from workbench.cuda.faults.conditions import (
    keys_in_every_split,
    keys_in_several_splits,
    odd_key_behind_diagonal,
    raw,
    row_of_other_warp,
    several_tiles,
    several_tiles_in_a_split,
)
from workbench.cuda.faults.fault import Fault

_LD_V = "ldmatrix_x4_trans(tiles, 16 * n * HEAD_DIM + dims(at_v, i))"
_LD_V_OF_CODES = "ldmatrix_x4_trans(tiles, 16 * n * HEAD_DIM + dims(at_v, i * (PV_DIMS // 16) + c))"
_V_CAME = (
    "            cuda.syncthreads()  # all threads' V has arrived; protects K, which all warps are done multiplying"
)
_WAIT = "            ptx.cp_async_wait_all()\n"
#: heads that share a kv head, whose queries are rows of one tile
PACKED: Mapping[str, Any] = {"heads": 4, "kv_heads": 2}
_ROW = "s_max[w * BLOCK_Q + g + 8 * r]"
#: the second pass
REDUCE = "split_mma_reduce.py"
SMALL: dict[str, Any] = {"block_q": 64, "block_k": 64}
#: keys of so many tiles that buffers are used again
LONG: dict[str, Any] = {"seqlen_k": 300}
#: scales of more than one tile of keys
TILES: dict[str, Any] = SMALL | LONG | {"codes": "e4m3", "scale_of": "tile"}
_WAIT_PV = "                    hopper.wgmma_wait(0, acc, ACC_REGISTERS)\n"
_V_ARRIVES = (
    "                    if lane == 0:\n                        hopper.mbarrier_arrive(bars, V_EMPTY + before)\n"
)
_E4M3 = {"codes": "e4m3"}
_DECODED = ("dequant_q", "dequant_k", "dequant_v")


def several_packed_queries(case: Case) -> bool:
    """Whether rows of a tile are of several heads, each of which has several queries."""
    return case.heads > case.kv_heads and case.seqlen_q > 1


def a_split_without_tiles(case: Case) -> bool:
    """Whether some split has no key."""
    return not keys_in_every_split(case)


def scales_of_keys(case: Case) -> bool:
    """Whether keys have more than one scale, and a row sees them all."""
    return case.seqlen_k > TILE_ROWS and not case.causal


FAULTS: tuple[Fault, ...] = (
    # ---- flash_tensor
    Fault(
        "tensor-k-words-neighbours",
        "flash_tensor",
        "each lane loads two adjacent words of K, not two words 8 dims apart",
        "s_k[8 * n + g, y + 4])",
        "s_k[8 * n + g, y + 1])",
        ("qk",),
        source="synthetic",
    ),
    Fault(
        "tensor-pair-swapped",
        "flash_tensor",
        "the two keys in a register of V are swapped: each meets the other's probs",
        "uint32(tile[key, d] | tile[key + 1, d] << 16)",
        "uint32(tile[key + 1, d] | tile[key, d] << 16)",
        ("acc",),
        source="synthetic",
    ),
    Fault(
        "tensor-no-barrier-before-load",
        "flash_tensor",
        "no barrier before K and V overwrite tiles that other warps still multiply",
        "cuda.syncthreads()  # protects K and V of the tile before",
        "pass  # protects K and V of the tile before",
        finding="race",
        shows=lambda case: several_tiles(case) and row_of_other_warp(case),
        source="llama.cpp#13438",
    ),
    # ---- flash_mma
    Fault(
        "mma-k-not-unswizzled",
        "flash_mma",
        "K is written with the swizzle but read without it",
        "(lane >> 3 & 1 ^ lane & 7) * 8",
        "(lane >> 3 & 1) * 8",
        ("qk",),
        source="flash-attention eeca63a7",
    ),
    Fault(
        "mma-v-not-waited-for",
        "flash_mma",
        "V is read after a barrier but without waiting for its copy",
        _WAIT + _V_CAME,
        "            pass\n" + _V_CAME,
        ("acc",),
        finding="uninitialised-read",
        source="Fuser#2000",
    ),
    Fault(
        "mma-v-not-transposed",
        "flash_mma",
        "V is loaded without the transpose",
        _LD_V,
        _LD_V.replace("_trans", ""),
        ("acc",),
        source="flashinfer#2689",
    ),
    Fault(
        "mma-mask-of-pair",
        "flash_mma",
        "both adjacent columns of a lane get the mask of the first",
        "if column(i, 0) > column_of_last:",
        "if column(i, 0) - i % 2 > column_of_last:",
        ("scores",),
        needs={"causal": True},
        shows=odd_key_behind_diagonal,
        source="synthetic",
    ),
    Fault(
        "mma-out-lanes-swapped",
        "flash_mma",
        "lanes store their own half of a row and the received half in the wrong order",
        "(upper, other) if t % 2 == 0 else (other, lower)",
        "(other, upper) if t % 2 == 0 else (lower, other)",
        ("out",),
        source="synthetic",
    ),
    # ---- split_mma
    Fault(
        "split-mma-one-group-too-few",
        "split_mma",
        "the wait before reading K allows one copy group too many in flight: that of K",
        "ptx.cp_async_wait_group(K_PENDING)",
        "ptx.cp_async_wait_group(V_PENDING)",
        ("qk",),
        finding="uninitialised-read",
        source="FlashMLA 01a2772",
    ),
    Fault(
        "split-mma-rows-swapped",
        "split_mma",
        "packed rows of a group are read head by head, not query by query",
        "query, head = (first_row + r) // group, first_head + (first_row + r) % group",
        "query, head = (first_row + r) % seqlen_q, first_head + (first_row + r) // seqlen_q % group",
        ("qk",),
        needs=PACKED,
        shows=several_packed_queries,
        source="xformers 41646dbb",
    ),
    Fault(
        "split-mma-row-max-of-own-warp",
        "split_mma",
        "each warp uses the max over its own keys as the row max",
        f"largest = max(largest, {_ROW})",
        f"largest = max(largest, {_ROW.replace('w *', 'warp *')})",
        ("row_max", "probs", "acc"),
        needs={"head_dim": 64},  # the second warp has half of the dims, of 64
        shows=several_tiles_in_a_split,
        source="synthetic",
    ),
    Fault(
        "split-mma-empty-split-not-written",
        "split_mma",
        "a split without tiles writes no partial results; stale ones of the previous launch are merged",
        "        if query[r] < seqlen_q:\n            if warp == 0",
        "        if query[r] < seqlen_q and first_tile < end_tile:\n            if warp == 0",
        ("partial_max", "partial_sum", "partial_O"),
        finding="unwritten-output",
        shows=a_split_without_tiles,
        source="synthetic",
    ),
    Fault(
        "split-mma-merge-in-base-2",
        "split_mma",
        "split weights use exp2 on differences scaled for exp",
        "weight = ptx.ex2_approx((partial_max[b, h, own, row] - safe) * exp2_scale)",
        "weight = ptx.ex2_approx((partial_max[b, h, own, row] - safe) * scale)",
        ("merge_weight", "merge_sum"),
        shows=lambda case: raw(case) and keys_in_several_splits(case),
        file=REDUCE,
        source="flashinfer#787",
    ),
    # ---- flash_wgmma and fp8_wgmma
    Fault(
        "wgmma-k-parity",
        "flash_wgmma",
        "consumers wait for the phase before that of K, which is already complete",
        "hopper.mbarrier_wait(bars, K_FULL + stage, turn & 1)",
        "hopper.mbarrier_wait(bars, K_FULL + stage, (turn & 1) ^ 1)",
        (),
        finding="wrong-phase",
        needs=SMALL,
        source="synthetic",
    ),
    Fault(
        "wgmma-v-emptied-too-early",
        "flash_wgmma",
        "the buffer of V is released before its product is done",
        _WAIT_PV + _V_ARRIVES,
        _V_ARRIVES + _WAIT_PV,
        (),
        finding="early-write",
        needs=SMALL | LONG,
        source="synthetic",
    ),
    Fault(
        "wgmma-swizzle-off-by-a-phase",
        "flash_wgmma",
        "the address of K advances by 8 dims per product, not 16, within swizzled chunks",
        "k_place = K_AT + stage * BLOCK_K * HEAD_DIM + i // 4 * BLOCK_K * 64 + i % 4 * 16",
        "k_place = K_AT + stage * BLOCK_K * HEAD_DIM + i // 4 * BLOCK_K * 64 + i % 4 * 8",
        ("qk",),
        needs=SMALL,
        source="synthetic",
    ),
    Fault(
        "wgmma-no-rescale",
        "flash_wgmma",
        "the accumulator is not rescaled when the max moves",
        "acc[x] = acc[x] * correction[r]",
        "acc[x] = acc[x] * float32(1)",
        ("acc",),
        needs=SMALL,
        shows=several_tiles,
        source="synthetic",
    ),
    Fault(
        "fp8-wgmma-v-scale-of-next-tile",
        "fp8_wgmma",
        "products with V get the scale of the next tile: V lags the scores by one tile",
        "scale_v[b, kv_h, max(0, first_key - BLOCK_K), 0]",
        "scale_v[b, kv_h, first_key, 0]",
        ("acc",),
        needs=TILES,
        shows=scales_of_keys,
        source="synthetic",
    ),
    # ---- fp8_mma
    Fault(
        "fp8-mma-order-of-bytes",
        "fp8_mma",
        "adjacent codes are swapped when they are unpacked into a register",
        "uint32(libdevice.byte_perm(x, 0, 0x1404)), uint32(libdevice.byte_perm(x, 0, 0x3424))",
        "uint32(libdevice.byte_perm(x, 0, 0x0414)), uint32(libdevice.byte_perm(x, 0, 0x2434))",
        _DECODED,
        needs=_E4M3,
        source="synthetic",
    ),
    Fault(
        "fp8-mma-scale-of-q-twice",
        "fp8_mma",
        "scores are multiplied by q's scale twice, not by q's and k's",
        "s[i] = libdevice.fmul_rn(libdevice.fmul_rn(s[i], q_unit), k_unit)",
        "s[i] = libdevice.fmul_rn(libdevice.fmul_rn(s[i], q_unit), q_unit)",
        ("qk",),
        needs={"scale_of": "head"},
        source="synthetic",
    ),
    Fault(
        "fp8-mma-v-scale-not-in-out",
        "fp8_mma",
        "out is not multiplied by the scale of V",
        "acc[x] = libdevice.fmul_rn(acc[x], v_unit) * inverse",
        "acc[x] = acc[x] * inverse",
        ("out",),
        needs={"scale_of": "head"},
        source="vllm#42580",
    ),
    Fault(
        "fp8-mma-wait-of-two-groups",
        "fp8_mma",
        "the wait allows two copy groups in flight; one of them is decoded next",
        "ptx.cp_async_wait_group(1)",
        "ptx.cp_async_wait_group(2)",
        finding="uninitialised-read",
        source="FlashMLA 01a2772",
    ),
    Fault(
        "fp8-mma-v-not-transposed",
        "fp8_mma",
        "V is loaded without the transpose",
        _LD_V_OF_CODES,
        _LD_V_OF_CODES.replace("_trans", ""),
        ("acc",),
        source="flashinfer#2689",
    ),
)
