"""A small form of the campaign: the fault is in the set, rounding and random numbers have none."""

import json

import pytest

from campaigns import symptoms as bench_symptoms
from campaigns.symptoms import CORRECT, RANDOM, measure, tables
from workbench.judge.explain import symptom_search
from workbench.judge.explain.likely import likely

FAULT = "flash-scale-missing"


@pytest.fixture(scope="module")
def results():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench_symptoms, "FAULTS", (FAULT,))
        few = tuple(one for one in likely() if one.family == "scale")
        patch.setattr(symptom_search, "likely", lambda: few)
        return measure(told=("inputs known",))


def test_the_true_cause_comes_first_and_nothing_where_there_is_none(results):
    rows = {row["fault"]: row for row in results["tables"]}
    assert [*rows] == [FAULT, CORRECT, RANDOM]
    assert (rows[FAULT]["verdict"], rows[FAULT]["place"]) == ("plausible causes", 1)
    assert (rows[CORRECT]["verdict"], rows[CORRECT]["causes"]) == ("nothing to explain", 0)
    assert (rows[RANDOM]["verdict"], rows[RANDOM]["causes"]) == ("no likely fault explains it", 0)


def test_the_document_is_json_and_its_tables_have_equal_columns(results):
    assert json.loads(json.dumps(results)) == results
    for rows in tables(results):
        assert len({tuple(row) for row in rows}) == 1


def test_twenty_faults_are_measured():
    assert len({*bench_symptoms.FAULTS}) == 20
