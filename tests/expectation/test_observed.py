"""What follows from a trace is worked out once, and is what the trace says."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.stored import stored
from workbench import Case, diff
from workbench.case.contract import of_foreign
from workbench.case.stages import STAGES
from workbench.expectation.observed import Observed
from workbench.reference import attention

SMALL = Case(batch=1, heads=2, kv_heads=1, seqlen=40, head_dim=16, block_q=16, block_k=16)


@pytest.mark.parametrize(
    ("kernel", "faults", "asked"),
    [
        ("flash", [], ["flash"]),
        ("split_k", [], ["split_k"]),
        ("flash", ["flash-no-correction"], ["flash"]),
        ("fp8", [], ["fp8", "flash"]),  # what it decodes and the attention on that are two tables
    ],
)
def test_the_table_of_stages_is_made_once_for_a_judgement(
    kernel: str, faults: Sequence[str], asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = stored(kernel, SMALL, faults=faults)
    made: list[str] = []
    table_of = attention.table_of

    def counted(algorithm: str, **options: Any) -> Any:
        made.append(algorithm)
        return table_of(algorithm, **options)

    monkeypatch.setattr(attention, "table_of", counted)
    judged = diff(replace(trace, rerun=None))
    assert judged.verdict == ("bug" if faults else "rounding")
    assert made == asked


def test_what_cannot_be_judged_is_not_read() -> None:
    """A kernel that tells neither its tiles nor its splits: all that depends on them, but what its merge reads."""
    run = Observed(stored("split_k", SMALL.but(splits=2)))
    assert run.unjudgeable == {} and [*run.readable] == [*run.dumped] and run.splits == 2
    untold = run.under(of_foreign({"splits": None, "block_k": None}, run.case))
    assert {name for name in untold.unjudgeable if STAGES[name].by_tile} == {x for x in STAGES if STAGES[x].by_tile}
    assert {*untold.unjudgeable} - {x for x in STAGES if STAGES[x].by_tile} == {
        x for x in STAGES if STAGES[x].group == "splits"
    }
    assert {*untold.readable} & {*untold.unjudgeable} == {x for x in STAGES if STAGES[x].group == "splits"}
    assert untold.splits == 2, "as many as its partial results have"


def test_a_run_under_its_own_contract_is_itself() -> None:
    run = Observed(stored("flash", SMALL))
    assert run.under(run.contract) is run and run.dequantised is run and run.right_attention is run
    other = run.under(replace(run.contract, base2=True))
    assert other is not run and other.unit("row_max") != 1 == other.unit("row_sum")


def test_the_attention_of_codes_is_observed_once() -> None:
    run = Observed(stored("fp8", SMALL))
    assert run.dequantised is run.dequantised is not run.right_attention
    assert run.dequantised.before_attention == () and run.dequantised.dequantised is run.dequantised
    assert run.before_attention[-1] == "dequant_v" and "scores" in run.dequantised.known


def test_only_some_stages() -> None:
    run = Observed(stored("flash", SMALL)).only(["out"])
    assert [*run.dumped] == ["out"] and run.trace.requested == ()
