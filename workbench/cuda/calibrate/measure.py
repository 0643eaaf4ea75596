"""Measure a machine: the errors of its functions, the sums of its tensor cores, the roundings of its casts.

The very same kernels run on a GPU and on the emulator, whose answers are known.
"""

from collections.abc import Iterable

from workbench.cuda import (
    compiler,  # noqa: F401 - Unavailable where numba cannot be imported
    ptx,
)
from workbench.cuda.calibrate import accumulation, casts, probe_mma, ulps
from workbench.cuda.calibrate.backends import MACHINES
from workbench.cuda.calibrate.record import Calibration
from workbench.cuda.gpu import gpu
from workbench.cuda.run import choose_backend, versions
from workbench.progress import step

#: backend -> every how many-th float32 is tried: a GPU has time for all of them
STRIDE = {"cuda": 1, "emulator": 1009}
#: the first compute capability that has fp8
FP8_SINCE = (8, 9)


def measure(backend: str) -> Calibration:
    """What the machine behind `backend` ("auto", "emulator" or "cuda") does.

    Unavailable for "cuda" where there is no GPU; Refusal for a backend that does not exist.
    """
    backend = choose_backend(backend)
    machine, found = MACHINES[backend], gpu() if backend == "cuda" else None
    capability = found.compute_capability if found else None
    multiply = probe_mma.multiply_on(machine)
    with step("measure functions, tensor cores and casts", estimate_s=20) as tick:  # most of it to compile
        tick("functions")
        functions = {name: ulps.measure(machine, f, STRIDE[backend]) for name, f in ulps.FUNCTIONS.items()}
        tick("tensor cores")
        cores = {name: accumulation.measure(name, multiply) for name in had(ptx.MMA_TYPES, capability)}
        tick("casts")
        conversions = {name: casts.CONVERSIONS[name] for name in had(casts.CONVERSIONS, capability)}
        rounded = {name: casts.measure(casts.cast_on(machine, one)) for name, one in conversions.items()}
    return Calibration(
        backend=backend,
        device=found.name if found else "emulator",
        compute_capability=capability,
        driver=found.driver if found else None,
        versions=versions("emulator"),  # those of packages alone
        functions=functions,
        tensor_cores=cores,
        casts=rounded,
    )


def had(names: Iterable[str], capability: tuple[int, int] | None) -> list[str]:
    """Those of `names`, of operations, that a compute capability from (8, 0) on has; None: all."""
    fp8 = capability is None or capability >= FP8_SINCE
    return [name for name in names if fp8 or not ("e4m3" in name or "e5m2" in name)]
