"""What was dumped speaks: values that a 16-bit dtype does not have were not rounded to it."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from workbench import Case, diff, run

CASE = Case(seqlen_q=32, seqlen_k=40, head_dim=16, dtype="bfloat16", heads=2)


def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool, round_scores: bool, wrong: float) -> Any:
    q, k, v = (x.astype(np.float32) for x in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) * np.float32(scale * wrong)
    if round_scores:
        scores = scores.astype(ml_dtypes.bfloat16).astype(np.float32)
    probs = np.exp(scores - scores.max(axis=-1, keepdims=True))
    out = probs.astype(ml_dtypes.bfloat16).astype(np.float32) @ v / probs.sum(axis=-1, keepdims=True)
    return {"scores": scores, "out": out.astype(ml_dtypes.bfloat16)}


def kernel(round_scores: bool, wrong: float = 1.0) -> Any:
    def called(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        return attention(q, k, v, scale=scale, causal=causal, round_scores=round_scores, wrong=wrong)

    return called


def test_scores_in_float32_disprove_that_they_were_rounded() -> None:
    """A scale off by 0.1 % is less than half an ulp of bfloat16: only the dump tells that it is no rounding."""
    right = diff(run(kernel(round_scores=False), CASE))
    assert right.trace.contract.scores_dtype == "float32" and "scores_dtype" not in right.trace.contract.assumed
    assert right.verdict == "rounding"
    wrong = diff(run(kernel(round_scores=False, wrong=1.001), CASE))
    assert wrong.verdict == "bug" and wrong.origin == "scores"


def test_scores_that_are_rounded_are_no_bug() -> None:
    rounded = diff(run(kernel(round_scores=True), CASE))
    assert rounded.trace.contract.scores_dtype == "bfloat16" and "scores_dtype" in rounded.trace.contract.assumed
    assert rounded.origins == () and rounded["scores"].verdict == "suspicious"
    assert rounded["scores"].reason.startswith("within budget only with scores_dtype=bfloat16")


def test_products_of_rounded_sums_are_no_proof() -> None:
    def eager(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        qk = (q.astype(np.float32) @ k.astype(np.float32).swapaxes(-1, -2)).astype(ml_dtypes.bfloat16)
        return {"scores": qk.astype(np.float32) * np.float32(scale)}

    case = CASE.but(scale=0.3)
    assert "scores_dtype" in run(eager, case).contract.assumed
    assert diff(run(eager, case)).origins == ()


@pytest.mark.parametrize(
    ("dtype", "of_case", "held"),
    [
        ("float16", "float32", "float16"),
        ("float32", "float32", None),
        ("float64", "float32", "float32"),
        ("float32", "bfloat16", "float32"),
        ("float16", "bfloat16", "float16"),
    ],
)
def test_an_out_of_another_dtype_than_the_case_has_a_note(dtype: str, of_case: str, held: str | None) -> None:
    def kernel(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        out = attention(q, k, v, scale=scale, causal=causal, round_scores=False, wrong=1.0)["out"]
        return out.astype(dtype)

    trace = run(kernel, CASE.but(dtype=of_case))
    note = f"out is {dtype} in a {of_case} case: it is judged as {held}"
    assert trace.notes == ((note,) if held else ())
