"""Masks that are elsewhere, and sums that go on behind the end of their axis, as in a kernel's last tile."""

from functools import partial

import numpy as np
import pytest

from workbench.judge.reference.causes.masks import diagonal
from workbench.judge.reference.causes.search import explain
from workbench.judge.reference.diff import ReferenceDiff
from workbench.operations.reference.call import diff_reference
from workbench.work import Work

#: trials: the likeliest edits
FEW = 400


def naive(q, k, v):
    mask = np.tri(len(q), len(k), len(k) - len(q), dtype=bool)
    scores = np.where(mask, q @ k.T, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    probs = weights / weights.sum(-1, keepdims=True)
    out = probs @ v
    return out


def inputs(seed, dtype, rows=12, keys=40, dim=16):
    rng = np.random.default_rng(seed)
    made = {"q": rng.standard_normal((rows, dim)) / 2, "k": rng.standard_normal((keys, dim))}
    return {name: x.astype(dtype) for name, x in (made | {"v": rng.standard_normal((keys, dim))}).items()}


def top_left(q, k, v):
    return attend(q, k, v, np.tri(len(q), len(k), dtype=bool))


def unmasked_tail(q, k, v):
    """The last tile of 16 keys has 8 that are not there: their scores are 0."""
    return attend(q, k, v, np.tri(len(q), len(k), len(k) - len(q), dtype=bool), tail=8)


def by_tiles(q, k, v):
    """Tiles of 16 before 32 are masked from the top left, by their first column alone."""
    column = np.arange(len(k))
    whole = np.arange(len(q))[:, None] >= column // 16 * 16
    return attend(q, k, v, np.where(column < 32, whole, np.tri(len(q), len(k), len(k) - len(q), dtype=bool)))


def attend(q, k, v, mask, tail=0):
    scores = np.where(mask, q @ k.T, np.float32(-np.inf))
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - top)
    return weights @ v / (weights.sum(-1, keepdims=True) + np.float32(tail) * np.exp(-top))


def lengths(a, b):
    """The same line for two lengths, as of packed sequences."""
    found = []
    for x in (a, b):
        weights = np.exp(x)
        found.append(weights / weights.sum(-1, keepdims=True))
    return np.concatenate(found, 1)


def lengths_to_tiles(a, b):
    totals = [np.exp(x).sum(-1, keepdims=True) + np.float32(-x.shape[1] % 32) for x in (a, b)]
    return np.concatenate([np.exp(x) / total for x, total in zip((a, b), totals, strict=True)], 1)


def two(seed, dtype):
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal((12, n)).astype(dtype) for name, n in (("a", 20), ("b", 40))}


def in_windows(x):
    """Columns 5 wide and rows 3 high of a canvas of 8 by 8; the first two places always count."""
    place = np.arange(64)
    row, column = place // 8, place % 8
    near = (abs(row[:, None] - row) < 2) & (abs(column[:, None] - column) < 3)
    seen = near | (place < 2)
    return np.where(seen, x, 0).sum(-1)


def exchanged(x):
    return windows(x, row=np.arange(64) % 8, column=np.arange(64) // 8)


def one_condition_less(x):
    return windows(x, row=np.zeros(64, int))


def from_each_tile(x):
    """Columns are counted from the beginning of their tile of 32 where they are near."""
    return windows(x, of=np.arange(64) % 32)


def windows(x, row=None, column=None, of=None):
    place = np.arange(64)
    of = place if of is None else of
    row, column = (place // 8 if row is None else row), (place % 8 if column is None else column)
    near = (abs(row[:, None] - row[of]) < 2) & (abs(column[:, None] - column[of]) < 3)
    return np.where(near | (place < 2), x, np.float32(0)).sum(-1)


def canvas(seed, dtype):
    return {"x": np.random.default_rng(seed).standard_normal((64, 64)).astype(dtype)}


def told(found: ReferenceDiff) -> tuple[str, bool]:
    (cause,) = explain(found.scene, Work(FEW)).causes
    return cause.names[0].text, cause.proved


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        (top_left, "mask has its diagonal at 0 in place of 28"),
        (unmasked_tail, "sum of weights also adds 8 places behind the end, where scores is 0"),
    ],
)
def test_a_mask_of_attention(kernel, text: str) -> None:
    assert told(diff_reference(kernel, naive, inputs)) == (text, True)


def test_a_mask_of_whole_tiles() -> None:
    text = "mask has its diagonal at 0 in place of 16 and is decided by the first column of each tile of 16"
    found = told(diff_reference(by_tiles, naive, partial(inputs, rows=24)))
    assert found == (f"{text}, in columns before 32 only", True)


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        (exchanged, "row and column stand in each other's place"),
        (one_condition_less, "(|row - row|) < 2 is True everywhere"),
        (from_each_tile, "row - row is read modulo 32 along axis 1"),
    ],
)
def test_a_mask_that_is_computed_from_places(kernel, text: str) -> None:
    assert told(diff_reference(kernel, in_windows, canvas)) == (text, True)


def test_sums_over_several_lengths_go_on_to_whole_tiles() -> None:
    text, proved = told(diff_reference(lengths_to_tiles, lengths, two))
    assert "goes on to a whole tile of 32, where what is loaded is 0" in text and proved


def test_the_diagonal_of_a_mask() -> None:
    for k in (-2, 0, 3):
        assert diagonal(np.tri(4, 6, k, dtype=bool)) == diagonal(~np.tri(4, 6, k, dtype=bool)) == k
    assert diagonal(np.ones((3, 3), bool)) is diagonal(np.eye(3, dtype=bool)) is diagonal(np.ones(3, bool)) is None
