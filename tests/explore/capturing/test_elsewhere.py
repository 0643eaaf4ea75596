"""The process in which calls of a GPU are judged, asked on a CPU."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench import Refusal, capture
from workbench.explore.capturing.elsewhere import Elsewhere, found_of, portable
from workbench.explore.capturing.gradients import BackwardSnapshot
from workbench.explore.capturing.judging import Judging
from workbench.explore.capturing.snapshot import Snapshot

torch = pytest.importorskip("torch", reason="torch is not installed")


def snapshots(folder: Path, monkeypatch: pytest.MonkeyPatch, scale: float | None = None, cast: Any = None) -> list[Any]:
    """Of a call and of its backward pass, in the order in which they are judged."""
    seen: list[Any] = []
    monkeypatch.setattr(Judging, "submit", lambda self, one, *_: seen.append(one.on_host()))
    made = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 24, 16, generator=made).requires_grad_() for _ in "qkv")
    sdpa = torch.nn.functional.scaled_dot_product_attention

    def attend(q: Any, k: Any, v: Any) -> Any:
        return sdpa(q, k, v, is_causal=True, scale=scale)

    with capture(attend, folder, spec=lambda q, k, v: {"q": q, "k": k, "v": v, "causal": True}) as c:
        c.function(q, k, v).square().sum().backward()
    assert [type(one) for one in seen] == [Snapshot, BackwardSnapshot]
    return seen


@pytest.mark.parametrize(("scale", "verdict"), [(None, "rounding"), (0.4, "bug")])
def test_it_says_what_is_said_here(
    scale: float | None, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Elsewhere()
    for one in snapshots(tmp_path, monkeypatch, scale):
        plain = portable(one)
        arrays = plain.gradients if isinstance(plain, BackwardSnapshot) else plain.results
        assert all(isinstance(x, np.ndarray) for x in arrays.values())
        found = there.judged(plain, "mine", None, "hopper")
        assert found == found_of(one, "mine", None, "hopper") and found.verdict == verdict
    process = there._process
    assert process is not None and process.poll() is None
    there.end()
    assert process.poll() == 0


def test_what_is_refused_there_is_refused_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = portable(snapshots(tmp_path, monkeypatch)[0])
    there = Elsewhere()
    with pytest.raises(Refusal, match="probs_dtypo"):
        there.judged(one, "mine", {"probs_dtypo": "float32"}, None)
    assert there.judged(one, "mine", None, None).verdict == "rounding"
    there.end()


def test_a_process_that_ends_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = portable(snapshots(tmp_path, monkeypatch)[0])
    there = Elsewhere()
    there._started().kill()
    there._started().wait()
    assert there.judged(one, "mine", None, None).verdict == "rounding" and there._failed
    assert there.judged(one, "mine", None, None).verdict == "rounding"
    there.end()


def test_what_cannot_be_sent_is_judged_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = portable(snapshots(tmp_path, monkeypatch)[0])
    there = Elsewhere()
    monkeypatch.setattr("workbench.explore.capturing.elsewhere.found_of", lambda *asked: "here")
    assert there.judged(one, "mine", lambda: None, None) == "here" and not there._failed
    there.end()
