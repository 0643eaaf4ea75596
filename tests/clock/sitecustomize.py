"""A clock of tests: time that stands still, or runs 20 times as fast, for all that a process and its children read.

A Python that is started with this folder on PYTHONPATH takes WORKBENCH_TEST_CLOCK, `still` or `fast`, for its clock.
"""

import os
import time
from collections.abc import Callable, Mapping
from importlib.machinery import PathFinder
from pathlib import Path

READ = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
FAST = 20


def clocks(kind: str) -> Mapping[str, Callable[[], float]]:
    """Functions of `time` with another clock behind them."""
    found: dict[str, Callable[[], float]] = {}
    for name in READ:
        real = getattr(time, name)
        begun = real()
        if kind == "still":
            found[name], found[f"{name}_ns"] = lambda begun=begun: begun, lambda begun=begun: int(begun * 1e9)
        elif kind == "fast":
            found[name] = lambda real=real, begun=begun: begun + FAST * (real() - begun)
            found[f"{name}_ns"] = lambda clock=found[name]: int(clock() * 1e9)
        else:
            raise ValueError(f"WORKBENCH_TEST_CLOCK is still or fast; got {kind!r}")
    return found


if kind := os.environ.get("WORKBENCH_TEST_CLOCK"):
    for name, clock in clocks(kind).items():
        setattr(time, name, clock)
    # the file of this name that stands behind it on the path is imported, too
    here = str(Path(__file__).parent)
    behind = [folder for folder in os.environ["PYTHONPATH"].split(os.pathsep) if folder != here]
    if (spec := PathFinder.find_spec("sitecustomize", behind)) is not None and spec.origin is not None:
        exec(compile(Path(spec.origin).read_text(), spec.origin, "exec"), {"__name__": "sitecustomize"})
