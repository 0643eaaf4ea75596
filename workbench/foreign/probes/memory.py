"""Memory of a GPU, through the driver: one way for torch, CuPy and cuda.core alike, which share its primary context."""

import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.refusal import Unavailable


@dataclass(frozen=True, eq=False)
class GpuArray:
    """A copy of a NumPy array on the current device; freed with the object."""

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype

    @classmethod
    def of(cls, x: np.ndarray) -> "GpuArray":
        """`x`, copied. Unavailable where there is no GPU, or no room on it."""
        current_device()
        address = int(_ask("cuMemAlloc", max(x.nbytes, 1)))
        made = cls(address, x.shape, x.dtype)
        weakref.finalize(made, _ask, "cuMemFree", address).atexit = False  # the context may be gone by then
        write(address, x)
        return made

    def read(self) -> np.ndarray:
        """The array, once all that was launched before has finished."""
        _ask("cuCtxSynchronize")
        x = np.empty(self.shape, self.dtype)
        if x.nbytes:
            _ask("cuMemcpyDtoH", x.ctypes.data, self.address, x.nbytes)
        return x


def write(address: int, x: np.ndarray) -> None:
    """Copy `x` to `address` on the current device; done when it returns, also for streams that wait for no other."""
    x = np.ascontiguousarray(x)
    if x.nbytes:
        _ask("cuMemcpyHtoD", address, x.ctypes.data, x.nbytes)
        _ask("cuCtxSynchronize")


def current_device() -> Any:
    """The cuda.core.Device of the current context, else the first, made current; Unavailable where there is none."""
    from workbench.cuda.gpu import look_for_gpu

    found = look_for_gpu()
    if isinstance(found, str):
        raise Unavailable(f"CUDA C++ kernels run on an NVIDIA GPU, and there is none here: {found}")
    from cuda.core import Device

    device = Device()
    device.set_current()
    return device


def _ask(function: str, *arguments: object) -> Any:
    """What the driver answers; Unavailable where memory is too short, RuntimeError for any other failure."""
    from cuda.bindings import driver

    status, *answer = getattr(driver, function)(*arguments)
    if status == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
        raise Unavailable(f"{arguments[0]:,} bytes of GPU memory are not free: probe fewer stages")
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"{function} of the NVIDIA driver failed with {status.name}")
    return answer[0] if answer else None
