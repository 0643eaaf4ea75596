"""Probes in Triton: what is stored, what is left out, and what is refused."""

import traceback
from typing import Any

import numpy as np
import pytest

from workbench import Refusal
from workbench.arrays import as_numpy
from workbench.case.stages import STAGES
from workbench.trace.trace import unwritten

torch = pytest.importorskip("torch", reason="torch is not installed")
triton = pytest.importorskip("triton", reason="triton is not installed")
import triton.language as tl  # noqa: E402

from workbench.foreign.probes.triton import Probes, buffers, probe, stages  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@triton.jit
def numbered(probes, WRONG: tl.constexpr):
    """Stores 10 * query + key into scores, from a tile of 4 by 8 that overhangs; the query into lse, twice."""
    b, h = tl.program_id(0), tl.program_id(1)
    rows, keys = tl.arange(0, 4), tl.arange(0, 8)
    scores = (10 * rows[:, None] + keys[None, :]).to(tl.float32)
    probe(probes.scores, (b, h, rows[:, None], keys[None, :]), scores)
    probe(probes.probs_cast, (b, h, rows[:, None], keys[None, :]), scores.to(tl.float16))
    probe(probes.lse, (b, h, rows), rows.to(tl.float16))
    if WRONG == "axes":
        probe(probes.scores, (b, rows[:, None], keys[None, :]), scores)
    if WRONG == "dtype":
        probe(probes.probs_cast, (b, h, rows[:, None], keys[None, :]), scores)


def launched(names: str, wrong: str = "", *, on: bool = True) -> dict[str, np.ndarray]:
    q, k = (torch.zeros(shape, dtype=torch.float16, device=DEVICE) for shape in ((2, 3, 3, 16), (2, 3, 5, 16)))
    probes = buffers(names, q, k, block_k=4, on=on)
    numbered[(2, 2)](probes, WRONG=wrong)
    return {name: as_numpy(x, name) for name, x in stages(probes).items()}


def test_a_tile_is_stored_where_the_stage_has_slots() -> None:
    """In batches 0 and 1 of heads 0 and 1; nobody wrote head 2. The two keys after the fifth have no slot."""
    stored = launched("scores,probs_cast,lse")
    expected = 10.0 * np.arange(3)[:, None] + np.arange(5)
    assert {name: x.dtype.name for name, x in stored.items()} == {
        "scores": "float32",
        "probs_cast": "float16",
        "lse": "float32",
    }
    for name, values in (("scores", expected), ("probs_cast", expected), ("lse", np.arange(3))):
        assert np.all(stored[name][:, :2] == values)
        assert stored[name].shape == (2, 3, *values.shape) and np.all(unwritten(stored[name][:, 2]))


def test_what_has_no_buffer_is_not_stored() -> None:
    assert list(launched("lse")) == ["lse"] and list(launched("scores, lse")) == ["scores", "lse"]
    assert launched("scores", on=False) == {} and buffers("scores", None, None, on=False) == Probes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_buffers_are_blank(dtype: Any) -> None:
    q = torch.zeros((2, 6, 3, 16), dtype=dtype, device=DEVICE)
    made = stages(buffers("probs_cast,row_sum,partial_O,dequant_k", q, q[:, :2, :, :5], block_k=2, splits=4))
    assert {name: tuple(x.shape) for name, x in made.items()} == {
        "probs_cast": (2, 6, 3, 3),
        "row_sum": (2, 6, 3, 2),
        "partial_O": (2, 6, 4, 3, 16),
        "dequant_k": (2, 2, 3, 16),
    }
    assert made["probs_cast"].dtype == dtype and all(x.device == q.device for x in made.values())
    assert all(np.all(unwritten(as_numpy(x, name))) for name, x in made.items())


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("scores,row_sum", "the buffer of row_sum needs block_k, since its axes are [b h q t]"),
        ("partial_max", "the buffer of partial_max needs splits, since its axes are [b h s q]"),
    ],
)
def test_sizes_that_nobody_tells_are_refused(names: str, message: str) -> None:
    q = torch.zeros((1, 1, 4, 16))
    with pytest.raises(Refusal) as refusal:
        buffers(names, q, q)
    assert str(refusal.value) == message


def test_unknown_stages_are_refused() -> None:
    q = torch.zeros((1, 1, 4, 16))
    with pytest.raises(Refusal, match=f"^unknown stage 'scoers'; stages are: {', '.join(STAGES)}$"):
        buffers("qk,scoers", q, q)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("axes", "a probe takes an index for each axis of its stage"),
        ("dtype", "the dtype of the buffer would round the value of a probe"),
    ],
)
def test_probes_that_do_not_fit_their_stage_do_not_run(wrong: str, message: str) -> None:
    with pytest.raises(Exception) as raised:  # noqa: B017 - Triton's own, of its compiler or of its interpreter
        launched("scores,probs_cast", wrong)
    assert type(raised.value).__module__.startswith("triton.")
    assert message in "".join(traceback.format_exception(raised.value))
