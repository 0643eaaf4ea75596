"""What is timed of our kernels: the launches of the judged case, on a GPU that the emulator plays, and on a real one."""

from types import SimpleNamespace

import numpy as np
import pytest

from workbench import Case, run
from workbench.bench import ours as latency
from workbench.bench.latency import LAUNCHES, Recorded, captured, replays
from workbench.cuda.kernels import KERNELS
from workbench.cuda.run import Memory

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

CASE = Case(seqlen=130, causal=True)
#: on tensor cores, in a build that other tests have, too: each takes seconds
TENSOR_CORES = Case(heads=4, kv_heads=2, seqlen_q=37, seqlen_k=50, head_dim=64, dtype="float16", block_q=64, block_k=64)


class OnDevice:
    """An array of a GPU, in the host's memory."""

    def __init__(self, array):
        self.array = array.copy()

    def copy_to_device(self, other):
        self.array[...] = other

    def copy_to_host(self, other):
        other[...] = self.array


@pytest.fixture
def streams(monkeypatch):
    """The stream of each launch; launches go to the emulator."""
    launched = []

    def emulate(made, dynamic, grid, threads, arguments, stream):
        launched.append(stream)
        there = [x.array if isinstance(x, OnDevice) else x for x in arguments]
        made.for_emulator()(grid, threads, there, dynamic_shared_bytes=dynamic)

    def bound(made, kernel, *launch):
        return lambda stream: emulate(made, *launch, stream)

    monkeypatch.setattr(latency, "bound", bound)
    monkeypatch.setattr(latency, "loader", lambda *_: lambda _: None)

    def arrays(memory):
        made = memory.host if memory.backend == "emulator" else {n: OnDevice(x) for n, x in memory.host.items()}
        return memory.__dict__.setdefault("there", made)

    monkeypatch.setattr(Memory, "arrays", property(arrays))
    monkeypatch.setattr(torch, "cuda", SimpleNamespace(current_stream=lambda: SimpleNamespace(cuda_stream=7)))
    return launched


@pytest.mark.campaign
@pytest.mark.parametrize(
    "name",
    ["flash", "split_k", "fp8", *(pytest.param(x, marks=pytest.mark.campaign) for x in ("flash_mma", "flash_wgmma"))],
)
def test_it_is_the_judged_kernel_without_probes(name, streams):
    """Right as judged; wrong on poisoned inputs, so that the bits are those of the last run; and right again."""
    case = TENSOR_CORES if name == "flash_mma" else CASE.but(dtype=KERNELS[name].dtypes[0])
    judged = run(name, case, backend="emulator").stages
    call = latency.prepared(name, case, faults_in=(), judged=judged)
    assert not call.right(None), "nothing has run yet"
    assert call.run() is None and call.right(None)
    with call.poisoned():
        call.run()
        assert not call.right(None)
    assert not call.right(None), "outputs stay poisoned"
    assert call.run() is None and call.right(None)
    assert streams == [7] * len(KERNELS[name].functions) * 3


@pytest.mark.campaign
def test_faults_are_timed_with_the_kernel(streams):
    faults = ["flash-no-correction"]
    judged = run("flash", CASE, faults=faults, backend="emulator").stages
    for faults_in, expected in ((faults, True), ((), False)):
        call = latency.prepared("flash", CASE, faults_in=faults_in, judged=judged)
        call.run()
        assert call.right(None) is expected


@pytest.mark.campaign
def test_bits_are_compared(streams):
    """Half an ulp is a difference, and so is the sign of a zero."""
    judged = dict(run("flash", CASE, backend="emulator").stages)
    call = latency.prepared("flash", CASE, faults_in=(), judged=judged)
    call.run()
    for stage in ("out", "lse"):
        changed = judged[stage].copy()
        changed.flat[5] = np.nextafter(changed.flat[5], np.float32(np.inf))
        judged[stage], kept = changed, judged[stage]
        assert not call.right(None)
        judged[stage] = kept
    assert call.right(None)


@pytest.mark.gpu
@pytest.mark.parametrize("name", KERNELS)
def test_a_graph_of_the_launches_is_right_and_timed(name):
    """However long it takes on a GPU that others use."""
    case = Case(seqlen=128, head_dim=64, dtype=KERNELS[name].dtypes[0])
    call = latency.prepared(name, case, faults_in=(), judged=run(name, case, backend="cuda").stages)
    graph = captured(call)
    assert isinstance(graph, Recorded), graph
    (sample,) = replays([graph])
    assert sample.size and (np.isfinite(sample) & (sample > 0)).all()
    assert 1 <= graph.launches <= LAUNCHES


@pytest.mark.gpu
def test_a_launch_on_another_stream_is_seen():
    """The default stream, on which a kernel runs that is told of no other."""
    case = Case(seqlen=128, head_dim=64)
    judged = run("flash", case, backend="cuda").stages
    call = latency.prepared("flash", case, faults_in=(), judged=judged)
    assert not isinstance(captured(call), str)
    launched = latency.bound
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(latency, "bound", lambda *given: lambda _: launched(*given)(0))
        astray = latency.prepared("flash", case, faults_in=(), judged=judged)
        assert isinstance(captured(astray), str)
