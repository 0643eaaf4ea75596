"""A small form of the campaign: no correct run is called wrong, and faults that change out or lse are found."""

import json

import pytest

from workbench import Case, diff, run
from workbench.bench_verdicts import RULES, lean, measure, measure_foreign, tables
from workbench.catalogue import CATALOGUE


@pytest.fixture(scope="module")
def results():
    return measure(correct=200, per_fault=1)


def test_correct_kernels_are_never_called_wrong(results):
    correct = results["correct"]
    assert correct["wrong"] == [] and correct["runs"] == 200 == sum(correct["verdicts"].values())
    assert set(correct["verdicts"]) == {"exact", "rounding"}
    assert correct["rules"]["assert_close"] > 0, "the usual rule fails correct kernels"


def test_faults_are_bugs_at_their_stage_with_a_full_and_a_lean_dump(results):
    assert [row["fault"] for row in results["faults"]] == [
        fault.id for fault in CATALOGUE.values() if fault.stages and fault.kernel in ("flash", "split_k")
    ]
    sums = results["all_faults"]
    assert sums["effective"] >= 0.9 * sums["runs"] >= 18
    for dump in ("full", "lean"):
        assert sums[dump]["bug"] >= 0.95 * sums["effective"]
        assert sums[dump]["origin"] == sums[dump]["bug"], "a flagged run names the faulty stage first"
    assert sums["rules"]["atol 1e-2"] < sums["full"]["bug"]


def test_the_document_is_json_and_its_tables_have_equal_columns(results):
    assert json.loads(json.dumps(results)) == results
    for rows in tables(results):
        assert len({tuple(row) for row in rows}) == 1
    assert tables(results)[1][-1]["fault"] == "all"


def test_a_lean_trace_is_what_lean_probes_give():
    case = Case(seqlen=20, head_dim=8, block_q=16, block_k=16)
    cut, run_lean = lean(run("flash", case, backend="emulator")), run("flash", case, probes="lean", backend="emulator")
    assert cut.requested == run_lean.requested and list(cut.stages) == list(run_lean.stages)
    assert diff(cut).verdict == diff(run_lean).verdict == "rounding"


def test_attention_of_pytorch_is_never_called_wrong():
    pytest.importorskip("torch", reason="PyTorch is not installed")
    rows = measure_foreign(lengths=[(33, 65)])["foreign"]
    assert set(rows) == {"math", "flash"}
    for row in rows.values():
        assert row["runs"] == 30 and row["wrong"] == [] and set(row["rules"]) == set(RULES)
