"""Rows without keys: conventions, and what is wrong beside them."""

import math
from typing import Any

import numpy as np
import pytest

from workbench import Case, Diff, diff, run
from workbench.expectation.elements import State

#: rows 0 to 3 see no key
CASE = Case(heads=2, seqlen_q=20, seqlen_k=16, head_dim=8, causal=True)
EMPTY = 4


def made(empty: Any, element: float = 0.0) -> Any:
    """Right attention, but for what rows without keys hold, and an element that is off."""

    def attend(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        scores = np.where(CASE.mask(), q @ k.swapaxes(-1, -2) * scale, -np.inf)
        scores[:, :, :EMPTY] = 0.0
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        out = (weights / weights.sum(-1, keepdims=True) @ v).astype(np.float32)
        if not isinstance(empty, str):
            out[:, :, :EMPTY] = empty
        out[0, 1, 9, 2] += element
        return out

    return attend


def judged(empty: Any, contract: str | None, element: float = 0.0) -> Diff:
    return diff(run(made(empty, element), CASE, contract=contract))


@pytest.mark.parametrize("empty", [0.0, math.nan, "mean"])
def test_libraries_make_0_nan_or_a_mean(empty: Any) -> None:
    assert judged(empty, "empty_out=libraries").verdict == "rounding"
    assert judged(empty, "torch-sdpa").verdict == "rounding"
    assert (judged(empty, None).verdict == "rounding") == (empty == 0.0)


@pytest.mark.parametrize("empty", [7.0, math.inf])
def test_what_is_no_mean_of_v_is_wrong(empty: float) -> None:
    found = judged(empty, "empty_out=libraries")
    assert found.verdict == "bug" and found["out"].judged.summary.count(State.EMPTY) == 2 * EMPTY * 8
    assert found["out"].judged.outside.sum() == 2 * EMPTY * 8 and found["out"].worst(1)[0].index["q"] < EMPTY
    assert {one.index["q"] < EMPTY for one in found["out"].worst(3)} == {True}


@pytest.mark.parametrize("empty", [7.0, math.nan])
def test_rows_without_keys_are_not_the_worst_where_another_is_wrong(empty: float) -> None:
    found = judged(empty, None, element=0.5)
    stage = found["out"]
    assert stage.judged.summary.outside == 2 * EMPTY * 8 + 1 and stage.judged.outside.sum() == 1
    assert stage.worst(1)[0].index == {"b": 0, "h": 1, "q": 9, "d": 2}
    assert found.explanation("out").wrong_without_keys == 2 * EMPTY * 8


def test_numbers_that_hide_allow_what_they_make_and_no_more() -> None:
    """The same of a bias: what was added is known, so that other weights are wrong where it drowns all scores."""
    bias = np.where(CASE.mask(), 0.0, np.finfo(np.float32).min).astype(np.float32)
    inputs = {**dict(zip("qkv", CASE.inputs(), strict=True)), "bias": bias}
    first = inputs["v"][:, :, :1]
    for empty, verdict in ((0.0, "rounding"), (math.nan, "rounding"), ("mean", "rounding"), (first, "bug")):
        attend = made(empty)
        added = lambda q, k, v, *, bias, scale, causal, attend=attend: attend(q, k, v, scale=scale, causal=causal)  # noqa: E731
        found = diff(run(added, CASE.but(causal=False), inputs=inputs))
        assert found.verdict == verdict
        assert "judged as a mask: bias values of -3.403e+38 or below mask 184 (row, key) pairs" in found.trace.notes[-1]
