"""A kernel judged where its tensors are. The device of these tests is the CPU, but for those that need a GPU."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from workbench.judge.reference import contracts, sharper
from workbench.judge.reference.diff import ReferenceDiff
from workbench.operations.reference.call import diff_reference
from workbench.reference.graph import drawn as drawn_of
from workbench.reference.graph import tracing

torch = pytest.importorskip("torch")

CALLS = {"right": 1.0, "wrong": 1.01}


def attention(q, k, v, scale):
    q, k, v = q.float(), k.float(), v.float()
    scores = (q @ k.transpose(-1, -2)) * scale
    mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    scores = scores.masked_fill(~mask, float("-inf"))
    probs = torch.softmax(scores, -1)
    out = probs @ v
    return out


def flash(q, k, v, scale, factor=1.0):
    """float32 of operands in the dtype of the inputs, exp in base 2, as flash kernels have it."""
    scores = (q.float() @ k.float().transpose(-1, -2)) * scale
    scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), float("-inf"))
    weights = torch.exp2((scores - scores.amax(-1, keepdim=True)) * (1.4426950408889634 * factor))
    out = weights.to(v.dtype).float() @ v.float() / weights.sum(-1, keepdim=True)
    return out.to(q.dtype)


def given(dtype: Any, device: str = "cpu", shape: tuple[int, ...] = (1, 2, 24, 8)) -> dict[str, Any]:
    g = torch.Generator().manual_seed(0)
    return {x: torch.randn(shape, generator=g).to(dtype).to(device) for x in "qkv"} | {"scale": shape[-1] ** -0.5}


def judged(dtype: Any, factor: float) -> ReferenceDiff:
    return diff_reference(lambda **x: flash(**x, factor=factor), attention, given(dtype))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads of torch that wait for each other on a busy machine take ten times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_elsewhere", lambda inputs: torch.device("cpu"))
    monkeypatch.setattr(tracing, "is_worth_it", lambda graph: True)


@pytest.mark.parametrize(("dtype", "factor"), [(torch.float32, 1.0), (torch.bfloat16, 1.01)], ids=["right", "wrong"])
def test_a_verdict_on_a_device_is_that_on_the_cpu(dtype: Any, factor: float, request: pytest.FixtureRequest) -> None:
    there = judged(dtype, factor)
    request.getfixturevalue("on_a_device")
    here = judged(dtype, factor)
    assert torch.is_tensor(here.graph.nodes[0].value) and isinstance(there.graph.nodes[0].value, np.ndarray)
    assert (here.verdict, here.said, here.fails) == (there.verdict, there.said, there.fails) == (
        there.verdict, there.said, factor != 1.0
    )  # fmt: skip
    np.testing.assert_allclose(here["out"].judged.expected, there["out"].judged.expected, rtol=1e-12, atol=1e-14)
    # statistical budgets are drawn, and say which elements are asked in reverse mode; without a worst case all are drawn
    same = np.isclose(here["out"].judged.budget, there["out"].judged.budget, rtol=1e-8, atol=0)
    assert np.mean(same) > 0.9
    likely = here["out"].judged.statistical / there["out"].judged.statistical
    assert 0.9 < np.median(likely) < 1.1
    assert str(here).splitlines()[0] == str(there).splitlines()[0]


@pytest.mark.parametrize("factor", CALLS.values(), ids=CALLS.keys())
def test_a_large_graph_is_screened_first(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contracts that four samples exclude are not held against all: fewer samples, the same verdict."""
    samples: list[int] = []
    draw = drawn_of.drawn

    def counted(graph: Any, contract: Any, asked: Any, dumps: Any, n: int, seed: int = 0) -> Any:
        samples.append(n)
        return draw(graph, contract, asked, dumps, n, seed)

    monkeypatch.setattr("workbench.judge.reference.samples.drawn", counted)
    monkeypatch.setattr(sharper, "LARGEST", 0)
    screened, few = judged(torch.bfloat16, factor), list(samples)
    samples.clear()
    monkeypatch.setattr(contracts, "is_large", lambda graph: False)
    whole = judged(torch.bfloat16, factor)
    assert (screened.verdict, screened.said) == (whole.verdict, whole.said)
    assert 4 in few and 4 not in samples and (sum(few) < sum(samples) or factor != 1.0)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_on_a_gpu(dtype: Any) -> None:
    """The same verdict and budgets as from tensors on the CPU; values stay on the GPU."""
    shape = (1, 2, 512, 64)
    there = diff_reference(flash, attention, given(dtype, shape=shape))
    here = diff_reference(flash, attention, given(dtype, "cuda", shape))
    assert here.graph.nodes[0].value.is_cuda and not here.fails and not there.fails
    np.testing.assert_allclose(here["out"].judged.expected, there["out"].judged.expected, rtol=1e-10, atol=1e-13)
    assert np.mean(np.isclose(here["out"].judged.budget, there["out"].judged.budget, rtol=1e-6, atol=0)) > 0.9
    wrong = diff_reference(lambda **x: flash(**x, factor=1.01), attention, given(dtype, "cuda", shape))
    assert wrong.verdict == "bug"
