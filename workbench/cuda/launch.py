"""Launches by the driver alone: numba.cuda is slow, compiles in every process, and cannot launch all code."""

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import types

from workbench.cuda.build import Build
from workbench.cuda.cubin import HOPPER, cubin
from workbench.cuda.gpu import gpu
from workbench.cuda.kernel import Constants
from workbench.cuda.tensor_maps import encoded
from workbench.refusal import Unavailable

#: where the address is among the cells of an array
ADDRESS_CELL = 4


class Array(NamedTuple):
    """An array on a GPU."""

    address: int
    shape: Sequence[int]
    strides: Sequence[int]  #: in bytes
    size: int  #: bytes of an element

    @property
    def cells(self) -> list[int]:
        """As numba.cuda passes it: two pointers that are none, elements, bytes of one, address, shape and strides."""
        return [0, 0, int(np.prod(self.shape)), self.size, self.address, *self.shape, *self.strides]


def cell(number: Any) -> int:
    """A scalar in the lowest of 8 bytes."""
    if isinstance(number, np.float32):
        return int(struct.unpack("<I", struct.pack("<f", number))[0])
    return int(number) & 0xFFFFFFFFFFFFFFFF


class Parameters(NamedTuple):
    """The arguments of a launch as the driver takes them."""

    values: Any  #: 8 bytes each
    maps: Sequence[Any]  #: tensor maps, behind them
    addresses: Any  #: where each of them is

    @property
    def at(self) -> int:
        """Where the addresses are."""
        return ctypes.addressof(self.addresses)


def parameters(values: Sequence[int], maps: Sequence[Any] = ()) -> Parameters:
    """The arguments of a launch, from cells and tensor maps."""
    cells = (ctypes.c_uint64 * len(values))(*values)
    start = ctypes.addressof(cells)
    places = [*(start + 8 * i for i in range(len(values))), *(int(one.getPtr()) for one in maps)]
    return Parameters(cells, maps, (ctypes.c_void_p * len(places))(*places))


def maps_of(build: Build, arrays: Mapping[str, Array]) -> list[Any]:
    """The tensor maps of a build, of its arrays by name."""
    found = ((arrays[array], rows) for array, rows in build.maps)
    return [encoded(x.address, x.shape, x.strides, x.size, rows) for x, rows in found]


def load(build: Build, constants: Constants, typed: Any, dynamic: int, device: int, capability: tuple[int, int]) -> Any:
    """The kernel of `cuda.core` of a build on a GPU whose context is current, with `dynamic` bytes of shared memory.

    Unavailable where it takes another GPU; Refusal where the cache cannot be written.
    """
    from cuda.bindings import driver

    if build.maps and capability != HOPPER:
        raise Unavailable(
            f"{build.source.name} needs a GPU of compute capability {words(HOPPER)} (Hopper); this one has "
            f"{words(capability)}. `--backend emulator` runs it on the CPU"
        )
    kernel = cubin(build, constants, typed, capability).load()
    if dynamic:  # even where it is less than 48 KiB: static memory comes to it
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        where = driver.CUkernel(int(kernel.handle)), driver.CUdevice(device)
        (status,) = driver.cuKernelSetAttribute(attribute, dynamic, *where)
        if status:
            raise RuntimeError(f"the driver returned {status.name} for {dynamic} bytes of shared memory")
    return kernel


def words(capability: tuple[int, int]) -> str:
    """A compute capability, as 9.0."""
    return ".".join(map(str, capability))


def bound(
    build: Build, kernel: Any, dynamic: int, grid: Sequence[int], threads: int, arguments: Sequence[Any]
) -> Callable[[int], None]:
    """A launch whose arguments, arrays of numba.cuda and numbers, are written once; it is called with a stream."""
    from cuda.bindings import driver

    given = [_array(x) if hasattr(x, "device_ctypes_pointer") else x for x in arguments]
    arrays = {name: x for name, x in zip(build.parameters, given, strict=False) if isinstance(x, Array)}
    made = parameters(
        [y for x in given for y in (x.cells if isinstance(x, Array) else [cell(x)])], maps_of(build, arrays)
    )
    function = driver.CUfunction(int(kernel.handle))

    def launch(stream: int) -> None:
        (status,) = driver.cuLaunchKernel(function, *grid, threads, 1, 1, dynamic, stream, made.at, 0)
        if status:
            raise RuntimeError(f"the driver returned {status.name} for {build.source.name}, grid {grid}")

    return launch


def loader(build: Build, constants: Constants, dynamic: int) -> Callable[[Sequence[Any]], Any]:
    """The kernel of `cuda.core` for arguments, arrays of numba.cuda and numbers; compiled once for their types."""
    from numba.cuda.typing.typeof import typeof

    found = gpu()
    assert found is not None, "a run on backend cuda has a GPU"
    loaded: dict[str, Any] = {}

    def kernel(arguments: Sequence[Any]) -> Any:
        typed = types.void(*(typeof(x) for x in arguments))
        if str(typed) not in loaded:
            loaded[str(typed)] = load(build, constants, typed, dynamic, 0, found.compute_capability)
        return loaded[str(typed)]

    return kernel


def _array(x: Any) -> Array:
    """An array of numba.cuda."""
    return Array(x.device_ctypes_pointer.value, x.shape, x.strides, x.dtype.itemsize)
