"""What a case must have for a fault to show in it; of a settled case, with its tiles and splits."""

from collections.abc import Iterator

import numpy as np

from workbench.case.case import Case


def always(case: Case) -> bool:
    """True: the fault needs nothing but its options."""
    return True


def several_tiles(case: Case) -> bool:
    """Whether a row meets more than one tile of keys."""
    return case.seqlen_k > _block_k(case)


def several_tiles_in_a_split(case: Case) -> bool:
    """Whether a split has more than one tile of keys."""
    return any(end - start > _block_k(case) for start, end in _splits(case))


def full_tile(case: Case) -> bool:
    """Whether a tile of keys is full."""
    return case.seqlen_k >= _block_k(case)


def ragged(case: Case) -> bool:
    """Whether the last tile of keys is not full."""
    return case.seqlen_k % _block_k(case) != 0


def several_query_tiles(case: Case) -> bool:
    """Whether there is more than one tile of queries."""
    assert case.block_q is not None
    return case.seqlen_q > case.block_q


def fewer_tiles_of_queries(case: Case) -> bool:
    """Whether the queries would fill fewer tiles of keys than the keys do."""
    return -(-case.seqlen_q // _block_k(case)) < _tiles(case)


def beyond_limit(case: Case) -> bool:
    """Whether there are more keys than the 64 that stand for what fits in an integer."""
    return case.seqlen_k > 64


def several_splits(case: Case) -> bool:
    """Whether the keys are cut into more than one split."""
    return (case.splits or 1) > 1


def keys_in_every_split(case: Case) -> bool:
    """Whether every split has keys."""
    return all(start < end for start, end in _splits(case))


def odd_splits(case: Case) -> bool:
    """Whether the number of splits is odd."""
    return (case.splits or 1) % 2 == 1


def tiles_left_over(case: Case) -> bool:
    """Whether the tiles of keys, more than the splits, are no multiple of them."""
    splits = case.splits or 1
    return _tiles(case) > splits and _tiles(case) % splits != 0


def keys_in_several_splits(case: Case) -> bool:
    """Whether more than one split has keys."""
    return sum(start < end for start, end in _splits(case)) > 1


def batched(case: Case) -> bool:
    """Whether there is more than one batch."""
    return case.batch > 1


def several_heads(case: Case) -> bool:
    """Whether there is more than one query head."""
    return case.heads > 1


def several_kv_heads(case: Case) -> bool:
    """Whether there is more than one kv head."""
    return case.kv_heads > 1


def grouped(case: Case) -> bool:
    """Whether several query heads share a kv head, of which there are several."""
    return case.heads > case.kv_heads > 1


def shared_kv(case: Case) -> bool:
    """Whether several query heads share a kv head."""
    return case.heads > case.kv_heads


def scaled(case: Case) -> bool:
    """Whether the scale changes a score."""
    return case.scale != 1


def raw(case: Case) -> bool:
    """Whether the maximum is sought among products that are not scaled yet."""
    return case.softcap is None and case.scale > 0


def own_scale(case: Case) -> bool:
    """Whether the scale is not 1 / sqrt(head_dim)."""
    return case.scale != float(np.float32(case.head_dim**-0.5))


def rectangular(case: Case) -> bool:
    """Whether the diagonal of the mask does not begin at the first key."""
    return case.diagonal != 0


def hides_keys(case: Case) -> bool:
    """Whether some query does not see some key."""
    return not case.mask().all()


def empty_rows(case: Case) -> bool:
    """Whether some query sees no key."""
    return not case.mask().any(axis=1).all()


def begins_masked(case: Case) -> bool:
    """Whether some query sees no key in the first tile that it meets, in some split."""
    mask, block = case.mask(), _block_k(case)
    return any(_blind(mask[:, start : min(start + block, end)]) for start, end in _splits(case) if start < end)


def empty_split(case: Case) -> bool:
    """Whether some query sees no key in some split."""
    mask = case.mask()
    return any(_blind(mask[:, start:end]) for start, end in _splits(case))


def sees_past_end(case: Case) -> bool:
    """Whether the mask leaves a key behind the last one to some query, in a tile that is not full."""
    return ragged(case) and (not case.causal or case.seqlen_q + case.diagonal > case.seqlen_k)


def row_of_other_warp(case: Case) -> bool:
    """Whether there are rows of more than one warp of the kernel on tensor cores."""
    return case.seqlen_q > _warp_rows(case)


def odd_key_behind_diagonal(case: Case) -> bool:
    """Whether the first key that some row does not see for the causal mask is odd."""
    rows = np.arange(case.seqlen_q) + case.diagonal
    return bool(np.any((rows >= 0) & (rows + 1 < case.seqlen_k) & (rows % 2 == 0)))


def lower_row_sees_more(case: Case) -> bool:
    """Whether some row g + 8 of 16 sees a key that row g does not."""
    rows = np.arange(case.seqlen_q)
    rows = rows[rows % 16 >= 8] + case.diagonal
    return bool(np.any((rows >= 0) & (rows - 8 < case.seqlen_k - 1)))


def diagonal_within_warp(case: Case) -> bool:
    """Whether the diagonal ends a row of some warp's in a tile that the warp's last row sees to the end."""
    ends = np.arange(1, _tiles(case) + 1) * _block_k(case) - 1
    first = np.arange(0, case.seqlen_q, _warp_rows(case))[:, None] + case.diagonal
    seen = np.minimum(first + _warp_rows(case) - 1, case.seqlen_k - 1)
    return bool(np.any((ends > first) & (ends <= seen)))


def last_tile_of_block(case: Case) -> bool:
    """Whether the diagonal of some block of queries ends within the keys."""
    assert case.block_q is not None
    lasts = np.arange(0, case.seqlen_q, case.block_q) + case.block_q - 1 + case.diagonal
    return bool(np.any((lasts >= 0) & (lasts // _block_k(case) < _tiles(case))))


def blind_in_visited_tile(case: Case) -> bool:
    """Whether some row sees no key of the first tile that its block visits."""
    assert case.block_q is not None
    mask, block = case.mask(), _block_k(case)
    for row in range(0, case.seqlen_q, case.block_q):
        rows = mask[row : row + case.block_q]
        first = int(rows.any(axis=0).argmax()) // block * block
        if rows.any() and _blind(rows[:, first : first + block]):
            return True
    return False


def _block_k(case: Case) -> int:
    assert case.block_k is not None
    return case.block_k


def _tiles(case: Case) -> int:
    return -(-case.seqlen_k // _block_k(case))


def _splits(case: Case) -> Iterator[tuple[int, int]]:
    """First key and last + 1 of every split."""
    splits = case.splits or 1
    keys = -(-_tiles(case) // splits) * _block_k(case)
    for split in range(splits):
        yield min(split * keys, case.seqlen_k), min((split + 1) * keys, case.seqlen_k)


def _blind(mask: np.ndarray) -> bool:
    return not mask.any(axis=1).all()


def _warp_rows(case: Case) -> int:
    """Query rows of a warp of the kernel on tensor cores."""
    assert case.block_q is not None
    return 32 if case.block_q > 64 else 16
