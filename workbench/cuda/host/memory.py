"""Memory of the device that stands in for a GPU: that of the host."""

import ctypes
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numba.cuda.cudadrv import driver

#: bytes at a multiple of which an allocation of CUDA begins (CUDA C++ Programming Guide, device memory accesses)
ALIGNMENT = 256
#: bytes before and behind an allocation that belong to nobody, so that a kernel that is not watched and leaves its
#: arrays by a row or two reads NaN there, and writes where it hurts nobody
GUARD = 4096
#: every byte of what nobody has written: NaN in all floating point formats, -1 in integers
POISON = 0xFF


class Pinned(np.ndarray):
    """Memory of the host that kernels reach, too."""

    @property
    def device_ctypes_pointer(self) -> ctypes.c_size_t:
        """Its address, as numba asks for it."""
        return ctypes.c_size_t(self.ctypes.data)


@dataclass(frozen=True, eq=False)
class Allocation:
    """Memory of the device."""

    memory: np.ndarray  #: its bytes
    written: np.ndarray  #: which of them the host has written, bool


@dataclass
class Memory:
    """What was allocated."""

    allocations: dict[int, Allocation] = field(default_factory=dict)  #: by address

    def allocate(self, context: Any, size: int) -> Any:
        """A pointer of numba's to memory that nobody has written."""
        whole = np.full(ALIGNMENT + size + 2 * GUARD, POISON, np.uint8)
        start = GUARD + -whole.ctypes.data % ALIGNMENT
        memory = whole[start : start + size]
        self.allocations[memory.ctypes.data] = Allocation(memory, np.zeros(size, bool))
        return pointer(context, memory)

    def holding(self, address: int) -> Allocation | None:
        """The allocation in which an address lies; None of memory of others."""
        found = (one for start, one in self.allocations.items() if start <= address < start + one.memory.size)
        return next(found, None)

    def wrote(self, x: np.ndarray) -> None:
        """Remember that the host has written the elements of an array."""
        if x.size and (one := self.holding(x.ctypes.data)) is not None:
            beginning = one.written[x.ctypes.data - one.memory.ctypes.data :]
            np.lib.stride_tricks.as_strided(beginning, (*x.shape, x.itemsize), (*x.strides, 1))[...] = True


def pointer(context: Any, memory: np.ndarray) -> Any:
    """A pointer of numba's to memory of the host, which lives as long."""
    return driver.MemoryPointer(context, driver.binding.CUdeviceptr(memory.ctypes.data), memory.nbytes, owner=memory)


def seen(array: Any) -> np.ndarray:
    """The elements of an array of numba's on the device, in place."""
    if not array.size:
        return np.zeros(array.shape, array.dtype)
    return at(array.device_ctypes_pointer.value, array.dtype, array.shape, array.strides)


def at(address: int, dtype: np.dtype, shape: tuple[int, ...] = (1,), strides: tuple[int, ...] | None = None) -> Any:
    """The elements at an address, in place."""
    first = np.ndarray((1,), dtype, memoryview((ctypes.c_ubyte * dtype.itemsize).from_address(address)))
    return np.lib.stride_tricks.as_strided(first, shape, strides)
