"""Index maps of one axis as rules: what most of a map does, with its exceptions counted."""

import numpy as np
import pytest

from workbench.readings.maps import completed
from workbench.readings.maps import in_words as of_head
from workbench.readings.rules import in_words, rule_of

I = np.arange(256)
#: map -> its words
RULES = {
    "row i is row i - 1 (mod 256)": (I - 1) % 256,
    "row i is row i + 70 (mod 256)": (I + 70) % 256,
    "row i is row max(i - 3, 0)": np.maximum(I - 3, 0),
    "row i is row min(i + 5, 255)": np.minimum(I + 5, 255),
    "row i is row 255 - i": 255 - I,
    "row i is row i xor 1": I ^ 1,
    "row i is row 3 i + 2 (mod 256)": (3 * I + 2) % 256,
    "row i is row min(2 i, 255)": np.minimum(2 * I, 255),
    "row i is row i div 2": I // 2,
    "row i is row 4 (i div 4)": I // 4 * 4,
    "row i is row i mod 48": I % 48,
    "row i is row 16 (i mod 16) + i div 16": I % 16 * 16 + I // 16,
    "row i of each 32 is row i - 1 (mod 32)": I // 32 * 32 + (I - 1) % 32,
    "row i of each 64 is row max(i - 2, 0)": I // 64 * 64 + np.maximum(I % 64 - 2, 0),
    "row i of each 16 is row 15 - i": I // 16 * 16 + 15 - I % 16,
    "row i of each 64 is row 8 (i mod 8) + i div 8": I // 64 * 64 + I % 8 * 8 + I % 64 // 8,
    "tile i of 16 rows is tile i + 3 (mod 16)": (I + 48) % 256,
    "tile i of 64 rows is tile 3 - i": (3 - I // 64) * 64 + I % 64,
    "bits of row i: bit 0 goes to bit 0 and bit 4; bit 2 goes to bit 2 and bit 6": I ^ (I & 1) << 4 ^ (I & 4) << 4,
}  # fmt: skip


@pytest.mark.parametrize("words", RULES)
def test_a_rule_is_said_and_makes_the_map(words: str) -> None:
    source = RULES[words]
    rule = rule_of(source)
    assert rule is not None and np.array_equal(rule.made, source)
    if words.startswith("tile i of 16"):
        words = "row i is row i + 48 (mod 256)"
    moved = np.flatnonzero(source != I)
    assert in_words(moved, source[moved], 256, "row") == words


def test_exceptions_are_counted_up_to_one_in_a_hundred() -> None:
    source = (np.arange(2048) - 1) % 2048
    source[[7, 900]] = [3, 4]
    index = np.flatnonzero(source != np.arange(2048))
    assert in_words(index, source[index], 2048, "row") == "row i is row i - 1 (mod 2048), except 2 rows (7, 900)"
    source[:100] = np.random.default_rng(0).permutation(2048)[:100]
    index = np.flatnonzero(source != np.arange(2048))
    assert in_words(index, source[index], 2048, "row").startswith("row 0 comes from row ")
    assert rule_of(source) is None


def test_rows_that_are_as_they_should_be_hide_no_rule_of_the_others() -> None:
    source = np.where(I // 64 == 1, I // 64 * 64 + (I % 64 - 5) % 64, I)
    index = np.flatnonzero(source != I)
    assert in_words(index, source[index], 256, "row") == "in rows 64-127 row i of each 64 is row i - 5 (mod 64)"
    pairs = np.where(I % 32 == 5, I - 1, I)  # of many runs the rule is tried first, and the list told where it is none
    index = np.flatnonzero(pairs != I)
    assert in_words(index, pairs[index], 256, "row") == ("rows 5 of each 32 (from 5 to 229) come from row i - 1")
    # a few that are others in a long axis follow no rule, though most do: they are as they should be
    assert in_words(np.array([3, 9]), np.array([5, 3]), 4096, "dim") == "dim 3 comes from dim 5, 9 from 3"


def test_what_leads_nowhere_has_no_rule() -> None:
    assert rule_of(np.full(64, -2)) is None and rule_of(np.where(I == 9, -1, (I - 1) % 256)) is None
    assert rule_of(I) is None


def test_a_shift_of_rows_that_was_read_in_part_is_filled_in_and_said() -> None:
    """As of a large run, of which two runs of 32 keys are read."""
    row, dim = np.divmod(np.arange(2048 * 64).reshape(2048, 64), 64)
    source = (row - 1) % 2048 * 64 + dim
    part = np.where((row < 32) | (row >= 2016), source, -2)
    whole = completed(part, 64)
    assert np.array_equal(whole, source) and of_head(whole, 64) == "row i is row i - 1 (mod 2048)"


def test_rules_of_rows_and_dims_at_once() -> None:
    row, dim = np.divmod(np.arange(96 * 24).reshape(96, 24), 24)
    source = (row + 1) % 96 * 24 + (dim - 2) % 24
    source[5, 3] = 0
    said = of_head(source, 24)
    assert said == (
        "row i is row i + 1 (mod 96) and dim i is dim i - 2 (mod 24) (100.0% of its elements come from elsewhere), except "
        "dims 3 of rows 5"
    )
    turned = row * 24 + (dim + 12) % 24
    assert of_head(turned, 24) == "dim i is dim i + 12 (mod 24)"


def test_a_layout_with_exceptions_is_said() -> None:
    row, dim = np.divmod(np.arange(64 * 32).reshape(64, 32), 32)
    source = row * 32 + (dim ^ (row & 3) * 8)
    source[9, 9] = 7
    assert of_head(source, 32).startswith(
        "chunks of 8 elements are swizzled (75.0% of its elements come from elsewhere): "
    )
    assert of_head(source, 32).endswith("dim bit 4 by row bit 1, except dims 9 of rows 9")
