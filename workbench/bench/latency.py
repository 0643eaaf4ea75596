"""How long calls take: whole ones by the clock, and their kernels alone, replayed from a CUDA graph.

Calls that are compared take turns, so that a machine that slows down slows all of them. Their arrays stay where they
are: at sizes that fit into a cache they are read from there, on every side.
"""

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

#: each call has so many turns of so many runs. Turns are long, since threads that one library leaves spinning slow the
#: next one's runs: on 2 busy cores NumPy's attention at seqlen 256 took 38 ms in turns of 1 with torch's, and 0.23 ms
#: in turns of 50, as it does alone
TURNS, RUNS = 4, 50
#: seconds of runs that do not count, at the start of each turn: they load code, fill pools and raise a GPU's clock
WARM_S = 0.05
#: a turn's runs end early once they have taken this long together
PATIENCE_S = 0.5
#: runs of a call in a CUDA graph, over which the graph's own start is spread; of fewer, but at least one, where they
#: would take longer than GRAPH_S together: a start of 10 us is then no more than a 10,000th of them
LAUNCHES, GRAPH_S = 20, 0.1


@dataclass(frozen=True)
class Call:
    """What is timed."""

    run: Callable[[], Any]  #: on a GPU: sends its work to torch's current stream
    right: Callable[[Any], bool]  #: whether what `run` returned, once it is there, is right
    poisoned: Callable[[], AbstractContextManager[None]]  #: inside, every byte of the inputs is 0xFF: NaN in floats


@dataclass(frozen=True)
class Recorded:
    """Runs of a call in a CUDA graph."""

    graph: Any  #: torch.cuda.CUDAGraph
    launches: int  #: runs in it


def latencies(calls: Sequence[Call], *, on_gpu: bool) -> list[np.ndarray]:
    """Microseconds of whole calls, an array for each of `calls`: from Python until the result is there."""
    wait = _wait if on_gpu else lambda: None

    def timer(call: Call) -> Callable[[], float]:
        def timed() -> float:
            wait()
            started = time.perf_counter()
            call.run()
            wait()
            return 1e6 * (time.perf_counter() - started)

        return timed

    return in_turns([timer(call) for call in calls])


def unrepeatable(call: Call, *, on_gpu: bool) -> str | None:
    """Why another run of `call` cannot stand for the one that was judged; None where it is right again."""
    try:
        result = call.run()
        if on_gpu:
            _wait()
    except Exception as error:  # a foreign function's own
        return f"another run of it raised {type(error).__name__}: {error}"
    return None if call.right(result) else "another run gave a different result than the judged one"


def captured(call: Call) -> Recorded | str:
    """A CUDA graph of up to LAUNCHES runs of `call`; or why there is none.

    Inputs are poisoned for a run before it is recorded, so that results between its kernels are too, and while it is;
    it is replayed on the true ones. Work that ran at once, outside of the graph, has read the poison, and the result is
    not right.
    """
    import torch

    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    failures: list[Exception] = []
    try:
        # the stream is left here also where a capture fails, whose own end then forgets to
        with torch.cuda.stream(stream), call.poisoned(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The CUDA Graph is empty")  # the result tells
            call.run()  # makes workspaces too, which no graph can
            _wait()
            started = time.perf_counter()
            call.run()
            _wait()
            launches = max(1, min(LAUNCHES, int(GRAPH_S / (time.perf_counter() - started))))
            # relaxed: an allocation while it is recorded does no harm, and the result tells what would
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="relaxed"):
                try:
                    for _ in range(launches):
                        result = call.run()
                except Exception as error:
                    failures.append(error)
                    raise
        _wait()
        graph.replay()
        _wait()
    except Exception as error:
        failures.append(error)  # after a failure in a capture its end fails too, and says less
        first = str(failures[0]) or type(failures[0]).__name__
        return f"no CUDA graph of it could be recorded: {first.strip().splitlines()[0]}"
    if not call.right(result):
        return "its replayed CUDA graph gives a different result: part of its work is not on torch's current stream"
    return Recorded(graph, launches)


def replays(graphs: Sequence[Recorded]) -> list[np.ndarray]:
    """Microseconds of one of the runs in a graph, by the GPU's own events; an array for each of `graphs`."""
    import torch

    def timer(recorded: Recorded) -> Callable[[], float]:
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))

        def timed() -> float:
            recorded.graph.replay()  # the GPU is busy with it while the host sends what is timed
            before.record()
            recorded.graph.replay()
            after.record()
            after.synchronize()
            return 1e3 * before.elapsed_time(after) / recorded.launches

        return timed

    return in_turns([timer(recorded) for recorded in graphs])


def in_turns(timers: Sequence[Callable[[], float]]) -> list[np.ndarray]:
    """What the `timers` return in TURNS turns each of RUNS runs, an array for each of them; of fewer runs, but at least
    one, where a turn's would take longer than PATIENCE_S.
    """

    def turn(timer: Callable[[], float], runs: float, seconds: float) -> list[float]:
        done: list[float] = []
        started = time.perf_counter()
        while not done or (len(done) < runs and time.perf_counter() - started < seconds):
            done.append(timer())
        return done

    samples: list[list[float]] = [[] for _ in timers]
    for _ in range(TURNS):
        for timer, sample in zip(timers, samples, strict=True):
            turn(timer, np.inf, WARM_S)
            sample += turn(timer, RUNS, PATIENCE_S)
    return [np.array(sample) for sample in samples]


@contextmanager
def poisoned(arrays: Sequence[Any]) -> Iterator[None]:
    """Every byte of `arrays`, contiguous ones of any library that speaks DLPack, is 0xFF inside."""
    import torch

    all_bytes = [torch.from_dlpack(array).view(torch.uint8) for array in arrays]
    kept = [one.clone() for one in all_bytes]
    for one in all_bytes:
        one.fill_(0xFF)
    try:
        yield
    finally:
        for one, before in zip(all_bytes, kept, strict=True):
            one.copy_(before)


def _wait() -> None:
    """Until the GPU has done all it was sent, on every stream."""
    import torch

    torch.cuda.synchronize()
