"""Running our kernels: what a case must fit, which machine runs it, and whose inputs it takes."""

import numpy as np
import pytest

from tests.refusals import refusal
from workbench import Case, Refusal, Unavailable, run
from workbench.case.stages import ALGORITHMS, PROBE_SETS, absent
from workbench.cuda.flash_build import constants
from workbench.cuda.gpu import gpu
from workbench.cuda.kernels import KERNELS
from workbench.cuda.plan import resolve
from workbench.cuda.run import choose_backend

UNCAPPED = [stage for stage in ALGORITHMS["split_k"] if stage not in absent()]
CASE = Case(seqlen=20, heads=2, head_dim=8, block_q=16, block_k=16, causal=True)


@pytest.mark.parametrize(
    ("head_dim", "tiles"),
    [(1, (64, 64)), (32, (64, 64)), (33, (64, 64)), (64, (64, 64)), (65, (32, 32)), (128, (32, 32))],
)
def test_default_tiles_fit_into_shared_memory(head_dim: int, tiles: tuple[int, int]) -> None:
    case = resolve(KERNELS["split_k"], Case(head_dim=head_dim))
    assert (case.block_q, case.block_k) == tiles and case.splits == 2
    assert constants(case).shared_bytes <= 48 * 1024


def test_64x64_tiles_of_head_dim_64_have_256_threads_and_fill_shared_memory() -> None:
    made = constants(resolve(KERNELS["flash"], Case(head_dim=64, block_q=64, block_k=64)))
    assert (made.threads, made.shared_bytes) == (256, 48 * 1024)


@pytest.mark.parametrize(
    ("kernel", "options", "message"),
    [
        ("flash", {"splits": 2}, "kernel flash takes no splits; got splits=2"),
        ("split_k", {"head_dim": 577}, "kernel split_k takes head_dim 1 to 576; got 577"),
        ("flash", {"block_k": 48}, "block_k must be one of 16, 32, 64, 128; got 48"),
        (
            "flash",
            {"block_q": 128, "block_k": 64},
            "tiles must fit in 49152 bytes of shared memory; block_q=128, block_k=64 at head_dim=64 (padded to 64) need 81920: "
            "choose smaller blocks",
        ),
        (
            "split_k",
            {"heads": 3000, "splits": 30},
            "heads * splits and batch may each be at most 65535, the limit of a grid; got 90000 and 1",
        ),
    ],
)
def test_a_case_that_does_not_fit_is_refused(kernel: str, options: dict, message: str) -> None:
    assert refusal(resolve, KERNELS[kernel], Case(**options)) == message


def test_auto_takes_a_gpu_where_there_is_one() -> None:
    assert choose_backend("auto") == ("emulator" if gpu() is None else "cuda")
    assert choose_backend("emulator") == "emulator"
    assert refusal(choose_backend, "gpu") == "backend must be one of auto, emulator, cuda; got 'gpu'"


@pytest.mark.skipif(gpu() is not None, reason="needs a machine without a GPU")
def test_cuda_without_a_gpu_is_unavailable() -> None:
    with pytest.raises(Unavailable) as missing:
        run("flash", CASE, backend="cuda")
    assert str(missing.value) == (
        "backend cuda needs an NVIDIA GPU and its driver; none was found. `--backend emulator` runs on the CPU"
    )


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("probes", list(PROBE_SETS))
def test_a_trace_holds_the_stages_asked_for(probes: str) -> None:
    trace = run("split_k", CASE, probes=probes, backend="emulator")
    wanted = tuple(stage for stage in UNCAPPED if stage in PROBE_SETS[probes])
    assert trace.requested == tuple(trace.stages) == wanted and "out" in wanted


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_torch_inputs_give_the_same_trace(dtype: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    case = CASE.but(dtype=dtype)
    arrays = case.inputs()
    tensors = tuple(torch.from_numpy(x.astype(np.float32)).to(getattr(torch, dtype)) for x in arrays)
    expected, found = run("flash", case, backend="emulator"), run("flash", case, backend="emulator", inputs=tensors)
    assert all(found.stages[name].tobytes() == stage.tobytes() for name, stage in expected.stages.items())
    strided = tuple(x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors)
    assert (
        run("flash", case, backend="emulator", inputs=strided).stages["out"].tobytes()
        == expected.stages["out"].tobytes()
    )


def test_inputs_that_do_not_fit_the_case_are_refused() -> None:
    q, k, v = CASE.inputs()
    spoilt = k.copy()
    spoilt[0, 1, 2, 3] = np.inf
    for inputs, message in [
        ((q[:, :1], k, v), "flash: q must have shape [1, 2, 20, 8] for this case; got [1, 1, 20, 8]"),
        ((q, k, v.astype(np.float16)), "flash: q, k and v must have one dtype; got float16, float32"),
        ([x.astype(np.float16) for x in (q, k, v)], "flash: q must have dtype float32, the case's; got float16"),
        ((q, spoilt, v), "flash: inputs must be finite, or NaN; k holds inf at b=0, h=1, k=2, d=3"),
    ]:
        assert refusal(run, "flash", CASE, backend="emulator", inputs=inputs) == message


def test_a_run_leaves_its_inputs_as_they_were() -> None:
    inputs = CASE.inputs()
    before = [x.copy() for x in inputs]
    run("split_k", CASE, backend="emulator", inputs=inputs)
    assert all(np.array_equal(x, y) for x, y in zip(inputs, before, strict=True))


@pytest.mark.campaign
def test_a_kernel_that_never_finishes_is_refused_with_the_place() -> None:
    with pytest.raises(Refusal) as refused:
        run("flash", CASE.but(seqlen_q=5), faults=["flash-barrier-in-branch"], backend="emulator")
    first, second, *places = str(refused.value).splitlines()
    assert first == (
        "flash did not finish on the emulator: there is nothing to judge; `workbench check flash --fault "
        "flash-barrier-in-branch --seqlen-q 5 --seqlen-k 20 --heads 2 --head-dim 8 --causal --block-q 16 --block-k 16` tells more"
    )
    assert second == "flash_forward: divergent barrier in block (0, 0, 0)"
    assert len(places) == 2 and all("flash.py:" in place and "cuda.syncthreads reached by" in place for place in places)
