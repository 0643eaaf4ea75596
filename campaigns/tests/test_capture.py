"""A small form of the campaign: of right calls a capture keeps none, of calls that are a little wrong it keeps one."""

import json

import pytest

from campaigns.capture import measure, tables

torch = pytest.importorskip("torch", reason="its attention is what is watched")


def test_of_right_calls_none_is_kept():
    results = measure(calls=150)
    last = results["rows"][-1]
    assert (last["calls"], last["judged"] + sum(results["unread"].values()), last["kept"]) == (150, 150, 0)
    assert last["judged"] >= 140 and 0 < last["x of budget"] <= 1 and results["kept"] == []
    assert json.loads(json.dumps(results)) == results
    assert all(len({tuple(row) for row in rows}) == 1 for rows in tables(results))


def test_a_wrong_call_is_kept(monkeypatch):
    right = torch.nn.functional.scaled_dot_product_attention

    def wrong(query, key, value, attn_mask=None, **how):
        return right(query, key, value, attn_mask, **how) * 1.05

    wrong.__wrapped__ = right
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", wrong)
    results = measure(calls=20)
    assert results["rows"][-1]["kept"] > 10 and "bug" in results["kept"][0]
