"""What measurements of the workbench itself share: Python in a process of its own, and seconds."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from math import inf


def python(command: str, given: bytes, **environment: str) -> bytes:
    """The stdout of a fresh Python process that executes `command` with `given` on its stdin."""
    process = [sys.executable, "-c", command]
    whole = {**os.environ, **environment}
    return subprocess.run(process, input=given, stdout=subprocess.PIPE, env=whole, check=True).stdout


def seconds(call: Callable[[], object], repeats: int, patience_s: float = inf) -> list[float]:
    """What each of so many calls takes; fewer, but at least one, where they take longer than `patience_s` together."""
    taken: list[float] = []
    while not taken or (len(taken) < repeats and sum(taken) < patience_s):
        started = time.perf_counter()
        call()
        taken.append(time.perf_counter() - started)
    return taken
