"""What a case must have for a fault to show in it; of a resolved case, with its tiles and splits."""

import numpy as np

from workbench.case.case import Case
from workbench.cuda.faults.tiles import blind, block_k_of, splits_of, tiles_of, warp_rows


def always(case: Case) -> bool:
    """True: the fault needs nothing but its options."""
    return True


def several_tiles(case: Case) -> bool:
    """Whether a row meets more than one tile of keys."""
    return case.seqlen_k > block_k_of(case)


def several_tiles_in_a_split(case: Case) -> bool:
    """Whether a split has more than one tile of keys."""
    return any(end - start > block_k_of(case) for start, end in splits_of(case))


def ragged(case: Case) -> bool:
    """Whether the last tile of keys is not full."""
    return case.seqlen_k % block_k_of(case) != 0


def several_splits(case: Case) -> bool:
    """Whether the keys are cut into more than one split."""
    return (case.splits or 1) > 1


def keys_in_every_split(case: Case) -> bool:
    """Whether every split has keys."""
    return all(start < end for start, end in splits_of(case))


def tiles_left_over(case: Case) -> bool:
    """Whether the tiles of keys, more than the splits, are no multiple of them."""
    splits = case.splits or 1
    return tiles_of(case) > splits and tiles_of(case) % splits != 0


def keys_in_several_splits(case: Case) -> bool:
    """Whether more than one split has keys."""
    return sum(start < end for start, end in splits_of(case)) > 1


def several_kv_heads(case: Case) -> bool:
    """Whether there is more than one kv head."""
    return case.kv_heads > 1


def scaled(case: Case) -> bool:
    """Whether the scale changes a score."""
    return case.scale != 1


def raw(case: Case) -> bool:
    """Whether the maximum is sought among products that are not scaled yet."""
    return case.softcap is None and case.scale > 0


def hides_keys(case: Case) -> bool:
    """Whether some query does not see some key."""
    return not case.mask().all()


def begins_masked(case: Case) -> bool:
    """Whether some query sees no key in the first tile that it meets, in some split."""
    mask, block = case.mask(), block_k_of(case)
    return any(blind(mask[:, start : min(start + block, end)]) for start, end in splits_of(case) if start < end)


def empty_split(case: Case) -> bool:
    """Whether some query sees no key in some split."""
    mask = case.mask()
    return any(blind(mask[:, start:end]) for start, end in splits_of(case))


def sees_past_end(case: Case) -> bool:
    """Whether the mask leaves a key behind the last one to some query, in a tile that is not full."""
    return ragged(case) and (not case.causal or case.seqlen_q + case.diagonal > case.seqlen_k)


def row_of_other_warp(case: Case) -> bool:
    """Whether there are rows of more than one warp of the kernel on tensor cores."""
    return case.seqlen_q > warp_rows(case)


def odd_key_behind_diagonal(case: Case) -> bool:
    """Whether the first key that some row does not see for the causal mask is odd."""
    rows = np.arange(case.seqlen_q) + case.diagonal
    return bool(np.any((rows >= 0) & (rows + 1 < case.seqlen_k) & (rows % 2 == 0)))
