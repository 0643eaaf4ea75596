"""Faults of Split-K on tensor cores within a split: stages of copies, packed rows, and what warps share."""

from collections.abc import Mapping
from typing import Any

from workbench.case.case import Case
from workbench.cuda.faults.conditions import (
    hides_keys,
    raw,
    scaled,
    several_tiles,
    several_tiles_in_a_split,
)
from workbench.cuda.faults.fault import Fault

#: heads that share a kv head, whose queries are rows of one tile
PACKED: Mapping[str, Any] = {"heads": 4, "kv_heads": 2}
_ROW = "s_max[w * BLOCK_Q + g + 8 * r]"
_CAST = "            (s[i],) = probe(CAST(s[i]))  # as they are packed, for which they are the same\n"


def several_packed_queries(case: Case) -> bool:
    """Whether rows of a tile are of several heads, each of which has several queries."""
    return case.heads > case.kv_heads and case.seqlen_q > 1


FAULTS: tuple[Fault, ...] = (
    # copies
    Fault(
        "split-mma-stage-not-turned",
        "split_mma",
        "the next tile is sought in the stage of the present one, while its copy went to the next",
        "stage = stage + 1 if stage < STAGES - 1 else 0",
        "stage = 0",
        ("qk", "acc"),
        shows=several_tiles_in_a_split,
        source="synthetic",
    ),
    Fault(
        "split-mma-one-group-too-few",
        "split_mma",
        "one group of copies more may be under way when K is read than there are behind it: K itself",
        "ptx.cp_async_wait_group(K_PENDING)",
        "ptx.cp_async_wait_group(V_PENDING)",
        ("qk",),
        finding="uninitialised-read",
        source="FlashMLA 01a2772",
    ),
    Fault(
        "split-mma-v-not-waited-for",
        "split_mma",
        "probs meet V before its copy was waited for",
        "ptx.cp_async_wait_group(V_PENDING)",
        "pass",
        ("acc",),
        finding="uninitialised-read",
        source="Fuser#2000",
    ),
    Fault(
        "split-mma-no-group-where-no-tile",
        "split_mma",
        "no group is committed where no tile is left, so that the wait for K counts those before as if it were there",
        "            copy_tile(tiles, K_AT + stage * BLOCK_K, k, b, kv_h, first_next, first_k + seqlen_k, head_dim)\n"
        "        ptx.cp_async_commit()\n",
        "            copy_tile(tiles, K_AT + stage * BLOCK_K, k, b, kv_h, first_next, first_k + seqlen_k, head_dim)\n"
        "            ptx.cp_async_commit()\n",
        ("qk", "acc"),
        finding="uninitialised-read",
        shows=several_tiles_in_a_split,
        source="synthetic",
    ),
    Fault(
        "split-mma-tail-not-zeroed",
        "split_mma",
        "rows of V beyond the last key are left as they were in shared memory: 0 * NaN",
        "            else:\n                ptx.st_v4_u32(tiles, place, ",
        "            elif row < rows or at < V_AT:\n                ptx.st_v4_u32(tiles, place, ",
        finding="uninitialised-read",
        needs={"block_k": 128},  # no tile before left numbers there
        shows=lambda case: case.seqlen_k < 128,
        seqlen=100,
        source="flashinfer#1029",
    ),
    Fault(
        "split-mma-next-k-too-early",
        "split_mma",
        "K of a later tile is asked for before the barrier, over K that other warps still multiply",
        "        cuda.syncthreads()  # s_max is complete; protects K, which all warps have multiplied\n",
        "        pass\n",
        finding="race",
        shows=several_tiles,
        source="rocm-libraries#4742",
    ),
    # packed rows
    Fault(
        "split-mma-rows-swapped",
        "split_mma",
        "queries of a group are read head after head, not query after query",
        "query, head = (first_row + r) // group, first_head + (first_row + r) % group",
        "query, head = (first_row + r) % seqlen_q, first_head + (first_row + r) // seqlen_q % group",
        ("qk",),
        needs=PACKED,
        shows=several_packed_queries,
        source="xformers 41646dbb",
    ),
    Fault(
        "split-mma-causal-of-packed-row",
        "split_mma",
        "the causal mask takes a row of a tile, a query and a head of its group, for a query",
        "last = min(last, query[r] + diagonal)\n",
        "last = min(last, first_row + g + 8 * r + diagonal)\n",
        ("scores",),
        needs={**PACKED, "causal": True},
        shows=hides_keys,
        source="flashinfer#1148",
    ),
    Fault(
        "split-mma-window-off-by-one",
        "split_mma",
        "the window hides the first key in it: < became <=",
        "if first_own + column(i, t) < query[r] + diagonal - left:",
        "if first_own + column(i, t) <= query[r] + diagonal - left:",
        ("scores",),
        needs={"window": (16, 0)},
        source="transformers#39408",
    ),
    Fault(
        "split-mma-softcap-of-raw-scores",
        "split_mma",
        "scores are capped before they are scaled",
        "                s[i] = libdevice.fmul_rn(s[i], scale)\n",
        "                pass\n",
        ("capped",),
        needs={"softcap": 5.0},
        shows=scaled,
        source="synthetic",
    ),
    # what warps share
    Fault(
        "split-mma-row-max-of-two-lanes",
        "split_mma",
        "the reduction of a row's max ends one shuffle early: two of its four lanes",
        "largest = row_max_of(largest)",
        "largest = max(largest, cuda.shfl_xor_sync(0xFFFFFFFF, largest, 1))",
        ("row_max",),
        source="synthetic",
    ),
    Fault(
        "split-mma-row-max-of-own-warp",
        "split_mma",
        "each warp takes the maximum of its own keys for that of the row",
        f"largest = max(largest, {_ROW})",
        f"largest = max(largest, {_ROW.replace('w *', 'warp *')})",
        ("row_max", "probs", "acc"),
        needs={"head_dim": 64},  # the second warp has half of the dims, of 64
        shows=several_tiles_in_a_split,
        source="synthetic",
    ),
    Fault(
        "split-mma-max-stored-too-early",
        "split_mma",
        "the correction is made of the new max, which takes the old one's place one line too early",
        "            correction[r] = ptx.ex2_approx((m[r] - safe) * exp2_scale)\n            m[r] = largest\n",
        "            m[r] = largest\n            correction[r] = ptx.ex2_approx((m[r] - safe) * exp2_scale)\n",
        ("correction",),
        shows=several_tiles_in_a_split,
        source="synthetic",
    ),
    Fault(
        "split-mma-exp2-without-log2e",
        "split_mma",
        "the scale of exp2's argument lacks the factor log2(e)",
        "    exp2_scale = libdevice.fmul_rn(scale, LOG2_E)\n",
        "    exp2_scale = scale\n",
        ("correction", "probs"),
        shows=lambda case: raw(case) and several_tiles_in_a_split(case),
        source="flashinfer#787",
    ),
    Fault(
        "split-mma-probs-cut-off",
        "split_mma",
        "the upper halves of float32 are packed as bfloat16: rounded toward zero",
        _CAST,
        f"            s[i] = libdevice.int_as_float(int32(libdevice.float_as_int(s[i]) & -65536)); {_CAST.lstrip()}",
        ("probs_cast",),
        needs={"dtype": "bfloat16"},
        source="FreeToken#103",
    ),
    Fault(
        "split-mma-row-sum-of-first-warp",
        "split_mma",
        "row_sum adds the keys of the first warp alone",
        "            for w in range(WARPS):\n                l[r] += ",
        "            for w in range(1):\n                l[r] += ",
        ("row_sum",),
        source="synthetic",
    ),
    Fault(
        "split-mma-probs-not-unswizzled",
        "split_mma",
        "chunks of probs are read where they would be without the swizzle with which they were written",
        "(2 * n | lane >> 4) ^ PROBS_SWIZZLE & lane",
        "2 * n | lane >> 4",
        ("acc",),
        source="flash-attention eeca63a7",
    ),
    Fault(
        "split-mma-no-barrier-before-probs",
        "split_mma",
        "no barrier between the probs and sums that warps leave for each other and what reads them",
        "        cuda.syncthreads()  # V of all threads has come; s_probs and s_sum are complete; protects s_max\n",
        "        pass\n",
        finding="race",
        source="synthetic",
    ),
)
