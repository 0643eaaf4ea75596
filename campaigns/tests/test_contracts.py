"""The campaign of contracts that are read, in small."""

from campaigns import contracts
from campaigns.styles import CORRECT
from workbench import Case


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
