"""An assumption that makes a budget a hundred times wider is said in a line."""

from typing import Any

import numpy as np
import pytest

from tests.stored import stored
from workbench import Case, diff, run
from workbench.judge.widened import FAR
from workbench.report.numbers import ratio
from workbench.report.words import findings

CASE = Case(seqlen_q=16, seqlen_k=48, head_dim=32, dtype="bfloat16")


def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    dtype = q.dtype
    q, k, v = (x.astype(np.float32) for x in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) * np.float32(scale)
    top = scores.max(axis=-1, keepdims=True)
    probs = np.exp(scores - top)
    total = probs.sum(axis=-1, keepdims=True)
    out = probs.astype(dtype).astype(np.float32) @ v / total
    return {"out": out.astype(dtype), "lse": (top + np.log(total))[..., 0]}


def test_scores_that_may_be_rounded_widen_lse() -> None:
    """By 2^-9 of a score, where it is otherwise off by some 2^-20."""
    judged = diff(run(attention, CASE))
    (lse,) = (one for one in judged.widened if one.stage == "lse")
    assert lse.times >= FAR and str(lse.choice) == "scores_dtype=bfloat16"
    (line,) = (line for line in findings(judged) if "so the budget of lse is " in line)
    assert line.startswith("scores_dtype=bfloat16 is undeclared, so the budget of lse is ")
    assert line.endswith(f" {ratio(lse.times)}x that of default arithmetic")


@pytest.mark.parametrize("said", [{"scores_dtype": "float32", "row_sum_of_cast": False}, "triton,base2=false"])
def test_what_is_declared_widens_nothing(said: Any) -> None:
    assert [one for one in diff(run(attention, CASE, contract=said)).widened if one.stage == "lse"] == []


def test_of_our_own_kernels_nothing_is_widened() -> None:
    judged = diff(stored("flash", Case(seqlen=48, head_dim=32, block_q=16, block_k=16)))
    assert judged.widened == []
