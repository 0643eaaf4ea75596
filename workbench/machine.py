"""What a measurement ran on, which says how much of a difference between two measurements to believe; its memory."""

import ctypes
import importlib.metadata
import os
import platform
import re
import sys
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any

#: of cgroups 2 and 1
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")

#: parameters of glibc's mallopt (malloc.h), and the largest threshold for mappings of their own that it takes
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX, _LARGEST = -1, -3, -8, 2**25


def processors() -> int:
    """Processors that this process may use; macOS does not tell them from those there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine() -> dict[str, Any]:
    """Cores, architecture, and the load average of the last minute, to be asked before a measurement adds its own."""
    return {"cores": os.cpu_count(), "architecture": platform.machine(), "load_average": os.getloadavg()[0]}


def versions(*packages: str) -> dict[str, str]:
    """Versions of Python and of those of `packages` that are installed; nothing is imported.

    An imported module's `__version__` comes first: it names the build (torch 2.13.0+cu130), which the metadata of the
    wheels on the package index leave out.
    """
    return {"python": platform.python_version()} | {name: found for name in packages if (found := _version(name))}


def _version(package: str) -> str:
    """Of the imported module of that name, else of the distribution; empty where neither is there."""
    module = sys.modules.get(package.replace("-", "_"))
    return str(getattr(module, "__version__", "")) or _of_distribution(package)


@cache
def _of_distribution(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def memory_bytes() -> int:
    """The memory of this machine, or what of it the container may use; what cgroups do not tell is not limited."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in _CGROUP_LIMITS:
        text = Path(file).read_text().strip() if Path(file).is_file() else ""
        limits += [int(text)] if text.isdigit() else []
    return min(limits)


def peak_bytes() -> int:
    """The largest resident memory that this process has had since it started, mapped files included.

    Linux's VmHWM. getrusage's ru_maxrss is no substitute: a new program inherits that of the process that started it.
    """
    return 1024 * int(re.findall(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())[0])


def one_blas_thread() -> AbstractContextManager[Any]:
    """A context in which NumPy's products take one thread, whatever the environment says.

    Those of a part of a trace, or of the rows that are looked at, are too small for several: 360 ms instead of 20 where
    BLAS takes two, and more where others use the machine, since its threads wait for each other in a loop.
    """
    limits: AbstractContextManager[Any] = _libraries().limit(limits=1, user_api="blas")
    return limits


@cache
def _libraries() -> Any:
    """The libraries with threads that this process has, NumPy's BLAS among them: to look for them takes 3 ms."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@cache
def keep_heap() -> None:
    """Let the process keep the memory of arrays of up to 32 MB that it frees, for the next ones; on other C libraries
    than glibc nothing.

    glibc hands it back to the system, which then has to clear its pages again, one fault each, behind one lock for all
    threads: a temporary of 8 MB took 1.7 to 3 times as long as what was computed in it, and two threads were no faster
    than one (a virtual machine; 470 000 faults a minute, 9 000 with this). One arena, since those of other threads are
    unmapped as soon as they are empty.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    mallopt = ctypes.CDLL(None).mallopt
    for parameter, value in ((_MMAP_THRESHOLD, _LARGEST), (_TRIM_THRESHOLD, 2**30), (_ARENA_MAX, 1)):
        mallopt(parameter, value)
