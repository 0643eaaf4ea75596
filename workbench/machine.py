"""What a measurement ran on: it says how much of a difference between two measurements to believe."""

import os
import platform
import re
from pathlib import Path
from typing import Any


def processors() -> int:
    """Processors that this process may use; macOS does not tell them from those there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine() -> dict[str, Any]:
    """Cores, architecture, and the load average of the last minute, to be asked before a measurement adds its own."""
    return {"cores": os.cpu_count(), "architecture": platform.machine(), "load_average": os.getloadavg()[0]}


def peak_bytes() -> int:
    """The largest resident memory that this process has had since it started, mapped files included.

    Linux's VmHWM. getrusage's ru_maxrss is no substitute: a new program inherits that of the process that started it.
    """
    return 1024 * int(re.findall(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())[0])
