"""A small form of the campaign: calls of right models are judged, none called wrong; what is called wrong is told."""

import json

import pytest

from campaigns import clients
from campaigns.clients import holds, measure, tables
from workbench.refusal import Unavailable


def test_without_transformers_it_says_what_to_install(monkeypatch):
    pytest.importorskip("torch", reason="its attention is what is watched")
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(Unavailable, match=r"transformers is not installed: pip install -e '.\[clients\]'"):
        measure()


def test_it_holds_where_all_are_judged_and_few_suspicious():
    row = {"calls": 100, "judged": 100, "wrong": 0, "suspicious": 2}
    assert holds({"rows": [row]}) and not holds({"rows": []})
    for other in ({"judged": 99}, {"wrong": 1}, {"suspicious": 3}, {"calls": 0, "judged": 0}):
        assert not holds({"rows": [row | other]})


@pytest.mark.campaign
@pytest.mark.filterwarnings("ignore")  # of the libraries
def test_right_models_are_judged(monkeypatch):
    pytest.importorskip("transformers", reason="an extra, clients")
    monkeypatch.setattr(clients, "DTYPES", ("bfloat16",))
    results = measure()
    assert holds(results) and len(results["rows"]) > 20, results
    assert json.loads(json.dumps(results)) == results
    assert all(len({tuple(row) for row in rows}) == 1 for rows in tables(results))
