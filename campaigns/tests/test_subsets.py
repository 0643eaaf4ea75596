"""A small form of the campaign: a wrong out or lse is a bug whatever was dumped beside it."""

import json

import pytest

from campaigns import subsets as bench_subsets
from campaigns.subsets import measure, tables


@pytest.fixture(scope="module")
def results():
    with pytest.MonkeyPatch.context() as patch:
        chosen = ("reduce-double-counts-sum", "partial-acc-uninitialised", "flash-causal-off-by-one")
        patch.setattr(bench_subsets, "FAULTS", chosen)
        return measure(all_up_to=1, random=12)


def test_no_subset_of_stages_hides_a_fault(results):
    assert len(results["faults"]) == 3 and all(row["judged"] > 15 for row in results["faults"])
    for row in results["faults"]:
        assert row["green"] == [] and row["bug"] == row["judged"], row


def test_the_document_is_json_and_its_table_has_equal_columns(results):
    assert json.loads(json.dumps(results)) == results
    (rows,) = tables(results)
    assert len({tuple(row) for row in rows}) == 1 and rows[-1]["fault"] == "all"
