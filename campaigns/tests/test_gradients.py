"""A small form of the campaign on gradients of torch's own attention."""

import pytest

from campaigns.gradients import TAKES, measure, tables

pytest.importorskip("torch", reason="PyTorch is not installed")


def test_gradients_of_torch_are_never_called_wrong() -> None:
    results = measure(runs=9, seed=5)
    assert {*results["backends"]} == {*TAKES}
    for row in results["backends"].values():
        assert row["runs"] == sum(row["verdicts"].values()) == 3 and not row["not_right"]
    [rows] = tables(results)
    assert [row["backend"] for row in rows] == [*TAKES] and all(0 <= row["assert_close rejects"] <= 3 for row in rows)
