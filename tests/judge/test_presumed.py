"""A verdict that hangs on a field which a preset alone says names that field first."""

from typing import Any

import numpy as np
import pytest

from tests.numpy_kernels import Style, exp2, kernel
from workbench import Case, Diff, diff, run
from workbench.floats import round_to
from workbench.report.words import findings

CASE = Case(seqlen=96, head_dim=32, dtype="float16", causal=True)
ONLY = " only because the preset says "


def judged(function: Any, contract: str | None, case: Case = CASE) -> Diff:
    return diff(run(function, case, contract=contract))


def lines(found: Diff) -> list[str]:
    return findings(found, details=False, causes=False)


def as_fast_exp(x: np.ndarray) -> np.ndarray:
    """exp2 whose relative error grows with its argument, 6 u for each unit, as that of `__expf` does."""
    length = np.where(np.isfinite(x), abs(x) * np.log(2), 0)
    return (exp2(x) * (1 + 2.0**-24 * 6 * length)).astype(np.float32)


def eager(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> dict[str, Any]:
    """Each operation rounded to float16."""
    products = round_to(q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2), "float16")
    scores = round_to(products.astype(np.float64) * scale, "float16").astype(np.float32)
    scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    probs = np.exp(scores - scores.max(-1, keepdims=True))
    total = probs.sum(-1, keepdims=True)
    out = round_to(probs / total, "float16").astype(np.float32) @ v.astype(np.float32)
    return {"out": out.astype(np.float16), "lse": scores.max(-1) + np.log(total[..., 0])}


FAST = kernel(Style(exp2=as_fast_exp), {"block_k": 16}, ("scores", "row_max", "probs", "out", "lse"))
CAST = kernel(
    Style(row_sum_of_cast=True, probs_dtype="float16"), {"block_k": 16}, ("scores", "row_max", "probs", "row_sum")
)
SCALED_Q = kernel(Style(scale_q="float16"), {}, ("out", "lse"))


@pytest.mark.campaign(but=3)
@pytest.mark.parametrize(
    ("function", "contract", "stage", "said"),
    [
        (FAST, "triton", "probs", "exp_ulps_per_x=0.0"),
        (CAST, "triton", "row_sum", "row_sum_of_cast=false"),
        (eager, "triton", "lse", "scores_dtype=float32"),
        (FAST, "flash-attention-2", "probs", "exp_ulps_per_x=0.0"),
        (CAST, "torch-eager", "row_sum", "row_sum_of_cast=false"),
        (eager, "flash-attention-2", "lse", "scores_dtype=float32"),
    ],
)
def test_what_loses_more_than_its_preset_fails_by_the_field_that_is_named_first(
    function: Any, contract: str, stage: str, said: str
) -> None:
    found = judged(function, contract, CASE.but(input_std=2.0) if function is FAST else CASE)
    first = [x for x in lines(found)[: len({one.said for one in found.presumed})] if ONLY in x]
    (line,) = (x for x in first if stage in x.split(ONLY)[0])
    assert stage in found.origins and f"fail{'s' * (' and ' not in line.split(ONLY)[0])}{ONLY}" in line
    assert said in line.split(": with ")[0] and stage in line.split(ONLY)[0]
    # which says all that another contract would make right
    assert function is not CAST or not any("if your kernel really has " in x for x in findings(found))


def test_what_passes_by_its_preset_alone_names_the_field_too() -> None:
    assert judged(eager, None).verdict != "rounding"
    found = judged(eager, "torch-eager")
    assert found.verdict == "rounding" and lines(found)[0] == (
        "out and lse pass only because the preset says scores_dtype=float16: with scores_dtype=float32 they would fail"
    )
    declared = judged(eager, "torch-eager,scores_dtype=float16")
    assert declared.verdict == "rounding" and not any(ONLY in x for x in lines(declared))


@pytest.mark.campaign(but=4)
@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize("contract", ["triton", "flash-attention-2", "torch-eager", "torch-sdpa", None, "block_k=16"])
def test_what_does_not_hang_on_a_preset_names_none(contract: str | None, wrong: bool) -> None:
    """Right in any case, or wrong by more than the weakest kernel."""
    made = kernel(Style(), {}, ("scores", "out", "lse"))

    def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> dict[str, Any]:
        found = made(q, k, v, scale=scale, causal=causal)
        return found | {"out": found["out"] * np.float16(1 + wrong)}

    found = judged(attention, contract)
    assert found.origins == ("out",) * wrong and found.presumed == []


def test_units_that_dumps_show_are_no_field_that_a_verdict_hangs_on() -> None:
    in_base_2 = kernel(Style(units="log2"), {}, ("scores", "out", "lse"))
    assert judged(in_base_2, "triton").presumed == judged(in_base_2, "torch-sdpa").presumed == []
