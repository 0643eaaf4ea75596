"""On inputs that leave nothing to round any difference is a bug, and right kernels have none."""

import numpy as np
import pytest

from tests.stored import stored
from workbench import Case, diff, run
from workbench.case.distributions import EXACT

CASE = Case(heads=4, kv_heads=2, seqlen=70, head_dim=16, block_q=16, block_k=16, causal=True)


def attention(q, k, v, *, scale, causal):
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    scores = np.float32(scale) * (q.astype(np.float32) @ np.swapaxes(k, -1, -2).astype(np.float32))
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, np.float32(-np.inf))
    row_max = scores.max(-1, keepdims=True)
    weights = np.exp(scores - row_max)
    row_sum = weights.sum(-1, keepdims=True)
    out = (weights @ v.astype(np.float32) / row_sum).astype(q.dtype)
    return {"out": out, "lse": (row_max + np.log(row_sum))[..., 0]}


@pytest.mark.parametrize("distribution", EXACT)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_right_kernel_is_exact(distribution, dtype):
    judged = diff(run(attention, CASE.but(distribution=distribution, dtype=dtype, block_q=None, block_k=None)))
    assert judged["out"].verdict == "exact"
    assert judged.verdict in ("exact", "rounding")


@pytest.mark.parametrize(("kernel", "options"), [("flash", {}), ("split_k", {"splits": 3})])
@pytest.mark.parametrize("distribution", EXACT)
def test_kernels_of_ours_are_exact(kernel, options, distribution):
    judged = diff(stored(kernel, CASE.but(distribution=distribution, **options)))
    assert judged["out"].verdict == "exact" and judged.verdict in ("exact", "rounding")


@pytest.mark.parametrize("distribution", EXACT)
def test_codes_in_float8_are_exact(distribution):
    case = CASE.but(distribution=distribution, codes="e4m3", head_dim=32, block_q=32, block_k=32)
    judged = diff(stored("fp8", case, probes="output"))
    assert judged["out"].verdict == "exact" and judged.verdict in ("exact", "rounding")


def test_what_the_budget_allows_is_a_bug_on_exact_inputs():
    """Probs that are cut off in float16: a kernel of unknown contract may do that."""

    def cut_off(q, k, v, **options):
        found = attention(q, k, v, **options)
        return found | {"out": (found["out"].astype(np.float32) * np.float32(1 - 2.0**-11)).astype(q.dtype)}

    case = CASE.but(dtype="float16", block_q=None, block_k=None)
    assert diff(run(cut_off, case)).verdict in ("rounding", "suspicious", "biased")
    judged = diff(run(cut_off, case.but(distribution="exact")))
    assert (judged.verdict, judged.origin) == ("bug", "out")
    assert judged["out"].reason.endswith(
        " elements of out are not exact, but with distribution exact a correct kernel rounds nothing. If yours subtracts more "
        "than the maximum, declare row_max=upper_bound"
    )


def test_the_first_stage_that_is_not_exact_is_blamed():
    def wrong(q, k, v, **options):
        found = attention(q, k, v, **options)
        scores = np.einsum("bhqd,bhkd->bhqk", q, np.repeat(k, 2, axis=1)) * np.float32(options["scale"])
        scores = np.where(np.tri(70, dtype=bool), scores, -np.inf).astype(np.float32)
        row_max = scores.max(-1, keepdims=True)
        probs = np.exp(scores - row_max) * np.float32(1 + 2.0**-22)
        return {"scores": scores, "probs": probs, "out": found["out"] * np.float32(1 + 2.0**-22)}

    judged = diff(run(wrong, CASE.but(distribution="exact", block_q=None, block_k=None), contract={"block_k": 70}))
    assert judged.origin == "probs"


def test_what_a_contract_says_of_exp_and_maxima_is_left_to_the_budgets():
    def shifted(q, k, v, **options):
        found = attention(q, k, v, **options)
        return {"out": found["out"] * np.float32(1 + 2.0**-23), "contract": {"row_max": "any"}}

    case = CASE.but(distribution="exact", block_q=None, block_k=None)
    assert diff(run(shifted, case)).verdict != "bug"


def test_nan_is_a_bug():
    def wrong(q, k, v, **options):
        return {"out": np.full_like(q, np.nan)}

    assert diff(run(wrong, CASE.but(distribution="exact", block_q=None, block_k=None))).verdict == "bug"
