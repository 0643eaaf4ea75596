"""Run or watch a kernel of an operation beside attention: what a function of that operation does, and what is found."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from workbench.cuda.build import Build, build
from workbench.cuda.check import Checked, WatchedLaunch, WatchedRun, under
from workbench.cuda.faults.catalogue import chosen
from workbench.cuda.gpu import gpu
from workbench.cuda.kernels import OF_OPERATIONS
from workbench.cuda.launch import words
from workbench.cuda.operation_kernel import OperationKernel
from workbench.cuda.run import Memory, choose_backend, launcher
from workbench.cuda.schedules import schedules_of
from workbench.refusal import Refusal, Unavailable

Inputs = Mapping[str, np.ndarray]


def run(
    name: str,
    inputs: Inputs,
    numbers: Mapping[str, Any],
    *,
    faults: Sequence[str] = (),
    probes: str = "all",
    backend: str = "auto",
) -> dict[str, Any]:
    """The stages of kernel `name` on the inputs of its operation, by name, with its "contract". `numbers`: by keyword,
    as a function of the operation takes them, with inputs that a case need not have.

    `probes`: all, output (the results alone), or names of stages, separated by commas. Refusal for a fault, a stage or
    inputs that the kernel cannot take; Unavailable for a backend that this machine lacks.
    """
    kernel, backend = _taking(name, numbers), choose_backend(backend)
    if backend == "cuda" and (found := gpu()) is not None and found.compute_capability < kernel.least:
        raise Unavailable(
            f"{name} needs compute capability {words(kernel.least)} or newer; this GPU has "
            f"{words(found.compute_capability)}; `--backend emulator` runs it on the CPU"
        )
    wanted, put_in = _wanted(kernel, inputs, probes), chosen(faults, name)
    work = kernel.work(inputs, numbers, wanted)
    memory = Memory(backend, work.arrays, {}, work.filled, 0)
    for function, grid, _ in work.launches:
        file = kernel.functions[function]
        faulty = kernel.faults_of(file, put_in)
        dynamic = kernel.dynamic_bytes(work.constants, function)
        built, launch = launcher(file, function, work.constants, wanted, faulty, backend, dynamic)
        launch(grid, work.constants.threads, _arguments(built, {**work.scalars, **memory.arguments}))
    memory.copy_back()
    return {**work.made, "contract": kernel.contract}


def check(
    name: str,
    inputs: Inputs,
    numbers: Mapping[str, Any],
    *,
    faults: Sequence[str] = (),
    probes: str = "all",
    schedules: int = 1,
) -> Checked:
    """What a watched run of kernel `name` finds, as of `workbench.cuda.check.check`: nothing, of a correct kernel. Sums
    of atomics may have other bits in other schedules.
    """
    kernel, tried = _taking(name, numbers), schedules_of(schedules)
    wanted, put_in = _wanted(kernel, inputs, probes), chosen(faults, name)

    def run() -> WatchedRun:
        work, launches = kernel.work(inputs, numbers, wanted), []
        for function, grid, _ in work.launches:
            file = kernel.functions[function]
            built = build(file, function, work.constants, wanted, kernel.faults_of(file, put_in))
            arguments = _arguments(built, {**work.scalars, **work.arrays})
            dynamic = kernel.dynamic_bytes(work.constants, function)
            launches.append(WatchedLaunch(built, grid, work.constants.threads, arguments, dynamic))
        return WatchedRun(launches, work.arrays, work.filled, work.open_.get, any_order=work.any_order)

    return under(tried, run, name, faults)


def _taking(name: str, numbers: Mapping[str, Any]) -> OperationKernel:
    """Kernel `name`; Refusal for numbers, and inputs among them that a case need not have, which it does not take."""
    kernel = OF_OPERATIONS[name]
    if other := [what for what in numbers if what not in kernel.numbers]:
        raise Refusal(f"{name} takes {', '.join(kernel.numbers)}; got {', '.join(other)}")
    return kernel


def _wanted(kernel: OperationKernel, inputs: Inputs, probes: str) -> tuple[str, ...]:
    """The stages that `probes` names, of those that a kernel can dump."""
    known = kernel.dumped(inputs["q"].dtype.name)
    if probes in ("all", "output"):
        return known if probes == "all" else ()
    asked = [name.strip() for name in probes.split(",")]
    if unknown := [name for name in asked if name not in known]:
        raise Refusal(f"probes of {kernel.name}: all, output, or some of {', '.join(known)}; got {', '.join(unknown)}")
    return tuple(name for name in known if name in asked)


def _arguments(built: Build, values: Mapping[str, Any]) -> tuple[Any, ...]:
    """The arguments of a build: its parameters, then the stages that it dumps."""
    return tuple(values[name] for name in (*built.parameters, *built.probes))
