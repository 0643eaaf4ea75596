"""Runs that are too large to be held against float64 a hundred times: some rows of the head that is farthest off."""

from typing import Any

import numpy as np
import pytest

from tests.trace.test_rows import attention
from workbench import Case, Refusal, measure
from workbench.readings import sample, target

CASE = Case(batch=2, heads=2, seqlen_q=96, seqlen_k=96, head_dim=32)


@pytest.fixture(autouse=True)
def _large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run of 96 rows as of one of 4096."""
    monkeypatch.setattr(sample, "LARGEST", 2**14)
    monkeypatch.setattr(sample, "SCORES", 96 * 64)
    monkeypatch.setattr(target, "FEW_KEYS", 64)


def wrong(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> Any:
    k, v = k.copy(), v.copy()
    # rows and dims of K are swapped within blocks of 16 x 16, in one head
    k[1, 1] = k[1, 1].reshape(6, 16, 2, 16).swapaxes(1, 3).reshape(96, 32)
    return attention(q, k, v, scale=scale, causal=causal)


def moved(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> Any:
    v = v.copy()
    v[0, 1, 32:64] = v[0, 1, 64:96]
    return attention(q, k, v, scale=scale, causal=causal)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_of_a_right_function_nothing_is_found(causal: bool) -> None:
    found = measure(attention, CASE.but(causal=causal))
    assert not found.findings and found.verdict.weights.summary.outside == 0 and found.weights.shape[1:] == (1, 61, 96)
    assert "61 of 96 rows of batch" in found.part and "farthest from float64" in str(found)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_the_head_that_is_wrong_is_found_and_read(causal: bool) -> None:
    found = measure(wrong, CASE.but(causal=causal))
    (finding,) = found.findings
    assert "each 16 x 16 block is transposed" in finding.text and found.proved
    assert "of batch 1, head 1" in found.part and "measured on" in finding.text  # of some of its keys alone


def test_rows_of_v_that_stand_elsewhere() -> None:
    found = measure(moved, CASE)
    (finding,) = found.findings
    assert "rows 32-63 come from row i + 32" in finding.text and found.proved and "of batch 0, head 1" in found.part


def test_rows_may_be_said() -> None:
    assert measure(wrong, CASE, where="b=1,h=1,q=0:40").findings
    found = measure(wrong, CASE, where="b=0,q=0:40")
    assert not found.findings and found.part == "b=0:1,h=0:2,q=0:40 alone"
    with pytest.raises(Refusal, match="has 36,864 scores; the limit is 16,384. Choose fewer"):
        measure(wrong, CASE, where="q=0:96")


def test_rows_are_spread_from_the_first_to_the_last() -> None:
    rows = sample.spread(4096, 64)
    assert len(rows) == 64 and rows[0] <= 32 and rows[-1] >= 4063 and len(set(np.diff(rows))) > 8
    assert np.array_equal(sample.spread(10, 64), np.arange(10))
