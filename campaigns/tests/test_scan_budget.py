"""Budgets of the gated delta rule beside the errors of right runs: in order, and none beyond."""

import pytest

from campaigns import scan_budget


def test_who_says_how_it_computes_has_sharper_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_budget, "TOKENS", (48,))
    by_token, by_chunk, unsaid = scan_budget.measure()
    assert [row["kernel"] for row in (by_token, by_chunk, unsaid)] == [*scan_budget.KERNELS]
    assert 1 < by_token["statistical"] < by_token["of_states"] < by_token["worst"] < by_chunk["worst"]
    assert by_chunk["worst"] < 1.5 * unsaid["worst"] and all(
        0 < row["largest"] < 0.2 for row in (by_token, by_chunk, unsaid)
    )
