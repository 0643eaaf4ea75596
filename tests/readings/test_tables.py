"""Decode tables in words, and what is filled in of one that was read in part."""

import numpy as np
import pytest

from workbench.case.formats import FORMATS
from workbench.readings.finding import spans
from workbench.readings.tables import completed, in_words

RIGHT = FORMATS["e4m3"].values
CODE = np.arange(256)
FINITE = np.isfinite(RIGHT)


@pytest.mark.parametrize(
    ("wrong", "made", "words"),
    [
        (CODE > 0x80, -RIGHT, "codes 0x81-0xfe are decoded with the wrong sign"),
        (CODE >> 3 == 8, 2 * RIGHT, "codes 0x40-0x47 are decoded as twice their value"),
        (CODE == 0x7E, 0 * RIGHT, "code 0x7e is 0"),
        (CODE > 0, RIGHT / 3, "all codes are decoded as 0.3333 times their value"),
        (CODE == 5, RIGHT + 1, "code 0x05 is 1.0098, not 0.0097656"),
        ((CODE > 8) & (CODE < 64), RIGHT + 1, "codes 0x09-0x3f are decoded as their value +1"),
        (CODE >= 0, FORMATS["e5m2"].values, "codes"),
    ],
)
def test_a_rule_is_said(wrong: np.ndarray, made: np.ndarray, words: str) -> None:
    which = wrong & FINITE & np.isfinite(made) & (made != RIGHT)
    assert in_words("e4m3", RIGHT, np.where(which, made, RIGHT), which).startswith(words)


def test_what_was_not_read_between_wrong_codes_is_theirs() -> None:
    wrong = (CODE > 0x80) & (CODE < 0xC0) & (CODE % 3 > 0)
    got = np.where(CODE % 3 > 0, np.where((CODE > 0x80) & (CODE < 0xC0), -RIGHT, RIGHT), np.nan)
    table, which = completed("e4m3", RIGHT, got, np.full(256, 1e-3), wrong)
    assert spans(np.flatnonzero(which), write="0x{:02x}".format) == "0x81-0xc0" and table[0x90] == -RIGHT[0x90]


def test_codes_that_no_rule_explains_stay_as_they_were_read() -> None:
    got = np.where(CODE == 0x40, 2.1, np.where(CODE == 0x50, -3.0, RIGHT))
    wrong = (CODE == 0x40) | (CODE == 0x50)
    table, which = completed("e4m3", RIGHT, got, np.full(256, 1e-3), wrong)
    assert np.array_equal(which, wrong) and (table[0x40], table[0x50]) == (2.1, -3.0)
    assert in_words("e4m3", RIGHT, table, which) == "codes 0x40, 0x50: 0x40 is 2.1, not 2, 0x50 is -3, not 8"
