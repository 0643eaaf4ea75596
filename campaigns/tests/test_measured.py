"""The campaign that measures functions, on two of them: its document, and that both are read rightly."""

import json

import pytest

from campaigns.measured import KNOWN, measure, tables

NAMES = ("k_row_stride", "k_offset_16_bits")


@pytest.fixture(scope="module")
def results() -> dict:
    return measure(names=NAMES)


def test_the_document_is_json_and_its_tables_have_equal_columns(results) -> None:
    assert json.loads(json.dumps(results)) == results and len(results["functions"]) == 2 * 2 * len(NAMES)
    for rows in tables(results):
        assert len({tuple(row) for row in rows}) == 1


def test_what_was_found_predicts_runs_that_nobody_saw(results) -> None:
    wrong = [one for one in results["functions"] if one["wrong"]]
    assert [one["so"] for one in wrong] == [True] * len(KNOWN) * len(NAMES)
    assert all(not one["findings"] for one in results["functions"] if not one["wrong"])


def test_seconds_of_explain_are_of_wrong_functions_alone() -> None:
    found = measure(names=NAMES, explain=True)
    assert json.loads(json.dumps(found)) == found
    assert [one["function"] for one in found["explained"]] == [*NAMES]
    totals, *left = tables(found)
    assert [row["count"] for row in totals] == [len(NAMES), 0] and not left
    assert totals[0]["95 % s"] >= totals[0]["median s"] > 0 == totals[1]["95 % s"]
