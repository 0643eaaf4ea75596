"""The tiles, splits and warps of a resolved case, of which conditions speak."""

from collections.abc import Iterator

import numpy as np

from workbench.case.case import Case


def block_k_of(case: Case) -> int:
    assert case.block_k is not None
    return case.block_k


def tiles_of(case: Case) -> int:
    return -(-case.seqlen_k // block_k_of(case))


def splits_of(case: Case) -> Iterator[tuple[int, int]]:
    """First key and last + 1 of every split."""
    splits = case.splits or 1
    keys = -(-tiles_of(case) // splits) * block_k_of(case)
    for split in range(splits):
        yield min(split * keys, case.seqlen_k), min((split + 1) * keys, case.seqlen_k)


def blind(mask: np.ndarray) -> bool:
    return not mask.any(axis=1).all()


def warp_rows(case: Case) -> int:
    """Query rows of a warp of the kernel on tensor cores."""
    assert case.block_q is not None
    return 32 if case.block_q > 64 else 16
