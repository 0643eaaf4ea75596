"""Attention kernels as people write them, correct and faulty, to try judgements on; pure NumPy."""

from workbench.styles import correct_exponents, correct_masks, correct_merges, correct_splits, correct_sums
from workbench.styles.style import Style, cases, declared

__all__ = ["CORRECT", "Style", "cases", "declared"]

CORRECT: tuple[Style, ...] = (
    *correct_exponents.STYLES,
    *correct_splits.STYLES,
    *correct_sums.STYLES,
    *correct_masks.STYLES,
    *correct_merges.STYLES,
)
