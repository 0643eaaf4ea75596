"""Small forms of the campaigns of causes: one fault, one pair, and names that are wrong."""

import json

import numpy as np
import pytest

from campaigns import left_out, pairs, score
from campaigns.independent import catalogue as independent
from campaigns.showing import showing
from campaigns.styles import style
from workbench import diff, run
from workbench.cuda.faults.catalogue import CATALOGUE
from workbench.judge.explain.cause import Cause
from workbench.judge.explain.library import family

FAULT = "flash-scale-twice"


@pytest.fixture(scope="module")
def results():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(score, "BENIGN", {"splits-even": score.BENIGN["splits-even"]})
        patch.setattr(score, "KNOWN", {name: score.KNOWN[name] for name in ("full", "out and lse")})
        return score.measure(1, faults=[FAULT])


def test_a_fault_is_named_right_whatever_is_known(results):
    (row,) = results["faults"]
    assert row["fault"] == FAULT and {*row["known"]} == {"full", "out and lse"}
    for counts in row["known"].values():
        got = {name: counts[name] for name in score.COUNTS}
        assert got == dict.fromkeys(score.COUNTS, 1) | {"wrong": 0, "unknown": 0} and counts["names"] == []


def test_of_a_kernel_its_own_faults_are_run_with_what_is_known(monkeypatch):
    asked = []

    def rows(function, items, jobs):
        asked.append((list(items), function.keywords["known"]))
        return iter([{"known": {}}] * len(items))

    monkeypatch.setattr(score, "spread", rows)
    score.measure(1, kernels=["flash_tensor"], known=["full"])
    (faults, known), (right, also) = asked
    assert {CATALOGUE[one].kernel for one in faults} == {"flash_tensor"} and known == also == ["full"]
    assert right == ["flash_tensor"]


def test_right_kernels_have_no_cause(results):
    assert {row["of"] for row in results["right"]} == {"splits-even", "flash", "split_k", "fp8"}
    assert all(row["runs"] == 2 and row["explained"] == 0 for row in results["right"])


def test_the_documents_are_json_and_their_tables_have_equal_columns(results):
    assert json.loads(json.dumps(results)) == results
    for rows in score.tables(results):
        assert len({tuple(row) for row in rows}) == 1


def test_a_name_is_right_where_it_holds_on_fresh_cases_alone():
    fault, random = CATALOGUE[FAULT], np.random.default_rng(0)
    first, *fresh = (run(fault.kernel, showing(fault, random), faults=[FAULT], backend="emulator") for _ in range(3))
    (cause,) = diff(first).explain().causes
    other = next(one for one in family("scale") if one.id == "scale.one")
    assert score.is_right(cause, fresh)
    assert not score.is_right(Cause((other,), cause.fit), fresh)


def test_a_pair_is_right_where_all_that_is_wrong_is_named(monkeypatch):
    monkeypatch.setattr(pairs, "KNOWN", ("full",))
    row = pairs.pair_row((FAULT, "flash-row-sum-of-last-tile", 0))
    assert row["full"]["shows"] and row["full"]["right"] and len(row["full"]["causes"]) == 2
    results = {"pairs": [row, {"pair": ["a", "b"], "seed": 1}]}
    total, *_ = pairs.tables(results)
    assert total[0] == {"known": "full", "pairs": 1, "both show": 1, "both named": 1}


def test_what_another_fault_hides_does_not_show():
    row = pairs.pair_row(("partial-acc-uninitialised", "partial-O-normalised", 122))
    assert not row["out and lse"]["shows"]


def test_pairs_are_of_one_kernel_and_two_stages():
    drawn = {pairs._drawn_pair(np.random.default_rng(seed)) for seed in range(20)}
    for one, other in drawn:
        assert CATALOGUE[one].kernel == CATALOGUE[other].kernel
        assert not {*CATALOGUE[one].stages} & {*CATALOGUE[other].stages}


def test_a_fault_without_its_family_is_unknown_or_named_right():
    results = left_out.measure(1, faults=[FAULT])
    assert results["all"]["runs"] == 1 and results["all"]["wrong"] == 0
    assert results["all"]["unknown"] + results["all"]["right"] == 1
    assert left_out.tables(results) == [[results["all"]]]


@pytest.mark.parametrize("name", ["whole-vectors-of-the-head", "scale-of-the-head"])
def test_cases_that_show_an_independent_fault_are_found(name):
    shows = independent.FAULTS[name].shows
    cases = score._other_cases(shows, 2, 0)
    assert len(cases) == 2 and all(shows({**case.as_dict()}) for case in cases)


def test_cases_that_do_not_exist_are_not_looked_for_for_ever(monkeypatch):
    monkeypatch.setattr(style, "DRAWS", 50)
    with pytest.raises(ValueError, match="^0 of 50 drawn cases fit, and 3 are wanted; seed 1$"):
        style.drawn(("float32",), lambda options: False, 3, 1)
