"""Times taken in turns, and the guard against CUDA graphs that hold only a part of the work, on a GPU that is played."""

import itertools
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from workbench.bench import latency
from workbench.bench.latency import (
    GRAPH_S,
    LAUNCHES,
    Call,
    Recorded,
    captured,
    in_turns,
    latencies,
    unrepeatable,
)

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


class Played:
    """A GPU that runs what it is sent at once, unless a graph is being recorded that it is sent to."""

    def __init__(self):
        self.graph = None

    def send(self, work):
        """To the current stream, which a graph records."""
        work() if self.graph is None else self.graph.append(work)

    def fakes(self):
        """What takes the place of torch.cuda."""

        class Graph(list):
            def replay(self):
                for work in self:
                    work()

        @contextmanager
        def recorded(graph, *, stream, capture_error_mode):
            assert capture_error_mode == "relaxed"
            self.graph = graph
            try:
                yield
            except Exception as error:
                raise RuntimeError("operation failed due to a previous error during capture") from error
            finally:
                self.graph = None

        return SimpleNamespace(
            CUDAGraph=Graph, Stream=object, stream=lambda _: latency.poisoned([]), graph=recorded, synchronize=int
        )


@pytest.fixture
def played(monkeypatch):
    gpu = Played()
    monkeypatch.setattr(torch, "cuda", gpu.fakes())
    return gpu


def doubling(gpu, *, first, second):
    """Twice x, in two steps that are sent by `first` and `second`."""
    x, half, out = torch.arange(1.0, 5.0), torch.empty(4), torch.empty(4)

    def run():
        first(lambda: half.copy_(x))
        second(lambda: out.copy_(2 * half))
        return out

    return Call(run, lambda out: out.tolist() == [2, 4, 6, 8], lambda: latency.poisoned([x]))


def at_once(work):
    """To another stream than the current one."""
    work()


def test_a_graph_that_holds_all_the_work_is_taken(played):
    recorded = captured(doubling(played, first=played.send, second=played.send))
    assert (len(recorded.graph), recorded.launches) == (2 * LAUNCHES, LAUNCHES)


@pytest.mark.parametrize(("seconds", "launches"), [(GRAPH_S / 7.5, 7), (3 * GRAPH_S, 1)])
def test_a_graph_of_long_runs_holds_fewer(played, monkeypatch, seconds, launches):
    clock = itertools.count(0, seconds)  # told before and after a run
    monkeypatch.setattr(latency.time, "perf_counter", lambda: next(clock))
    recorded = captured(doubling(played, first=played.send, second=played.send))
    assert (len(recorded.graph), recorded.launches) == (2 * launches, launches)


def test_what_is_told_is_the_time_of_one_run(played, monkeypatch):
    event = lambda enable_timing: SimpleNamespace(  # noqa: E731
        record=int, synchronize=int, elapsed_time=lambda after: 6.0
    )
    monkeypatch.setattr(torch.cuda, "Event", event, raising=False)
    graph = captured(doubling(played, first=played.send, second=played.send)).graph
    samples = latency.replays([Recorded(graph, 20), Recorded(graph, 3)])
    assert [set(sample) for sample in samples] == [{300.0}, {2000.0}]  # of 6 ms


@pytest.mark.parametrize("outside", ["first", "second", "both"])
def test_work_outside_of_the_graph_is_seen(played, outside):
    steps = {step: at_once if outside in (step, "both") else played.send for step in ("first", "second")}
    assert captured(doubling(played, **steps)) == (
        "a replayed CUDA graph gives a different result: part of the work is not on torch's current stream"
    )


@pytest.mark.parametrize("outside", ["first", "second", "both"])
def test_without_poison_it_would_not_be_seen(played, outside):
    """What each step left from its run before is still there."""
    steps = {step: at_once if outside in (step, "both") else played.send for step in ("first", "second")}
    call = doubling(played, **steps)
    assert not isinstance(captured(Call(call.run, call.right, lambda: latency.poisoned([]))), str)


def test_a_capture_that_fails_says_what_failed_first(played):
    def run():
        if played.graph is not None:
            raise ValueError("operation not permitted when stream is capturing\nCompile with TORCH_USE_CUDA_DSA")

    assert captured(Call(run, bool, lambda: latency.poisoned([]))) == (
        "CUDA graph capture failed: operation not permitted when stream is capturing"
    )


def test_poison_is_nan_and_goes_away():
    arrays = [torch.ones(2, 3, dtype=getattr(torch, dtype)) for dtype in ("float32", "float16", "bfloat16")]
    arrays.append(np.ones((2, 3), np.float32))
    with latency.poisoned(arrays):
        assert all(bool((array != array).all()) for array in arrays)
    assert all(bool((array == 1).all()) for array in arrays)


def test_another_run_must_be_right_too():
    runs = iter((1, 2))
    call = Call(lambda: next(runs), lambda result: result == 1, lambda: latency.poisoned([]))
    assert unrepeatable(call, on_gpu=False) is None
    assert unrepeatable(call, on_gpu=False) == "a second run gives a different result than the judged one"
    assert unrepeatable(call, on_gpu=False) == "a second run raised StopIteration: "


def test_turns_are_long_and_begin_with_runs_that_do_not_count(monkeypatch):
    monkeypatch.setattr(latency, "WARM_S", 0.0)  # one run each time
    called = []
    one, other = in_turns([lambda: called.append("a") or 1.0, lambda: called.append("b") or 2.0])
    assert (one == 1).all() and (other == 2).all() and one.size == other.size == latency.TURNS * latency.RUNS
    assert "".join(called) == latency.TURNS * ("a" * (1 + latency.RUNS) + "b" * (1 + latency.RUNS))


def test_slow_calls_run_less_often_but_each_turn(monkeypatch):
    monkeypatch.setattr(latency, "WARM_S", 0.0)
    monkeypatch.setattr(latency, "PATIENCE_S", 0.0)
    called = []
    (sample,) = in_turns([lambda: called.append(0) or 1.0])
    assert sample.size == latency.TURNS and len(called) == 2 * latency.TURNS


def test_a_whole_call_is_timed_by_the_clock(monkeypatch):
    monkeypatch.setattr(latency, "WARM_S", 0.0)
    monkeypatch.setattr(latency, "PATIENCE_S", 0.0)
    clock = itertools.count(0, 0.003)  # told before and after a call
    monkeypatch.setattr(latency.time, "perf_counter", lambda: next(clock))
    (sample,) = latencies([Call(int, bool, lambda: latency.poisoned([]))], on_gpu=False)
    assert sample.size and sample == pytest.approx(3000)
