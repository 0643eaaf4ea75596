"""The campaign `backward-speed`: it needs a GPU, and its figures are of a kernel that is right."""

from typing import Any

import pytest

from campaigns import backward_speed
from campaigns.backward_speed import RESULTS
from workbench.cuda import gpu
from workbench.refusal import Unavailable


def test_it_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "gpu", lambda: None)
    with pytest.raises(Unavailable) as raised:
        backward_speed.measure()
    assert str(raised.value).startswith("backward_mma is timed on an NVIDIA GPU, and none was found")


def test_tables() -> None:
    row: dict[str, Any] = {"dim": 64, "causal": True, "us": 200.04, "torch_us": 150.03, "ratio": 0.75, "tflops": 99.96}
    row |= {"error": dict.fromkeys(RESULTS, 0.00123), "torch_error": dict.fromkeys(RESULTS, 0.002)}
    [[cells]] = backward_speed.tables({"rows": [row]})
    assert cells["us"] == 200 and cells["ratio"] == 0.75 and cells["error of dk"] == "1.2e-03"
    assert list(cells)[:6] == ["dim", "causal", "us", "torch_us", "ratio", "tflops"] and len(cells) == 12


@pytest.mark.gpu
def test_what_is_timed_is_as_right_as_the_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backward_speed, "SEQLEN", 300)
    [row] = backward_speed.measure([(64, True)])["rows"]
    assert all(0 < row["error"][x] <= 2 * row["torch_error"][x] for x in RESULTS) and row["us"] > 0
