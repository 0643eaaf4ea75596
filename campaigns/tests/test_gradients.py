"""A small form of the campaign on gradients of torch's own attention."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from campaigns import gradients
from campaigns.gradients import BACKENDS, drawn, measure, tables, turn, wrong
from workbench.foreign.adapters import ADAPTERS
from workbench.refusal import Refusal, Unavailable

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


def test_gradients_of_torch_are_never_called_wrong() -> None:
    results = measure(runs=9, seed=5)
    assert {*results["backends"]} == {*BACKENDS["cpu"]} and not wrong(results)
    for row in results["backends"].values():
        assert row["runs"] == sum(row["verdicts"].values()) == 3 and not row["not_right"] and not row["given_up"]
    [rows] = tables(results)
    assert [row["backend"] for row in rows] == [*BACKENDS["cpu"], "all"] and rows[-1]["runs"] == 9
    assert all(0 <= row["assert_close rejects"] <= 3 for row in rows[:-1])


def test_a_wrong_budget_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of sums over blocks and heads in 16 bits where the contract says nothing."""
    told = ADAPTERS["torch:scaled_dot_product_attention"].gradients["cpu"]
    monkeypatch.delitem(told, "accumulation_dtype")  # type: ignore[arg-type]
    results = measure(runs=60, seed=0)
    assert wrong(results) and results["backends"]["sdpa flash"]["not_right"]
    _, missed = tables(results)
    assert {row["backend"] for row in missed} == {"sdpa flash"}
    assert all("right with accumulation_dtype=inputs" in row["not right"] for row in missed)


def test_what_a_backend_refuses_is_drawn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Any] = []

    def diff(*given: Any, **case: Any) -> Any:
        tried.append(case)
        if len(tried) <= 3 or case["numbers"]["causal"]:
            raise Refusal("no kernel\nfor this")
        return known(*given, **case)

    known = gradients.diff_operation
    monkeypatch.setattr(gradients, "diff_operation", diff)
    row = gradients.judged((0, "sdpa math", 0), seed=0, device="cpu")
    assert row["verdict"] in ("exact", "rounding") and {*row["refused"]} == {"for this"} and len(row["refused"]) >= 3
    monkeypatch.setattr(gradients, "TRIES", 2)
    tried.clear()
    row = gradients.judged((0, "sdpa math", 0), seed=0, device="cpu")
    results = {"backends": {"sdpa math": gradients._summed([row])}}
    assert row["verdict"] == "" and results["backends"]["sdpa math"]["given_up"] == 1 and wrong(results)


@pytest.mark.parametrize("device", BACKENDS)
def test_what_is_drawn_is_what_a_backend_takes(device: str) -> None:
    counts = Counter(turn(n, device) for n in range(1000))
    assert max(counts.values()) == 1 and {name for name, _ in counts} == {*BACKENDS[device]}
    for name, backend in BACKENDS[device].items():
        nths = sorted(nth for one, nth in counts if one == name)
        assert nths == [*range(len(nths))]
        for nth in range(40):
            case = drawn(backend, np.random.default_rng([7, nth]), 7, nth)
            axes = case["axes"]
            assert case["dtype"] in backend.dtypes and {*case["optional"]} <= {*backend.takes}
            assert axes["heads"] // axes["kv_heads"] <= backend.groups and max(axes["queries"], axes["keys"]) <= 256
            assert not (backend.square and case["numbers"]["causal"]) or axes["queries"] == axes["keys"]


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(Refusal, match="device is cpu or cuda; got 'tpu'"):
        measure(device="tpu")
    if not torch.cuda.is_available():
        with pytest.raises(Unavailable, match="device=cuda: PyTorch finds no GPU here"):
            measure(device="cuda")
