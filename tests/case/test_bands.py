"""A causal mask or a window, and padding, read off one mask."""

from typing import Any

import numpy as np
import pytest

from workbench import Case
from workbench.case.bands import band

CASE = Case(batch=3, heads=2, seqlen=16, head_dim=8)
#: no padding, left and right
PADDING = ((np.arange(16) >= np.array([0, 5, 0])[:, None]) & (np.arange(16) < np.array([16, 16, 12])[:, None]))[:, None]
BANDS: dict[str, dict[str, Any]] = {
    "causal": {"causal": True},
    "window": {"causal": True, "window": (3, 0)},
    "both sides": {"window": (2, 4)},
    "to the right": {"window": (-1, 2)},
}


@pytest.mark.parametrize("fields", BANDS.values(), ids=BANDS)
def test_a_band_and_padding_are_told_apart(fields: dict[str, Any]) -> None:
    whole = CASE.but(**fields)
    found = band(CASE, (whole.mask() & PADDING[:, :, None])[:, :1])
    assert (
        found is not None
        and found.mask is not None
        and CASE.but(**found.fields).mask().tolist() == whole.mask().tolist()
    )
    assert CASE.but(**found.fields).causal == whole.causal and CASE.but(**found.fields).window == whole.window
    seen = whole.mask() & PADDING[:, :, None]
    assert np.array_equal(whole.mask() & found.mask, seen) and found.mask.shape == (3, 1, 1, 16)
    alone = band(CASE, whole.mask())
    assert alone is not None and alone.mask is None


@pytest.mark.parametrize(("seqlen_q", "alignment"), [(5, "bottom-right"), (5, "top-left"), (20, "bottom-right")])
def test_of_other_lengths_the_corner_is_told(seqlen_q: int, alignment: str) -> None:
    case = Case(seqlen_q=seqlen_q, seqlen_k=16, head_dim=8)
    whole = case.but(causal=True, causal_alignment=alignment)
    found = band(case, whole.mask())
    assert found is not None and np.array_equal(case.but(**found.fields).mask(), whole.mask())
    assert found.fields["causal"] and found.mask is None


def test_a_case_keeps_the_band_that_it_has() -> None:
    case = CASE.but(causal=True, window=(6, 0))
    found = band(case, case.mask() & PADDING[:, :, None])
    assert (
        found is not None and not found.fields and np.array_equal(found.mask, case.mask().any(0) & PADDING[:, :, None])
    )
    narrower = case.but(window=(3, 0)).mask()  # a window that the mask makes narrower is none of the case
    assert band(case, narrower) is None


def test_what_is_no_band_stays_a_mask() -> None:
    random = np.random.default_rng(0).random((3, 1, 16, 16)) < 0.5
    assert band(CASE, random) is None
    assert band(CASE, PADDING[:, :, None]) is None  # padding alone
    holes = CASE.but(causal=True).mask().copy()
    holes[9, 4] = False
    assert band(CASE, holes) is None
    assert band(CASE.but(seqlen_q=1), np.ones((1, 16), bool)) is None
