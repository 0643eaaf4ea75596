"""A small form of the campaign: an assertion with a budget never fails a right kernel, one with a guess does."""

import json

import pytest

from campaigns import assertions
from campaigns.assertions import measure, tables


@pytest.fixture(scope="module")
def results():
    pytest.importorskip("torch", reason="its attention is what is checked")
    return measure(cases=40, exact=12)


def test_no_right_run_fails_and_exact_inputs_are_exact(results):
    assert results["checks"][-1] == {
        "dtype": "all", "backend": "", "runs": 40, "assert_attention": 0,
        "assert_close": results["checks"][-1]["assert_close"],
    }  # fmt: skip
    assert results["failed"] == [] and results["exact"][-1] == {"dtype": "all", "backend": "", "runs": 12, "off": 0}
    assert results["checks"][-1]["assert_close"] > 0, "torch's own defaults fail torch's own attention"
    assert json.loads(json.dumps(results)) == results
    assert all(len({tuple(row) for row in rows}) == 1 for rows in tables(results))


def test_a_wrong_run_is_counted(results, monkeypatch):
    right = assertions.sdpa
    monkeypatch.setattr(assertions, "sdpa", lambda backend: lambda *args, **kw: 1.1 * right(backend)(*args, **kw))
    found = measure(cases=6, exact=4)
    assert found["checks"][-1]["assert_attention"] >= 4 and found["failed"][0].startswith("bug at out of ")
    assert found["exact"][-1]["off"] == 4
