"""A verdict of `workbench accept`, in lines, as a document and as JUnit."""

import json
from xml.etree import ElementTree

import pytest

from campaigns.cheats import CHEATS
from workbench.explore.acceptance.arena import Lying
from workbench.explore.acceptance.run import accept
from workbench.report import acceptance as report


@pytest.fixture(scope="module")
def failed():
    one = next(cheat for cheat in CHEATS if cheat.name == "constant")
    return accept(one.target, dtype="float16", seed=1, only=0)


@pytest.fixture(scope="module")
def unfinished():
    one = next(cheat for cheat in CHEATS if cheat.name == "hard_coded_shape")
    case = {"seqlen_q": 64, "seqlen_k": 64, "dtype": "float16"}  # of which it is right
    return accept(one.target, {"case": case}, seconds=0.01)


def test_a_failure_says_where_and_how_it_is_repeated(failed):
    said = str(failed).splitlines()
    assert said[0].startswith(f"{failed.target}: fail: the first judged case failed")
    assert any("out: bug" in line and "elements over budget" in line for line in said)
    assert any(line.strip().startswith("worst at b=") for line in said)
    command = f"workbench accept {failed.target} --dtype float16 --seed 1 --only 0"
    assert said[-2:] == [f"repeat: {command}", f"why: {command} --explain"]


def test_the_document_is_plain_json(failed, unfinished):
    document = json.loads(json.dumps(failed.as_dict(), allow_nan=False))
    assert (document["schema"], document["verdict"]) == ("workbench.accept/1", "fail")
    failure = document["failure"]
    assert (failure["family"], failure["kind"], failure["origins"], failure["index"]) == ("random", "wrong", ["out"], 0)
    assert failure["case"]["dtype"] == "float16" and failure["over_budget"] > 2
    document = json.loads(json.dumps(unfinished.as_dict(), allow_nan=False))
    assert (document["verdict"], document["failure"]) == ("unfinished", None) and document["lacking"]


def test_junit_has_a_test_for_each_family(failed, unfinished):
    suite = ElementTree.fromstring(report.junit(failed)).find("testsuite")
    (bad,) = [case for case in suite if case.find("failure") is not None]
    assert bad.get("name") == "random" and suite.get("failures") == "1"
    suite = ElementTree.fromstring(report.junit(unfinished)).find("testsuite")
    (bad,) = [case for case in suite if case.find("failure") is not None]
    assert bad.get("name") == "verdict" and len(suite.findall("testcase/skipped")) == len(unfinished.lacking)


def test_a_spec_that_lies_in_no_file_is_repeated_in_python(failed):
    one = next(cheat for cheat in CHEATS if cheat.name == "constant")
    found = accept(one.target, {"case": {"dtype": "float16", "batch": 1}}, seed=1, only=0)
    assert report.repeat(found) == "" and "seed=1, only=0" in str(found)


def raising(q, k, v, *, scale, causal):
    raise ValueError("as many heads of k as of q")


def test_what_raises_is_told_what_a_spec_may_leave_out():
    said = str(accept(raising, seed=2, only=0))
    assert "as many heads of k as of q" in said and "[case] of the spec: `group = 1`" in said
    assert "`group = 1`" not in str(accept(raising, {"case": {"group": 1}}, seed=2, only=0))


def test_a_keyword_that_is_lacking_is_told_with_where_the_spec_asks_for_it():
    said = str(accept(raising, {"case": {"feature": ["alibi"], "kv_heads": 2, "group": 2}}, seed=1, only=0))
    assert "takes no alibi_slopes, which the case has" in said and "`group = 1`" not in said
    assert "  remove it from [case] in the spec, or give the function the keyword\n" in said


def test_one_of_something_is_said_as_one(failed):
    assert ", 1 call)" in str(failed).splitlines()[0]
    assert Lying(shift=1, behind=1, rows=2).words == (
        "each input starts 1 element past an aligned address; 1 element of poison after each row; 2 rows of poison between heads"
    )
