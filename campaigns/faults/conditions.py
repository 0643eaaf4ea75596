"""More of what a case must have for a fault to show in it, for the faults that are here alone."""

import numpy as np

from workbench.case.case import Case
from workbench.cuda.faults.tiles import blind, block_k_of, tiles_of, warp_rows


def full_tile(case: Case) -> bool:
    """Whether a tile of keys is full."""
    return case.seqlen_k >= block_k_of(case)


def several_query_tiles(case: Case) -> bool:
    """Whether there is more than one tile of queries."""
    assert case.block_q is not None
    return case.seqlen_q > case.block_q


def fewer_tiles_of_queries(case: Case) -> bool:
    """Whether the queries would fill fewer tiles of keys than the keys do."""
    return -(-case.seqlen_q // block_k_of(case)) < tiles_of(case)


def beyond_limit(case: Case) -> bool:
    """Whether there are more keys than the 64 that stand for what fits in an integer."""
    return case.seqlen_k > 64


def odd_splits(case: Case) -> bool:
    """Whether the number of splits is odd."""
    return (case.splits or 1) % 2 == 1


def batched(case: Case) -> bool:
    """Whether there is more than one batch."""
    return case.batch > 1


def several_heads(case: Case) -> bool:
    """Whether there is more than one query head."""
    return case.heads > 1


def grouped(case: Case) -> bool:
    """Whether several query heads share a kv head, of which there are several."""
    return case.heads > case.kv_heads > 1


def shared_kv(case: Case) -> bool:
    """Whether several query heads share a kv head."""
    return case.heads > case.kv_heads


def own_scale(case: Case) -> bool:
    """Whether the scale is not 1 / sqrt(head_dim)."""
    return case.scale != float(np.float32(case.head_dim**-0.5))


def rectangular(case: Case) -> bool:
    """Whether the diagonal of the mask does not begin at the first key."""
    return case.diagonal != 0


def empty_rows(case: Case) -> bool:
    """Whether some query sees no key."""
    return not case.mask().any(axis=1).all()


def lower_row_sees_more(case: Case) -> bool:
    """Whether some row g + 8 of 16 sees a key that row g does not."""
    rows = np.arange(case.seqlen_q)
    rows = rows[rows % 16 >= 8] + case.diagonal
    return bool(np.any((rows >= 0) & (rows - 8 < case.seqlen_k - 1)))


def diagonal_within_warp(case: Case) -> bool:
    """Whether the diagonal ends a row of some warp's in a tile that the warp's last row sees to the end."""
    ends = np.arange(1, tiles_of(case) + 1) * block_k_of(case) - 1
    first = np.arange(0, case.seqlen_q, warp_rows(case))[:, None] + case.diagonal
    seen = np.minimum(first + warp_rows(case) - 1, case.seqlen_k - 1)
    return bool(np.any((ends > first) & (ends <= seen)))


def last_tile_of_block(case: Case) -> bool:
    """Whether the diagonal of some block of queries ends within the keys."""
    assert case.block_q is not None
    lasts = np.arange(0, case.seqlen_q, case.block_q) + case.block_q - 1 + case.diagonal
    return bool(np.any((lasts >= 0) & (lasts // block_k_of(case) < tiles_of(case))))


def blind_in_visited_tile(case: Case) -> bool:
    """Whether some row sees no key of the first tile that its block visits."""
    assert case.block_q is not None
    mask, block = case.mask(), block_k_of(case)
    for row in range(0, case.seqlen_q, case.block_q):
        rows = mask[row : row + case.block_q]
        first = int(rows.any(axis=0).argmax()) // block * block
        if rows.any() and blind(rows[:, first : first + block]):
            return True
    return False
