"""Which source a budget owes most to, where it is known by hand."""

from dataclasses import replace

import pytest

from tests.stored import stored
from workbench import Case, Trace, diff
from workbench.expectation.observed import Observed
from workbench.judge.explain.budget_shares import terms

CASE = Case(
    seqlen=96, heads=2, head_dim=32, block_q=32, block_k=16, causal=True, dtype="bfloat16", probs_dtype="bfloat16"
)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return stored("flash", CASE)


@pytest.mark.campaign
def test_shares_add_up_and_come_in_order(trace: Trace) -> None:
    for stage in diff(trace):
        shares = list(terms(Observed(trace), stage).values())
        assert shares == sorted(shares, reverse=True) and sum(shares) == pytest.approx(1), stage.name


@pytest.mark.parametrize(
    ("stage", "source"),
    [
        ("qk", "the additions"),
        ("scores", "the rounding of products"),
        ("row_max", "half an ulp of float32"),
        ("probs_cast", "half an ulp of bfloat16"),
        ("row_sum", "the additions"),
        ("lse", "log"),
    ],
)
def test_sources_of_stages_that_have_one(trace: Trace, stage: str, source: str) -> None:
    judged = diff(trace)[stage]
    assert judged.isolated is not None
    found = terms(Observed(trace), judged)
    expected = source if stage != "probs_cast" else f"half an ulp of {trace.stages[stage].dtype}"
    assert expected in found and (stage == "lse" or found[expected] > 0.9)


def test_an_undeclared_cast_of_probs_is_what_an_output_alone_owes_most_to(trace: Trace) -> None:
    unknown = replace(trace.contract, assumed=("probs_dtype",), out_dtype="float32")
    alone = replace(trace, stages={"out": trace.stages["out"]}, requested=(), contract=unknown)
    source, share = next(iter(terms(Observed(alone), diff(alone)["out"]).items()))
    assert source == "the cast of probs to bfloat16" and share > 0.5


@pytest.mark.parametrize("decode", ["table", "direct"])
def test_before_attention_it_is_what_stores_a_stage_or_its_decoding_in_float32(decode: str) -> None:
    trace = stored("fp8", Case(seqlen=40, heads=2, head_dim=32, decode=decode))
    judged = diff(trace)
    found = {
        name: terms(Observed(trace), judged[name])
        for name in trace.requested
        if "_" in name and name[-2:] in ("_k", "_q")
    }
    assert found["scale_k"] == {"half an ulp of float32": 1.0} and found["codes_k"] == {}
    # roundings before the cast count where they reach a tie, and the worst element lies at none
    assert found["dequant_q"] == found["dequant_k"] == {"half an ulp of float16": 1.0}
    if decode == "table":
        assert found["lut_k"] == {"the decoding in float32": 1.0}
