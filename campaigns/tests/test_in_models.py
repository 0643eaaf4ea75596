"""Wrong functions in tiny models, and pairs of runs, as the campaign holds them against their truths."""

import pytest

pytest.importorskip("transformers")

from campaigns.in_models import score  # noqa: E402


def test_a_bug_is_called_one_at_its_place_with_its_cause() -> None:
    rows = score.measure(names=("hidden_size_scale",))
    assert score.holds(rows) and len(rows["bugs"]) == 4 and not rows["pairs"] and not rows["accepted"]
    assert {cause for row in rows["bugs"] for cause in row["causes"]} == {"the scale is halved"}
    wrong = {**rows, "bugs": [{**rows["bugs"][0], "at_its_place": False}]}
    assert not score.holds(wrong)


def test_a_pair_is_what_its_truth_says() -> None:
    rows = score.measure(names=("rope_of_another_base", "another_order_of_sums"))
    assert score.holds(rows) and [row["verdict"] for row in rows["pairs"]] == ["rounding", "differs"]


def test_a_right_function_passes() -> None:
    rows = score.measure(names=("llama",))
    assert score.holds(rows) and [row["dtype"] for row in rows["accepted"]] == [*score.DTYPES]
    assert all(row["cases"] > 10 for row in rows["accepted"])
