"""The device that stands in for a GPU, its context, streams and events, as numba.cuda's functions ask for them."""

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numba.cuda.cudadrv import driver

from workbench.cuda.emulator.launch import MAX_SHARED, MAX_THREADS, WARP
from workbench.cuda.host.memory import Memory, Pinned, pointer
from workbench.refusal import Refusal


class _Known:
    """Refuses what it has not."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        what = type(self).__name__.lower()
        raise Refusal(f"the emulator's {what} has no {name!r}")


class Device(_Known):
    """An H100 with 132 multiprocessors (NVIDIA H100 Tensor Core GPU Architecture, table 4), to programs that choose
    their grids by it.
    """

    id = 0
    name = "emulator"
    compute_capability = (9, 0)
    supports_float16 = supports_bfloat16 = supports_fp8 = True
    MULTIPROCESSOR_COUNT = 132
    WARP_SIZE = WARP
    MAX_THREADS_PER_BLOCK = MAX_THREADS
    MAX_THREADS_PER_MULTI_PROCESSOR = MAX_THREADS_PER_MULTIPROCESSOR = 2048
    MAX_SHARED_MEMORY_PER_BLOCK = 48 * 1024
    MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = MAX_SHARED


class Stream(driver.Stream):
    """A stream: all that is sent to it is done at once."""

    def __init__(self) -> None:
        super().__init__(0)

    def synchronize(self) -> None:
        """Nothing is left to wait for."""


class Event(_Known):
    """A moment in a stream, by the host's clock."""

    def __init__(self) -> None:
        self.at = 0.0

    def record(self, stream: Any = 0) -> None:
        """Take the time."""
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        """Nothing is left to wait for."""

    def wait(self, stream: Any = 0) -> None:
        """Nothing is left to wait for."""

    def query(self) -> bool:
        """It has happened."""
        return True

    def elapsed_time(self, end: "Event") -> float:
        """Milliseconds to another one."""
        return (end.at - self.at) * 1e3


@dataclass(eq=False)
class Context(_Known):
    """What numba.cuda's functions find where they ask for the context of a GPU."""

    memory: Memory = field(default_factory=Memory)
    device: Device = field(default_factory=Device)

    def memalloc(self, size: int) -> Any:
        """Memory of the device."""
        return self.memory.allocate(self, size)

    def memhostalloc(self, size: int, mapped: bool = False, **_: Any) -> Pinned:
        """Memory of the host."""
        return np.zeros(size, np.uint8).view(Pinned)

    def memallocmanaged(self, size: int, attach_global: bool = True) -> Pinned:
        """Memory of both."""
        return self.memhostalloc(size)

    def mempin(self, owner: np.ndarray, address: int, size: int, mapped: bool = False) -> Any:
        """An array of the host as it is."""
        return pointer(self, owner)

    def create_stream(self) -> Stream:
        """A stream."""
        return Stream()

    get_default_stream = get_legacy_default_stream = get_per_thread_default_stream = create_stream

    def create_event(self, timing: bool = True) -> Event:
        """An event."""
        return Event()

    def synchronize(self) -> None:
        """Nothing is left to wait for."""
