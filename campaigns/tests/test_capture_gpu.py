"""A small form of the campaign, on the CPU: its logic, and that a backend whose bits depend on the batch is told."""

import json

import pytest

from campaigns import capture_gpu
from campaigns.capture_gpu import measure, tables
from campaigns.rare import measure as measure_rare
from campaigns.rare import needed
from campaigns.rare import tables as tables_of_rare
from workbench import Case

torch = pytest.importorskip("torch", reason="its attention is what is watched")

SMALL = {
    "steps": 4, "layers": 12, "width": 32, "heads": 2, "tokens": 16, "batch": 1, "sizes": (2, 2, 32, 16),
    "cache": 64, "crowd": 4, "device": "cpu",
    "small": Case(heads=2, seqlen=32, head_dim=16, dtype="bfloat16", causal=True),
}  # fmt: skip


def test_its_logic():
    results = measure(**SMALL)
    assert [row["step"] for row in results["overhead"]] == ["inference", "training"]
    assert all(row["calls"] == 2 * 12 * 4 and row["wrong"] == row["not judged"] == 0 for row in results["overhead"])
    assert all(row["ms without"] > 0 and row["ms with"] > 0 for row in results["overhead"])
    assert [row["backend"] for row in results["backends"]] == ["FLASH_ATTENTION", "MATH"]
    cells = {cell for row in results["backends"] for name, cell in row.items() if name != "backend"}
    assert all(row["runs"] == "equal" for row in results["backends"]) and not any("refused" in cell for cell in cells)
    assert json.loads(json.dumps(results)) == results
    assert all(len({tuple(row) for row in rows}) == 1 for rows in tables(results))


def test_bits_that_depend_on_the_batch_are_told(monkeypatch):
    right = torch.nn.functional.scaled_dot_product_attention

    def by_batch(q, *rest, **how):
        return right(q, *rest, **how) * (1 + (q.shape[0] == 1) * 2**-6)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", by_batch)
    found = capture_gpu._backend(torch, "MATH", (2, 2, 32, 16), 64, 4, SMALL["small"], "cpu")
    assert found["runs"] == found["first chunk"] == "equal"
    assert "differ" in found["batch"] and "differ" in found["splits: decoding in a batch"]


def test_a_rare_fault_is_caught_within_the_calls_that_95_percent_need():
    assert (needed(1.0), needed(0.01)) == (2995, 299572)
    results = measure_rare(tries=10, sample=1.0)
    assert results["missed"] == 0 and results["within"] >= 7 and len(results["calls"]) == 10
    assert json.loads(json.dumps(results)) == results and len(tables_of_rare(results)[0]) == 1
