"""The emulator: runs numba.cuda kernels on the CPU, compiled, with the rules of barriers checked.

A kernel's syntax tree is rewritten (`rewrite`, `calls`, `program`) into a module (`module`) that numba compiles to a
generator which suspends at each barrier (`barriers`); a compiled scheduler (`schedule`) runs the threads of a block and
makes the exchanges of its warps. Operations of `workbench.cuda.ptx` are performed by `fragments` and `tensor` (those of
a warp), `copies` and `packed` (those of a thread); `places` makes all their accesses to memory but the queued copies.
What operations of `workbench.cuda.hopper` ask for (`requests`), `asynchronous` does: barriers in shared memory
(`mbarriers`), copies of boxes (`boxes`), products of warp groups (`products`).

float32 arithmetic stays float32, and is not contracted to fused multiply-adds. A thread runs until
its next barrier, so a loop that waits for another thread's store never ends. Indices are not checked.
"""

from workbench.cuda import compiler  # noqa: F401 - Unavailable where numba cannot be imported
from workbench.cuda.emulator.cache import cache_dir
from workbench.cuda.emulator.emulator_error import EmulatorError, Stuck
from workbench.cuda.emulator.launch import Emulated, compile
from workbench.cuda.emulator.memory import Finding, Memory, located, merged
from workbench.cuda.emulator.program import Program
from workbench.cuda.emulator.source import Source, source_of

__all__ = [
    "Emulated",
    "EmulatorError",
    "Finding",
    "Memory",
    "Program",
    "Source",
    "Stuck",
    "cache_dir",
    "compile",
    "located",
    "merged",
    "source_of",
]
