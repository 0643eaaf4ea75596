"""Run a kernel of ours on a case and bring back its trace, from the emulator or from a GPU."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from workbench.case.case import Case
from workbench.case.command_line import case_options, fault_options
from workbench.case.inputs import anew
from workbench.case.options import Options
from workbench.case.stages import OF_QUANTISER
from workbench.cuda import emulator
from workbench.cuda.arrays import View, viewed
from workbench.cuda.build import Build, build
from workbench.cuda.faults.fault import Fault
from workbench.cuda.gpu import gpu
from workbench.cuda.kernel import Constants
from workbench.cuda.launch import bound, loader
from workbench.cuda.lines import lines_of
from workbench.cuda.plan import OWN_BUFFERS, launches, plan
from workbench.machine import versions as versions_of
from workbench.refusal import Refusal, Unavailable
from workbench.suggested import command
from workbench.trace.narrow import narrowed
from workbench.trace.trace import Trace

BACKENDS = ("auto", "emulator", "cuda")


def choose_backend(backend: str) -> str:
    """emulator or cuda; auto takes a GPU when there is one. Unavailable for cuda without a GPU."""
    if backend not in BACKENDS:
        raise Refusal(f"backend must be one of {', '.join(BACKENDS)}; got {backend!r}")
    if backend == "emulator":
        return backend
    found = gpu()
    if backend == "cuda" and found is None:
        raise Unavailable(
            "backend cuda needs an NVIDIA GPU and its driver; none was found. `--backend emulator` runs on the CPU"
        )
    return "emulator" if found is None else "cuda"


def _watched_by(trace: Trace) -> str:
    """The command that watches the same run."""
    return command("check", trace.target, [*fault_options(trace.faults), *case_options(trace.case_run, own=True)])


def run_kernel(name: str, case: Case, options: Options, *, guarded: bool = True, again: bool = False) -> Trace:
    """The trace of kernel `name` on `case`, with options and `again` as of `plan`, and of `where` they limit it to that
    alone.

    Refusal for a case, fault or input that the kernel cannot take; Unavailable for a backend that this machine lacks.
    `guarded`: a fault that reads past its inputs finds memory of this run there.
    """
    made = plan(name, case, options, again=again)
    backend = choose_backend(options.backend)
    memory = Memory(backend, made.arrays, made.views, made.inputs, made.guard if guarded else 0)
    wanted = made.trace.requested
    builds: list[Build] = []
    for function, grid, _ in launches(made.trace.case, made.kernel, made.trace.put_in):
        boxed, file = made.box is not None, made.kernel.functions[function]
        faults = made.kernel.faults_of(file, made.faults)
        dynamic = made.kernel.dynamic_bytes(made.constants, function)
        built, launch = launcher(file, function, made.constants, wanted, faults, backend, dynamic, boxed)
        builds.append(built)
        try:
            launch(grid, made.constants.threads, made.arguments(built, memory.arguments))
        except emulator.EmulatorError as error:
            more = f"; `{_watched_by(made.trace)}` shows more" if isinstance(error, emulator.Stuck) else ""
            raise Refusal(f"{name} did not finish on the emulator: there is nothing to judge{more}\n{error}") from None
    memory.copy_back()
    made.unpack()

    def once_more(case: Case, inputs: Mapping[str, np.ndarray] | None = None) -> Trace:
        if inputs is None:
            case, inputs = anew(case, options.inputs)
        other = replace(options, backend=backend, inputs=inputs)
        return run_kernel(name, case, other, guarded=guarded, again=True)

    rerun = None if options.feed else once_more  # what was fed belongs to this case alone
    trace = _of_launches(made.trace, builds) if options.feed else made.trace
    lines = functools.partial(lines_of, builds, [x for x in trace.stages if x not in trace.put_in], made.faults)
    trace = replace(trace, backend=backend, versions=versions(backend), rerun=rerun, find_lines=lines)
    return trace if made.box is None else narrowed(trace, made.box, already=made.boxed, rerun=rerun)


def _of_launches(trace: Trace, builds: Sequence[Build]) -> Trace:
    """The trace without the stages of a launch that did not run, as its results were put in."""
    dumped = {stage for built in builds for stage in built.probes}
    known = {*dumped, *trace.put_in, *OWN_BUFFERS, *OF_QUANTISER}
    return replace(
        trace,
        stages={name: stage for name, stage in trace.stages.items() if name in known},
        requested=tuple(name for name in trace.requested if name in known),
    )


@functools.lru_cache(maxsize=256)
def launcher(
    file: Path,
    function: str,
    constants: Constants,
    wanted: tuple[str, ...],
    chosen: tuple[Fault, ...],
    backend: str,
    dynamic: int = 0,
    boxed: bool = False,
) -> tuple[Build, Callable[..., None]]:
    """The build of a kernel function, and launch(grid, block, arguments); made once in a process. `dynamic`: bytes of
    shared memory that the launch asks for.
    """
    made = build(file, function, constants, wanted, chosen, boxed=boxed)
    if backend == "emulator":
        return made, functools.partial(made.for_emulator(), dynamic_shared_bytes=dynamic)
    kernel_for = loader(made, constants, dynamic)
    return made, lambda *given: bound(made, kernel_for(given[-1]), dynamic, *given)(0)


@dataclass(frozen=True)
class Memory:
    """The arrays of a run where the backend can reach them."""

    backend: str
    host: dict[str, np.ndarray]
    views: dict[str, View]  #: arguments of kernels that are views of the arrays
    inputs: tuple[str, ...]  #: names of the arrays that no kernel writes
    guard: int  #: elements that lie behind each of them

    @functools.cached_property
    def arguments(self) -> dict[str, Any]:
        """The arrays and views by name."""
        if self.backend == "emulator":
            return viewed(self.host, self.views)
        from numba.cuda.cudadrv.devicearray import DeviceNDArray

        def view(of: View) -> Any:
            array = self.arrays[of.array]
            return DeviceNDArray(of.shape, of.strides, array.dtype, gpu_data=array.gpu_data)

        return {**self.arrays, **{name: view(of) for name, of in self.views.items()}}

    @functools.cached_property
    def arrays(self) -> dict[str, Any]:
        if self.backend == "emulator":
            return self.host
        from numba import cuda

        def on_device(name: str, array: np.ndarray) -> Any:
            if not self.guard or name not in self.inputs:
                return cuda.to_device(array)
            room = cuda.device_array(array.size + self.guard, array.dtype)
            room[: array.size].copy_to_device(array.ravel())
            return room[: array.size].reshape(*array.shape)

        return {name: on_device(name, array) for name, array in self.host.items()}

    def copy_back(self) -> None:
        """Copy what the kernels wrote into the host arrays, which share their memory with the trace's."""
        if self.backend == "cuda":
            for name, array in self.host.items():
                if name not in self.inputs:
                    self.arrays[name].copy_to_host(array)


def versions(backend: str) -> dict[str, str]:
    """Versions of what a run on a backend depends on."""
    found = versions_of("numpy", "numba", "numba-cuda")
    device = gpu() if backend == "cuda" else None
    return found if device is None else found | {"gpu": device.name, "driver": device.driver}
