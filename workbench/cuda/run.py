"""Run a kernel of ours on a case and bring back its trace, from the emulator or from a GPU."""

import functools
import hashlib
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from workbench import contract, faults
from workbench.arrays import as_numpy
from workbench.case import DTYPES, Case
from workbench.cuda import emulator
from workbench.cuda.build import HEAD_DIMS, Constants, build
from workbench.cuda.gpu import gpu
from workbench.cuda.kernels import KERNELS, Kernel
from workbench.refusal import Refusal, Unavailable
from workbench.stages import ALGORITHMS, probe_set, shape
from workbench.trace import Trace, blank, check

BACKENDS = ("auto", "emulator", "cuda")
BLOCKS = (16, 32, 64, 128)
SHARED_LIMIT = 48 * 1024  # static shared memory of a block on every GPU from sm_50 on
GRID_LIMIT = 65535  # blocks along y and z

#: default tiles by padded head_dim: the largest square ones within SHARED_LIMIT
DEFAULT_BLOCKS = {32: 64, 64: 64, 128: 32}

# Seconds measured on 2 cores, for estimates only: a cold compile on the emulator and for a GPU, a judgement, and what
# it costs for each (query, key) pair
COMPILE_S, CUDA_COMPILE_S, JUDGE_S, ELEMENT_S = 4.0, 1.5, 0.03, 1e-6


def settle(kernel: Kernel, case: Case) -> Case:
    """`case` with tiles and splits as `kernel` will run it; Refusal where it cannot."""
    if not kernel.splits and case.splits is not None:
        raise Refusal(f"kernel {kernel.name} does not split the keys and takes no splits; got splits={case.splits}")
    if case.head_dim > HEAD_DIMS[-1]:
        raise Refusal(f"kernel {kernel.name} takes head_dim 1 to {HEAD_DIMS[-1]}; got {case.head_dim}")
    default = DEFAULT_BLOCKS[_padded(case.head_dim)]
    case = case.but(
        splits=(case.splits or 2) if kernel.splits else None,
        block_q=case.block_q or default,
        block_k=case.block_k or default,
    )
    for name in ("block_q", "block_k"):
        if getattr(case, name) not in BLOCKS:
            raise Refusal(f"{name} is one of {', '.join(map(str, BLOCKS))}; got {getattr(case, name)}")
    needed = constants(case).shared_bytes
    if needed > SHARED_LIMIT:
        raise Refusal(
            f"tiles must fit in {SHARED_LIMIT} bytes of shared memory; block_q={case.block_q}, block_k={case.block_k} "
            f"at head_dim={case.head_dim} (padded to {_padded(case.head_dim)}) need {needed}: choose smaller blocks"
        )
    columns = case.heads * (case.splits or 1)
    if columns > GRID_LIMIT or case.batch > GRID_LIMIT:
        raise Refusal(
            f"a grid has at most {GRID_LIMIT} blocks along heads * splits and along batch; "
            f"got {columns} and {case.batch}"
        )
    return case


def _padded(head_dim: int) -> int:
    return next(size for size in HEAD_DIMS if size >= head_dim)


def constants(case: Case) -> Constants:
    """The constants that a settled case is built with."""
    assert case.block_q is not None and case.block_k is not None
    return Constants(case.block_q, case.block_k, _padded(case.head_dim), case.dtype)


def choose_backend(backend: str) -> str:
    """emulator or cuda; auto takes a GPU when there is one. Unavailable for cuda without a GPU."""
    if backend not in BACKENDS:
        raise Refusal(f"backend is one of {', '.join(BACKENDS)}; got {backend!r}")
    if backend == "emulator":
        return backend
    found = gpu()
    if backend == "cuda" and found is None:
        raise Unavailable(
            "backend cuda needs an NVIDIA GPU and its driver; none was found. `--backend emulator` runs on the CPU"
        )
    return "emulator" if found is None else "cuda"


def run_kernel(
    name: str,
    case: Case,
    *,
    faults_in: Sequence[str] = (),
    probes: str = "all",
    backend: str = "auto",
    inputs: tuple[Any, Any, Any] | None = None,
) -> Trace:
    """The trace of kernel `name` on `case`, with the named faults put in.

    `inputs` are q, k, v in the case's dtype, NumPy arrays or torch tensors; the case's own where None. Refusal for a
    case, fault or input that the kernel cannot take; Unavailable for a backend that this machine lacks.
    """
    kernel = KERNELS[name]
    case = settle(kernel, case)
    chosen = faults.chosen(faults_in, name)
    backend = choose_backend(backend)
    q, k, v = case.inputs() if inputs is None else (as_numpy(x, f"{name}: inputs") for x in inputs)
    stages = ALGORITHMS[kernel.algorithm]
    wanted = probe_set(kernel.algorithm, probes)
    buffers = {
        stage: blank(shape(stages[stage], case.sizes), DTYPES[case.dtype] if stage == "out" else np.dtype(np.float32))
        for stage in stages
        if stage in wanted or stage in _OWN_BUFFERS
    }
    trace = Trace(
        target=name,
        algorithm=kernel.algorithm,
        case=case,
        contract=contract.of_kernel(case),
        inputs={"q": q, "k": k, "v": v},
        stages={stage: buffers[stage] for stage in wanted},
        requested=wanted,
        backend=backend,
        faults=tuple(fault.id for fault in chosen),
        versions=_versions(backend),
    )
    check(trace, name)
    memory = _Memory(backend, {name: _bits(array) for name, array in {**trace.inputs, **buffers}.items()})
    for function, grid, arguments in launches(case, kernel):
        dumped, launch = _launcher(kernel, function, constants(case), wanted, chosen, backend)
        names = (*arguments, *(f"probe_{stage}" for stage in dumped))
        values = {**scalars(case), **memory.arrays, **{f"probe_{stage}": memory.arrays[stage] for stage in dumped}}
        launch(grid, constants(case).threads, tuple(values[name] for name in names))
        if backend == "emulator":
            receipt = _receipt(function, constants(case), wanted, chosen)
            receipt.parent.mkdir(parents=True, exist_ok=True)
            receipt.touch()
    memory.copy_back()
    return trace


# buffers that the kernels need whether they are dumped or not
_OWN_BUFFERS = ("partial_O", "partial_max", "partial_sum", "out", "lse")


def launches(case: Case, kernel: Kernel) -> list[tuple[str, tuple[int, int, int], tuple[str, ...]]]:
    """Function, grid and argument names of every launch, in order."""
    assert case.block_q is not None
    query_tiles = -(-case.seqlen_q // case.block_q)
    mask = ("scale", "causal", "diagonal")
    if kernel.name == "flash":
        return [("flash_forward", (query_tiles, case.heads, case.batch), ("q", "k", "v", "out", "lse", *mask))]
    partials = ("partial_O", "partial_max", "partial_sum")
    return [
        (
            "split_k_partial",
            (query_tiles, case.heads * (case.splits or 1), case.batch),
            ("q", "k", "v", *partials, *mask),
        ),
        ("split_k_reduce", (query_tiles, case.heads, case.batch), (*partials, "out", "lse")),
    ]


def scalars(case: Case) -> dict[str, Any]:
    """Scalar arguments of the kernels, by name."""
    return {"scale": np.float32(case.scale), "causal": case.causal, "diagonal": np.int32(case.diagonal)}


@functools.lru_cache(maxsize=256)
def _launcher(
    kernel: Kernel,
    function: str,
    constants: Constants,
    wanted: tuple[str, ...],
    chosen: tuple[faults.Fault, ...],
    backend: str,
) -> tuple[tuple[str, ...], Callable[..., None]]:
    """The stages that a kernel function dumps, and launch(grid, block, arguments); built once in a process."""
    made = build(kernel.file, function, constants, wanted, chosen)
    if backend == "emulator":
        return made.probes, made.for_emulator()
    dispatcher = made.for_cuda()
    return made.probes, lambda grid, block, arguments: dispatcher[grid, block](*arguments)


@dataclass(frozen=True)
class _Memory:
    """The arrays of a run where the backend can reach them."""

    backend: str
    host: dict[str, np.ndarray]

    @functools.cached_property
    def arrays(self) -> dict[str, Any]:
        if self.backend == "emulator":
            return self.host
        from numba import cuda

        return {name: cuda.to_device(array) for name, array in self.host.items()}

    def copy_back(self) -> None:
        """Copy what the kernels wrote into the host arrays, which share their memory with the trace's."""
        if self.backend == "cuda":
            for name, array in self.host.items():
                if name not in ("q", "k", "v"):
                    self.arrays[name].copy_to_host(array)


def _bits(array: np.ndarray) -> np.ndarray:
    """The array as kernels take it: bfloat16 as uint16 bits, which share the array's memory."""
    return array.view(np.uint16) if array.dtype == DTYPES["bfloat16"] else array


def _versions(backend: str) -> dict[str, str]:
    found = {"python": platform.python_version()} | {
        package: version(package) for package in ("numpy", "numba", "numba-cuda")
    }
    device = gpu() if backend == "cuda" else None
    return found if device is None else found | {"gpu": device.name, "driver": device.driver}


def estimate_s(name: str, cases: Sequence[Case], faults_in: Sequence[str], probes: str, backend: str) -> float:
    """About how many seconds the cases take: the compiles that are not in the cache on disk yet, and the runs and
    judgements.
    """
    kernel = KERNELS[name]
    settled = [settle(kernel, case) for case in cases]
    chosen = faults.chosen(faults_in, name)
    wanted = probe_set(kernel.algorithm, probes)
    work_s = sum(JUDGE_S + ELEMENT_S * case.batch * case.heads * case.seqlen_q * case.seqlen_k for case in settled)
    if choose_backend(backend) == "cuda":
        return work_s + CUDA_COMPILE_S * len({constants(case) for case in settled}) * len(kernel.functions)
    builds = {(function, constants(case)) for case in settled for function in kernel.functions}
    return work_s + COMPILE_S * sum(
        not _receipt(function, constants, wanted, chosen).exists() for function, constants in builds
    )


def _receipt(function: str, constants: Constants, wanted: tuple[str, ...], chosen: tuple[faults.Fault, ...]) -> Path:
    """A file that says that the emulator has compiled this build before, for estimates only."""
    key = repr((function, constants, wanted, [(fault.id, fault.after) for fault in chosen], version("numba")))
    return emulator.cache_dir() / "receipts" / hashlib.sha256(key.encode()).hexdigest()[:24]
