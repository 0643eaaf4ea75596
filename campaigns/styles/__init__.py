"""Attention kernels as people write them, correct and faulty, to try judgements on; pure NumPy."""

from campaigns.styles import (
    correct_arithmetic,
    correct_bounds,
    correct_clamps,
    correct_eager,
    correct_exponents,
    correct_masks,
    correct_merges,
    correct_orders,
    correct_polynomials,
    correct_sequences,
    correct_splits,
    correct_sums,
    correct_tf32,
    correct_workspaces,
    faulty_inputs,
    faulty_masks,
    faulty_merges,
    faulty_sums,
)
from campaigns.styles.fault import Faulty, faulty_cases
from campaigns.styles.style import Style, cases, declared

__all__ = ["CORRECT", "FAULTY", "Faulty", "Style", "cases", "declared", "faulty_cases"]

CORRECT: tuple[Style, ...] = (
    *correct_exponents.STYLES,
    *correct_bounds.STYLES,
    *correct_splits.STYLES,
    *correct_sums.STYLES,
    *correct_clamps.STYLES,
    *correct_masks.STYLES,
    *correct_merges.STYLES,
    *correct_arithmetic.STYLES,
    *correct_polynomials.STYLES,
    *correct_tf32.STYLES,
    *correct_workspaces.STYLES,
    *correct_orders.STYLES,
    *correct_eager.STYLES,
    *correct_sequences.STYLES,
)

FAULTY: tuple[Faulty, ...] = (
    *faulty_inputs.FAULTY,
    *faulty_masks.FAULTY,
    *faulty_sums.FAULTY,
    *faulty_merges.FAULTY,
)
