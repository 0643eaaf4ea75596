"""The campaign of contracts that are read, in small."""

import pytest

from campaigns import contracts
from campaigns.styles import CORRECT
from workbench import Case, run
from workbench.readings.contract.measured import measured_contract


def test_a_style_is_read_and_judged_with_and_without() -> None:
    results = contracts.measure(per_style=1, names=("sums_cast_probs",))
    (row,) = results["cases"]
    assert row["status"]["row_sum_of_cast"] == "right" and not row["wrong"]
    assert row["measured"] in ("exact", "rounding")
    read, verdicts, cost = contracts.tables(results)[:3]
    assert read[-1]["field"] == "all" and read[-1]["wrong"] == 0 and read[-1]["% right"] >= 80
    assert [one["contract"] for one in verdicts] == ["undeclared", "measured"] and cost[0]["most calls"] <= 400


def test_what_makes_no_difference_is_not_readable() -> None:
    truth = {"probs_dtype": "float32", "exp_ulps": 4.0, "exp_floor": None, "normalisation": "division", "block_k": 512}
    case = Case(seqlen=64)
    names = ("block_k", "row_sum_of_cast", "exp_ulps", "normalisation", "scores_dtype", "input_precision")
    assert [contracts.readable(name, truth, case) for name in names] == [False, False, False, False, True, True]
    assert not contracts.readable("scores_dtype", truth, Case(seqlen=8))


def test_every_style_has_a_row() -> None:
    assert {style.name for style in CORRECT} == {*contracts._STYLES} and len(contracts._STYLES) == len(CORRECT)


@pytest.mark.parametrize("target", ["flash", "split_k"])
def test_kernels_of_ours_are_read_as_they_declare(target: str) -> None:
    trace = run(target, Case(seqlen=72, head_dim=32, dtype="float16", block_k=16, heads=2))
    found = measured_contract(trace)
    assert {name: getattr(trace.contract, name) for name in found.fields} == found.fields
    assert {"scores_dtype", "probs_dtype", "accumulator_dtype", "accumulation", "out_rounding"} <= found.fields.keys()
