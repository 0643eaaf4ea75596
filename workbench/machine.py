"""What a measurement ran on: it says how much of a difference between two measurements to believe."""

import os
import platform
import re
from pathlib import Path
from typing import Any

#: of cgroups 2 and 1
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def processors() -> int:
    """Processors that this process may use; macOS does not tell them from those there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine() -> dict[str, Any]:
    """Cores, architecture, and the load average of the last minute, to be asked before a measurement adds its own."""
    return {"cores": os.cpu_count(), "architecture": platform.machine(), "load_average": os.getloadavg()[0]}


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
