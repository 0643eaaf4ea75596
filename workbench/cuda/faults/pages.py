"""Faults of a paged KV cache: which page holds a key, where in it, and how many keys it has."""

from collections.abc import Mapping
from typing import Any

from workbench.case.case import Case
from workbench.case.memory import poison_of
from workbench.cuda.faults.fault import PARTIAL, Fault

PAGES: Mapping[str, Any] = {"batch": 3, "seqlens_k": (33, 100, 70), "seqlen_k": 100, "page_size": 16}
_READS = "tile[r, d] = LOAD(x[block_table[b, row // size], h, row % size, first_dim + d])"
_LOADS_K = "load_pages(s_kv, k, block_table, b, kv_h, first_key, seqlen_k, 0, head_dim)"
_LOADS_V = "load_pages(s_kv, v, block_table, b, kv_h, first_key, seqlen_k, 0, head_dim_v)"


def poisoned(case: Case) -> bool:
    """Whether what a cache holds where nobody may look is no number, which shows even where probs are 0."""
    return poison_of(case) != "stale"


FAULTS: tuple[Fault, ...] = (
    Fault(
        "flash-page-of-tile",
        "flash",
        "the page is looked up once for a tile, which has keys of several",
        _READS,
        _READS.replace("block_table[b, row // size]", "block_table[b, first_row // size]"),
        ("qk", "acc"),
        needs=PAGES,
        source="TensorRT-LLM#18244, flashinfer#3022",
    ),
    Fault(
        "flash-page-stride-of-tile",
        "flash",
        "pages are taken to lie as far apart as a tile of keys is long",
        _READS,
        "flat = block_table[b, row // size] * BLOCK_K + row % size; "
        "tile[r, d] = LOAD(x[flat // size % x.shape[0], h, flat % size, first_dim + d])",
        ("qk", "acc"),
        needs=PAGES,
        shows=lambda case: case.page_size != case.block_k,
        source="aiter#3498",
    ),
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
        "flash-page-id-narrow",
        "flash",
        "ids of pages are kept in too few bits, here 3",
        _READS,
        _READS.replace("block_table[b, row // size]", "block_table[b, row // size] & 7"),
        ("qk", "acc"),
        needs=PAGES,  # whose ids go beyond 7
        source="flashinfer#3136",
    ),
    Fault(
        "flash-hnd-as-nhd",
        "flash",
        "pages in the layout HND are read as if they were NHD",
        _READS,
        "flat = row % size * x.shape[1] + h; "
        "tile[r, d] = LOAD(x[block_table[b, row // size], flat // size, flat % size, first_dim + d])",
        ("qk", "acc"),
        needs={**PAGES, "kv_layout": "HND", "heads": 2, "kv_heads": 2},
        source="vllm-project/flash-attention#87",
    ),
    Fault(
        "flash-block-table-of-neighbour",
        "flash",
        "the keys of a sequence are read from the pages of the next",
        _LOADS_K,
        _LOADS_K.replace("block_table, b,", "block_table, (b + 1) % block_table.shape[0],"),
        ("qk",),
        needs=PAGES,
        source="flash-attention#2745",
    ),
    Fault(
        "partial-v-page-of-first-sequence",
        "split_k",
        "V is read from the pages of the first sequence",
        _LOADS_V,
        _LOADS_V.replace("block_table, b,", "block_table, 0,"),
        ("acc",),
        needs=PAGES,
        file=PARTIAL,
        source="flash-attention#2550",
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
    Fault(
        "partial-v-page-of-k-tile-before",
        "split_k",
        "V of a tile is read from where the tile before begins in the block table",
        _LOADS_V,
        _LOADS_V.replace("first_key", "max(first_key - BLOCK_K, 0)"),
        ("acc",),
        needs=PAGES,
        file=PARTIAL,
        source="TensorRT-LLM#18244",
    ),
)
