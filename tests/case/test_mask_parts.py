"""Masks taken apart, and what functions do in their place, in words."""

import numpy as np
import pytest

from workbench.case.mask_parts import Band, in_place_of, parts

ROWS, KEYS = 10, 14
I, J = np.arange(ROWS)[:, None] + KEYS - ROWS, np.arange(KEYS)
CAUSAL = J <= I
LEFT = np.stack([J >= n for n in (0, 3, 5)])[:, None, None]
RIGHT = np.stack([J < n for n in (KEYS, 9, 13)])[:, None, None]
FULL = np.ones((3, 1, ROWS, KEYS), bool)
SPEC = "which the spec does not mention: if that is intended, fix the spec"
MASKS = {
    "full": (FULL, Band(None, None), ""),
    "causal": (FULL & CAUSAL, Band(None, 0), ""),
    "causal top-left": (FULL & (J <= I - 4), Band(None, 0, True), ""),
    "window 3 causal": (FULL & CAUSAL & (J >= I - 3), Band(3, 0), ""),
    "window 2,2": (FULL & (abs(I - J) <= 2), Band(2, 2), ""),
    "causal, padded before": (CAUSAL & LEFT, Band(None, 0), "first"),
    "padded behind": (FULL & RIGHT, Band(None, None), "last"),
    "window 3 causal, padded before": (CAUSAL & (J >= I - 3) & LEFT, Band(3, 0), "first"),
}


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_is_its_parts(name: str) -> None:
    mask, band, end = MASKS[name]
    found = parts(np.broadcast_to(mask, FULL.shape))
    assert found is not None and (found.band, found.end) == (band, end)
    assert found.band.name == name.partition(", padded")[0].replace("full", "").replace("padded behind", "")


def test_a_mask_with_holes_is_none_of_them() -> None:
    assert parts(FULL & CAUSAL & ((I + J) % 3 > 0)) is None
    assert parts(~FULL) is None


PLACES = {
    # what was told, what the function sees, in words
    "causal": (FULL, CAUSAL, f"the function hides keys after the query (causal), {SPEC}"),
    "causal, from the corner": (
        FULL, J <= I - 4, f"the function hides keys after the query (causal, counted from the top left), {SPEC}",
    ),
    "window, told causal": (
        FULL & CAUSAL, CAUSAL & (J > I - 4),
        f"the function hides keys more than 3 before the query (a window of 4 keys), {SPEC}",
    ),
    "window, told full": (
        FULL, abs(I - J) <= 2, f"the function hides keys more than 2 before the query or 2 after it (a window), {SPEC}",
    ),
    "window and causal, told padded": (
        FULL & LEFT, CAUSAL & (J > I - 4) & LEFT,
        f"the function hides keys more than 3 before the query, and keys after the query (a window of 4 keys), {SPEC}",
    ),
    "chunks": (FULL & CAUSAL, CAUSAL & (I // 5 == J // 5), f"the function hides keys outside the chunk of 5 keys of the query, {SPEC}"),
    "left padding": (CAUSAL & LEFT, CAUSAL, "the padding mask of the first keys is not applied"),
    "right padding": (FULL & RIGHT, FULL, "the padding mask of the last keys is not applied"),
    "padding of windows": (
        CAUSAL & (J > I - 4) & LEFT, CAUSAL & (J > I - 4), "the padding mask of the first keys is not applied",
    ),
    "the other end": (
        FULL & RIGHT, FULL & RIGHT[..., ::-1], "the padding mask hides the first keys instead of the last",
    ),
    "no window": (CAUSAL & (J > I - 4) & LEFT, CAUSAL & LEFT, "the window is not applied"),
    "not causal": (CAUSAL & LEFT, FULL & LEFT, "keys after the query are not hidden (causal)"),
    "nothing of a mask": (CAUSAL & LEFT, FULL, "no key is masked"),
    "nothing of holes": (FULL & ((I + J) % 3 > 0), FULL, "no key is masked"),
    "batch 0": (CAUSAL & LEFT[[1, 2, 0]], (CAUSAL & LEFT[[1, 2, 0]])[:1], "the mask of batch 0 is used for every batch"),
    # without a name: one key less of padding, one batch alone, holes
    "padding of a key less": (CAUSAL & LEFT, CAUSAL & np.roll(LEFT, -1, -1) & (J < KEYS - 1), ""),
    "holes": (FULL, J % 3 > 0, ""),
    "right": (CAUSAL & LEFT, CAUSAL & LEFT, ""),
    "nothing": (FULL, ~FULL, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", PLACES)
def test_what_is_seen_in_place_of_a_mask_has_a_name(name: str) -> None:
    told, sees, said = PLACES[name]
    assert in_place_of(np.broadcast_to(told, FULL.shape), np.broadcast_to(sees, FULL.shape)) == said
