"""Where a small kernel runs: on the emulator or on the GPU, on NumPy arrays alike."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda

from workbench.cuda import emulator
from workbench.cuda.quiet import quiet

#: threads of a block, where nothing else decides
THREADS = 128

#: launch(grid, block, arguments): blocks and threads along x; NumPy arrays are read and written in place
Launch = Callable[[int, int, tuple[Any, ...]], None]
#: what makes a kernel, a plain function, ready to be launched
Machine = Callable[[Callable[..., None]], Launch]


def on_emulator(kernel: Callable[..., None]) -> Launch:
    """The kernel for the CPU."""
    return emulator.compile(emulator.source_of(kernel))


def on_gpu(kernel: Callable[..., None]) -> Launch:
    """The kernel for the first GPU; arrays are copied there and back."""
    compiled = cuda.jit(kernel)

    def launch(grid: int, block: int, arguments: tuple[Any, ...]) -> None:
        there = [cuda.to_device(x) if isinstance(x, np.ndarray) else x for x in arguments]
        with quiet():
            compiled[grid, block](*there)
        for here, x in zip(arguments, there, strict=True):
            if isinstance(here, np.ndarray):
                x.copy_to_host(here)

    return launch


#: backend -> machine
MACHINES: dict[str, Machine] = {"emulator": on_emulator, "cuda": on_gpu}
