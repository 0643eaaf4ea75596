"""Calls on a GPU, watched: judged in a thread, without a wait of the caller's stream."""

import time
from pathlib import Path
from typing import Any

import pytest

from workbench import capture, diff, load
from workbench.explore.capturing.judging import FIRST

torch = pytest.importorskip("torch", reason="torch is not installed")
from tests.explore.capturing import test_packed  # noqa: E402 - needs torch

pytestmark = pytest.mark.gpu


def inputs(tokens: int = 512, seed: int = 0) -> list[Any]:
    made = torch.Generator("cuda").manual_seed(seed)
    return [torch.randn(2, 8, tokens, 64, generator=made, device="cuda", dtype=torch.bfloat16) for _ in "qkv"]


def test_right_calls_keep_nothing_and_a_wrong_one_is_kept(tmp_path: Path) -> None:
    sdpa, calls = torch.nn.functional.scaled_dot_product_attention, iter(range(10**6))

    def attend(q: Any, k: Any, v: Any) -> Any:
        return sdpa(q, k, v, is_causal=True, scale=0.2 if next(calls) == 7 else None)

    told = lambda q, k, v: {"q": q, "k": k, "v": v, "causal": True}  # noqa: E731
    with capture(attend, tmp_path, spec=told) as c:
        for seed in range(12):
            c.function(*inputs(seed=seed))
    found = c.report
    assert (found.judged, found.wrong, found.kept.call) == (12, 1, 7) and not found.unread and not found.dropped
    assert diff(load(tmp_path / FIRST)).verdict == "bug"


def test_gradients_are_judged(tmp_path: Path) -> None:
    q, k, v = (x[:, :, :128].detach().requires_grad_() for x in inputs())
    with capture(torch.nn.functional.scaled_dot_product_attention, tmp_path) as c:
        for causal in (False, True):
            c.function(q, k, v, is_causal=causal).float().square().sum().backward()
        torch.cuda.synchronize()
    found = c.report
    assert (found.judged, found.gradients, found.wrong, found.wrong_gradients) == (2, 2, 0, 0), str(found)
    assert not found.unread and not found.dropped and found.awaited == 0


def test_packed_sequences_are_judged_without_a_wait(tmp_path: Path) -> None:
    given = {x: y.cuda() if hasattr(y, "cuda") else y for x, y in test_packed.drawn(*test_packed.LENGTHS).items()}

    def told(q: Any, k: Any, v: Any, **how: Any) -> dict[str, Any]:
        return {"q": q, "k": k, "v": v} | {x: y for x, y in how.items() if "seqlen" in x}

    right = test_packed.varlen(**{x: y.cpu() if hasattr(y, "cpu") else y for x, y in given.items()}).cuda()
    with capture(lambda q, k, v, **how: right.clone(), tmp_path, spec=told) as c:
        c.function(**given)
        c.report  # noqa: B018 - waits, so that what is loaded once is loaded
        torch.cuda.synchronize()
        torch.cuda._sleep(2 * 10**9)  # about a second
        start = time.perf_counter()
        for _ in range(4):
            c.function(**given)
        waited = time.perf_counter() - start
        assert waited < 0.5
    assert (c.report.judged, c.report.wrong) == (5, 0), str(c.report)


def test_the_callers_stream_is_not_waited_for(tmp_path: Path) -> None:
    q, k, v = inputs()
    with capture(torch.nn.functional.scaled_dot_product_attention, tmp_path) as c:
        c.function(q, k, v)
        c.report  # noqa: B018 - waits, so that what is loaded once is loaded
        torch.cuda.synchronize()
        torch.cuda._sleep(2 * 10**9)  # about a second
        start = time.perf_counter()
        c.function(q, k, v)
        waited = time.perf_counter() - start
        assert waited < 0.2
    assert (c.report.judged, c.report.wrong) == (2, 0)


def test_what_is_more_than_the_limit_is_dropped_and_counted(tmp_path: Path) -> None:
    q, k, v = inputs()
    with capture(torch.nn.functional.scaled_dot_product_attention, tmp_path, limit_mb=0.5) as c:
        torch.cuda._sleep(2 * 10**9)
        for _ in range(8):
            c.function(q, k, v)
    assert c.report.judged + sum(c.report.dropped.values()) == 8 and c.report.dropped and c.report.judged


def test_calls_in_a_graph_are_told(tmp_path: Path) -> None:
    q, k, v = inputs()
    torch.nn.functional.scaled_dot_product_attention(q, k, v)
    with capture(torch.nn.functional.scaled_dot_product_attention, tmp_path) as c:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            c.function(q, k, v)
        graph.replay()
    assert c.report.judged == 0 and "recorded into a CUDA graph" in str(c.report)


def test_a_graph_is_recorded_while_a_call_is_fetched(tmp_path: Path) -> None:
    q, k, v = inputs()
    graph, x = torch.cuda.CUDAGraph(), torch.ones(4, device="cuda")
    with capture(torch.nn.functional.scaled_dot_product_attention, tmp_path) as c:
        c.function(q, k, v)
        c.report  # noqa: B018 - waits, so that what is loaded once is loaded
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(10**9)  # about half a second, in which the recording begins
            c.function(q, k, v)
        with torch.cuda.stream(torch.cuda.Stream()):
            graph.capture_begin()
            time.sleep(1.5)  # in which the call is fetched
            doubled = 2 * x
            graph.capture_end()
    graph.replay()
    torch.cuda.synchronize()
    assert doubled.tolist() == [2, 2, 2, 2]
    assert (c.report.judged, c.report.wrong) == (2, 0) and not c.report.unread, str(c.report)
