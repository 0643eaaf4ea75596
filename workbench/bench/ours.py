"""Kernels of ours as they are timed: built without probes, launched as they are run, their arrays on the GPU."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from workbench.bench.latency import Call
from workbench.case.case import Case
from workbench.case.options import Options
from workbench.cuda.build import Build, build
from workbench.cuda.faults.fault import Fault
from workbench.cuda.kernel import Constants
from workbench.cuda.launch import bound, loader
from workbench.cuda.plan import launches, plan
from workbench.cuda.run import Memory


def prepared(name: str, case: Case, *, faults_in: Sequence[str], judged: Mapping[str, np.ndarray]) -> Call:
    """The launches of kernel `name` on `case`, all of them in order, in a GPU's memory; configured once for a stream.

    Codes and scales of a kernel that reads them are made before. It is right where out and lse have the bits of the
    stages `judged`, of a run with probes: these change none. Refusal for a case or fault that the kernel cannot take.
    """
    import torch

    made = plan(name, case, Options(faults=faults_in, probes="output"))
    memory = Memory("cuda", made.arrays, made.views, made.inputs, made.guard)
    parts = []
    for function, grid, _ in launches(made.trace.case, made.kernel):
        file = made.kernel.functions[function]
        faults, dynamic = made.kernel.faults_of(file, made.faults), made.kernel.dynamic_bytes(made.constants, function)
        built, launcher = _launcher(file, function, made.constants, faults, dynamic)
        parts.append(launcher(grid, made.constants.threads, made.arguments(built, memory.arguments)))

    @functools.cache
    def configured(stream: int) -> list[Callable[[], None]]:
        return [part(stream) for part in parts]

    def run() -> None:
        for launch in configured(torch.cuda.current_stream().cuda_stream):
            launch()

    def right(_: None) -> bool:
        memory.copy_back()
        return all(made.trace.stages[stage].tobytes() == judged[stage].tobytes() for stage in ("out", "lse"))

    @contextmanager
    def poisoned() -> Iterator[None]:
        for array, host in memory.host.items():
            poison = np.full(host.nbytes, 0xFF, np.uint8).view(host.dtype).reshape(host.shape)
            memory.arrays[array].copy_to_device(poison)
        try:
            yield
        finally:
            for array in memory.inputs:
                memory.arrays[array].copy_to_device(memory.host[array])

    return Call(run, right, poisoned)


@functools.lru_cache(maxsize=256)
def _launcher(
    file: Path, function: str, constants: Constants, faults: tuple[Fault, ...], dynamic: int
) -> tuple[Build, Callable[..., Callable[[int], Callable[[], None]]]]:
    """The build without probes, and of (grid, threads, arguments) a launch that is configured for a stream; cases of
    one head_dim share what it is compiled to.
    """
    built = build(file, function, constants, (), faults)
    kernel_for = loader(built, constants, dynamic)
    return built, lambda *given: functools.partial(
        functools.partial, bound(built, kernel_for(given[-1]), dynamic, *given)
    )
