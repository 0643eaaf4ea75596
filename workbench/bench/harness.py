"""What measurements share: progress, Python in a process of its own, seconds, and torch."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from math import inf
from typing import Any, TypeVar

from workbench.progress import step
from workbench.refusal import Unavailable

Result = TypeVar("Result")


def gathered(
    name: str, estimate_s: float, results: Iterable[Result], told: Callable[[list[Result]], str] = lambda _: ""
) -> list[Result]:
    """All `results`, which arise as one step that takes about `estimate_s` seconds; `told`: what to say of those that
    are there.
    """
    done: list[Result] = []
    with step(name, estimate_s) as tick:
        for result in results:
            done.append(result)
            tick(f"{len(done)} done{told(done)}")
    return done


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


def torch_if_installed() -> Any:
    """The module; None where it is not installed."""
    try:
        import torch
    except ImportError:
        return None
    return torch


def torch_for(peer: str) -> Any:
    """The module; Unavailable, which names the `peer` that it has, where it is not installed."""
    if (torch := torch_if_installed()) is None:
        raise Unavailable(f"{peer} is not installed; pip install torch")
    return torch
