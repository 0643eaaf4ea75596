"""Faults of what is read of q, k and v: heads, rows and tiles, sequences, pages of a cache."""

from collections.abc import Mapping
from typing import Any

from workbench.case.case import Case
from workbench.case.memory import poison_of
from workbench.cuda.faults.conditions import hides_keys, several_tiles
from workbench.cuda.faults.fault import PARTIAL, Fault

#: sequences behind each other, of other lengths in q than in k
PACKED: Mapping[str, Any] = {
    **{"batch": 3, "seqlens_q": (40, 9, 65), "seqlens_k": (33, 100, 70)},
    **{"seqlen_q": 65, "seqlen_k": 100},
}
#: a cache with room for the longest
PADDED: Mapping[str, Any] = {"batch": 3, "seqlens_k": (33, 100, 70), "seqlen_k": 100}
#: a changed number of keys moves the diagonal as well, where there is one
FULL = {"causal": False}
#: what a key behind the end of its sequence reaches first
BEHIND_END = ("row_max", "row_sum")
PAGES: Mapping[str, Any] = {"batch": 3, "seqlens_k": (33, 100, 70), "seqlen_k": 100, "page_size": 16}
_READS = "tile[r, d] = LOAD(x[block_table[b, row // size], h, row % size, first_dim + d])"
_LOADS_V = "load_pages(s_kv, v, block_table, b, kv_h, first_key, seqlen_k, 0, head_dim_v)"


def poisoned(case: Case) -> bool:
    """Whether what a cache holds where nobody may look is no number, which shows even where probs are 0."""
    return poison_of(case) in ("nan", "inf")


FAULTS: tuple[Fault, ...] = (
    # ---- heads, batches, rows and tiles
    Fault(
        "flash-k-tile-stale",
        "flash",
        "tiles after the first reuse the previous K tile",
        "load_tile(s_kv, k, b, kv_h, first_k + first_key, first_k + seqlen_k, 0, head_dim)",
        "load_tile(s_kv, k, b, kv_h, first_k + max(first_key - BLOCK_K, 0), first_k + seqlen_k, 0, head_dim)",
        ("qk",),
        source="flashinfer#3276",
        shows=several_tiles,
    ),
    Fault(
        "flash-v-tile-stale",
        "flash",
        "tiles after the first reuse the previous V tile",
        "load_tile(s_kv, v, b, kv_h, first_k + first_key, first_k + seqlen_k, 0, head_dim_v)",
        "load_tile(s_kv, v, b, kv_h, first_k + max(first_key - BLOCK_K, 0), first_k + seqlen_k, 0, head_dim_v)",
        ("acc",),
        shows=several_tiles,
        source="TensorRT-LLM#18244",
    ),
    # ---- sequences of a batch
    Fault(
        "flash-cu-seqlens-off-by-one",
        "flash",
        "each sequence's keys start one row late; the last sequence reads past the array",
        "first_k, seqlen_k = cu_seqlens_k[b], ",
        "first_k, seqlen_k = cu_seqlens_k[b] + 1, ",
        ("qk", "acc"),
        "out-of-bounds",
        needs=PACKED,
        leaves_arrays=True,
        source="synthetic",
    ),
    Fault(
        "flash-q-start-of-k",
        "flash",
        "each sequence's queries are read from the offset of its keys",
        "load_tile(s_q, q, b, h, first_q + cuda.blockIdx.x * BLOCK_Q, first_q + seqlen_q, 0, head_dim)",
        "load_tile(s_q, q, b, h, cu_seqlens_k[b] + cuda.blockIdx.x * BLOCK_Q, q.shape[2], 0, head_dim)",
        ("qk",),
        needs=PACKED,
        source="TensorRT-LLM#10102",
    ),
    Fault(
        "flash-cache-length-off-by-one",
        "flash",
        "each sequence reads one key past its length in the cache",
        "seqlen_k = cache_seqlens[b]",
        "seqlen_k = min(cache_seqlens[b] + 1, max_seqlen_k)",
        (*BEHIND_END, "acc"),  # of V, which may hold NaN there
        needs={**PADDED, **FULL},
        source="vllm#53856",
    ),
    Fault(
        "partial-cache-lengths-ignored",
        "split_k",
        "every sequence reads the whole cache, not only its length",
        "seqlen_k = cache_seqlens[b]",
        "seqlen_k = max_seqlen_k",
        (*BEHIND_END, "acc"),  # of V, which may hold NaN there
        needs={**PADDED, **FULL},
        file=PARTIAL,
        source="aiter#5401",
    ),
    Fault(
        "partial-packed-causal",
        "split_k",
        "the causal mask uses the packed row (query and head) as the query index",
        "(causal and key > row + diagonal)",
        "(causal and key > row * group + h % group + diagonal)",
        ("scores",),
        needs={"pack_gqa": True, "causal": True, "heads": 4, "kv_heads": 2},
        shows=hides_keys,
        file=PARTIAL,
        source="flashinfer#1148",
    ),
    # ---- pages of a cache
    Fault(
        "flash-page-offset-dropped",
        "flash",
        "every key is read from the first row of its page",
        _READS,
        _READS.replace("row % size", "0"),
        ("qk", "acc"),
        needs=PAGES,
        source="aiter#4825",
    ),
    Fault(
        "flash-last-page-whole",
        "flash",
        "V is read to the end of the last page: its probs are 0, and 0 * NaN is NaN",
        _LOADS_V,
        _LOADS_V.replace("seqlen_k", "(seqlen_k + v.shape[2] - 1) // v.shape[2] * v.shape[2]"),
        ("acc",),
        needs=PAGES,
        shows=poisoned,
        source="flashinfer#942, vllm#53856",
    ),
)
