"""Kernels of ours as they are timed: launched as they are run, their arrays on the GPU."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from workbench.bench.latency import Call
from workbench.case.case import Case
from workbench.case.options import Options
from workbench.case.stages import RESULTS
from workbench.cuda.build import build
from workbench.cuda.launch import bound, loader
from workbench.cuda.plan import Plan, launches, plan
from workbench.cuda.run import Memory


def prepared(name: str, case: Case, *, faults_in: Sequence[str], judged: Mapping[str, np.ndarray]) -> Call:
    """The launches of kernel `name` on `case`, without probes, in a GPU's memory.

    Codes and scales of a kernel that reads them are made before. It is right where out and lse have the bits of the
    stages `judged`, of a run with probes: these change none. Refusal for a case or fault that the kernel cannot take.
    """
    made = plan(name, case, Options(faults=faults_in, probes="output"))
    memory = Memory("cuda", made.arrays, made.views, made.inputs, made.guard)

    def right(_: None) -> bool:
        memory.copy_back()
        return all(made.trace.stages[stage].tobytes() == judged[stage].tobytes() for stage in RESULTS)

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

    return Call(sent(made, (), memory.arguments), right, poisoned)


def sent(made: Plan, probes: Sequence[str], arrays: Mapping[str, Any]) -> Callable[[], None]:
    """The launches of a plan, all of them in order, on torch's current stream: builds that dump the stages `probes`,
    their arguments written once.

    `arrays`: arguments of kernels by name, on the GPU, those of the stages among them.
    """
    import torch

    parts = []
    for function, grid, _ in launches(made.trace.case, made.kernel):
        file, dynamic = made.kernel.functions[function], made.kernel.dynamic_bytes(made.constants, function)
        built = build(file, function, made.constants, probes, made.kernel.faults_of(file, made.faults))
        given = made.arguments(built, {**arrays})
        kernel = loader(built, made.constants, dynamic)(given)
        # with its arguments: a launch has their addresses alone, whose memory would go with them
        parts.append((bound(built, kernel, dynamic, grid, made.constants.threads, given), given))

    def run() -> None:
        stream = torch.cuda.current_stream().cuda_stream
        for launch, _ in parts:
            launch(stream)

    return run
