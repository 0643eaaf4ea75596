"""Faults of ragged batches: where the queries and keys of a sequence begin, how many there are, and its diagonal."""

from collections.abc import Mapping
from typing import Any

from workbench.case.case import Case
from workbench.cuda.faults.conditions import hides_keys
from workbench.cuda.faults.fault import PARTIAL, UNVISITED, Fault

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


def _tiles_per_split(case: Case, sequence: int) -> int:
    """Those of a split, were all sequences as long as one."""
    assert case.block_k is not None and case.splits is not None
    return -(-int(case.lengths_k[sequence]) // (case.block_k * case.splits))


FAULTS: tuple[Fault, ...] = (
    Fault(
        "flash-cu-seqlens-off-by-one",
        "flash",
        "the keys of a sequence begin one row late; those of the last end behind the array",
        "first_k, seqlen_k = cu_seqlens_k[b], ",
        "first_k, seqlen_k = cu_seqlens_k[b] + 1, ",
        ("qk", "acc"),
        "out-of-bounds",
        needs=PACKED,
        leaves_arrays=True,
        source="synthetic",
    ),
    Fault(
        "flash-tile-straddles-sequences",
        "flash",
        "the keys of a sequence are counted in whole tiles: the last one holds keys of the next sequence",
        "first_k, seqlen_k = cu_seqlens_k[b], cu_seqlens_k[b + 1] - cu_seqlens_k[b]",
        "first_k = cu_seqlens_k[b]; seqlen_k = cu_seqlens_k[b + 1] - first_k; "
        "seqlen_k = min((seqlen_k + BLOCK_K - 1) // BLOCK_K * BLOCK_K, min(max_seqlen_k, k.shape[2] - first_k))",
        BEHIND_END,
        needs={**PACKED, **FULL},
        source="flashinfer#1206",
    ),
    Fault(
        "flash-q-start-of-k",
        "flash",
        "the queries of a sequence are read from where its keys begin",
        "load_tile(s_q, q, b, h, first_q + cuda.blockIdx.x * BLOCK_Q, first_q + seqlen_q, 0, head_dim)",
        "load_tile(s_q, q, b, h, cu_seqlens_k[b] + cuda.blockIdx.x * BLOCK_Q, q.shape[2], 0, head_dim)",
        ("qk",),
        needs=PACKED,
        source="TensorRT-LLM#10102",
    ),
    Fault(
        "flash-lengths-of-k-for-q",
        "flash",
        "as many queries of a sequence are computed as it has keys, where these are fewer",
        "first_q, seqlen_q = cu_seqlens_q[b], cu_seqlens_q[b + 1] - cu_seqlens_q[b]",
        "first_q = cu_seqlens_q[b]; "
        "seqlen_q = min(cu_seqlens_q[b + 1] - first_q, cu_seqlens_k[b + 1] - cu_seqlens_k[b])",
        (*UNVISITED, "out", "lse"),
        needs={**PACKED, **FULL},
        source="jax bd9a10e4eb",
    ),
    Fault(
        "flash-diagonal-of-longest",
        "flash",
        "the causal mask of every sequence ends as that of the longest",
        "diagonal = seqlen_k - seqlen_q if bottom_right else 0",
        "diagonal = max_seqlen_k - lse.shape[2] if bottom_right else 0",
        ("scores",),
        needs={**PADDED, "seqlen_q": 20, "causal": True},
        source="flash-attention#436",
    ),
    Fault(
        "partial-diagonal-top-left",
        "split_k",
        "the window of a sequence lies around the diagonal from its first key on where lengths differ",
        "diagonal = seqlen_k - seqlen_q if bottom_right else 0",
        "diagonal = 0",
        ("scores",),
        needs={**PACKED, "window": (16, 0)},
        file=PARTIAL,
        source="flash-attention#1778",
    ),
    Fault(
        "flash-cache-length-off-by-one",
        "flash",
        "a sequence has one key more than its length says: what the cache holds behind its end",
        "seqlen_k = cache_seqlens[b]",
        "seqlen_k = min(cache_seqlens[b] + 1, max_seqlen_k)",
        (*BEHIND_END, "acc"),  # of V, which may hold NaN there
        needs={**PADDED, **FULL},
        source="vllm#53856",
    ),
    Fault(
        "partial-cache-lengths-ignored",
        "split_k",
        "every sequence has as many keys as the cache has room for",
        "seqlen_k = cache_seqlens[b]",
        "seqlen_k = max_seqlen_k",
        (*BEHIND_END, "acc"),  # of V, which may hold NaN there
        needs={**PADDED, **FULL},
        file=PARTIAL,
        source="aiter#5401",
    ),
    Fault(
        "partial-splits-of-first-sequence",
        "split_k",
        "the keys of every sequence are cut where those of the first are: of a longer one some are in no split",
        "most_tiles = (max_seqlen_k + BLOCK_K - 1) // BLOCK_K",
        "most_tiles = (cache_seqlens[0] + BLOCK_K - 1) // BLOCK_K",
        (*UNVISITED, "partial_max", "partial_sum", "partial_O"),
        needs=PADDED,
        shows=lambda case: _tiles_per_split(case, 0) < _tiles_per_split(case, 1),
        file=PARTIAL,
        source="flash-attention#2550",
    ),
    Fault(
        "reduce-lse-padded-offset",
        "split_k",
        "lse of a sequence is written where it were if all were as long as the longest",
        "lse[b, h, first_q + row] = m + math.log(l) if l != float32(0) else NEG_INF",
        "lse[b, h, (b * partial_O.shape[3] + row) % lse.shape[2]] = m + math.log(l) if l != float32(0) else NEG_INF",
        ("lse",),
        needs=PACKED,
        source="flash-attention#2573",
    ),
    # v of another width
    Fault(
        "flash-v-dims-of-k",
        "flash",
        "as many dims of v are computed as k has",
        "head_dim_v = v.shape[3]",
        "head_dim_v = min(head_dim, v.shape[3])",
        ("acc", "out"),
        needs={"head_dim": 16, "head_dim_v": 32},
        source="native-sparse-attention-triton#27",
    ),
    Fault(
        "partial-v-stride-of-k",
        "split_k",
        "tiles of v begin where they do in an array as wide as k",
        "load_tile(s_kv, v, b, kv_h, first_k + first_key, first_k + seqlen_k, 0, head_dim_v)",
        "load_tile(s_kv, v, b, kv_h, first_k + first_key * head_dim // head_dim_v, first_k + seqlen_k, 0, head_dim_v)",
        ("acc",),
        needs={"head_dim": 32, "head_dim_v": 16},
        file=PARTIAL,
        source="mlx#1558",
    ),
    # rows of a tile that are a query and a head
    Fault(
        "flash-packed-rows-swapped",
        "flash",
        "queries of a group are read head after head, not query after query",
        "load_row(s_q, r, lane, q, b, h, first_q + row, first_q + seqlen_q, 0, head_dim)",
        "packed = row * group + h % group; load_row(s_q, r, lane, q, b, kv_h * group + packed // seqlen_q % group, "
        "first_q + packed % seqlen_q, first_q + seqlen_q, 0, head_dim)",
        ("qk",),
        needs={"pack_gqa": True, "heads": 4, "kv_heads": 2},
        shows=lambda case: case.seqlen_q > 1,
        source="xformers 41646dbb",
    ),
    Fault(
        "partial-packed-causal",
        "split_k",
        "the causal mask takes a row of a tile, a query and a head of its group, for a query",
        "(causal and key > row + diagonal)",
        "(causal and key > row * group + h % group + diagonal)",
        ("scores",),
        needs={"pack_gqa": True, "causal": True, "heads": 4, "kv_heads": 2},
        shows=hides_keys,
        file=PARTIAL,
        source="flashinfer#1148",
    ),
)
