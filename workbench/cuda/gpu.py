"""What numba.cuda is here, and whether there is a GPU: asked of the driver alone, without a context on the device."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workbench.extras import absent


@dataclass(frozen=True)
class Gpu:
    """The first NVIDIA GPU of this machine."""

    name: str
    compute_capability: tuple[int, int]
    driver: str  #: the newest CUDA release that the driver serves, such as "13.0"


def gpu() -> Gpu | None:
    """The first GPU, or None."""
    found = look_for_gpu()
    return found if isinstance(found, Gpu) else None


@functools.cache
def look_for_gpu() -> Gpu | str:
    """The first GPU, or why there is none, in words. Never raises: a broken driver is a reason like any other."""
    try:
        from cuda.bindings import driver
        from cuda.pathfinder import DynamicLibNotFoundError
    except ImportError as error:
        lacks = isinstance(error, ModuleNotFoundError)
        return f"cannot query the driver: {absent('this needs', 'cuda.bindings') if lacks else error}"
    try:
        return first_gpu(driver)
    except DynamicLibNotFoundError:
        return "no NVIDIA driver"
    except Exception as error:
        return str(error) or type(error).__name__


def first_gpu(driver: Any) -> Gpu | str:
    """The first GPU that `driver` (the module cuda.bindings.driver) knows, or that it knows none."""

    def ask(function: Callable[..., Any], *arguments: object) -> Any:
        status, *answer = function(*arguments)
        if status != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"the NVIDIA driver returned {status.name} from {function.__name__}")
        return answer[0] if answer else None

    ask(driver.cuInit, 0)
    if ask(driver.cuDeviceGetCount) == 0:
        return "the NVIDIA driver reports no device"
    device = ask(driver.cuDeviceGet, 0)
    major, minor = (
        ask(driver.cuDeviceGetAttribute, getattr(driver.CUdevice_attribute, attribute), device)
        for attribute in (
            "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR",
            "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR",
        )
    )
    name = ask(driver.cuDeviceGetName, 256, device).split(b"\0")[0].decode()  # cuda-bindings fills up with blanks too
    release = ask(driver.cuDriverGetVersion)  # 1000 * major + 10 * minor
    return Gpu(name, (major, minor), f"{release // 1000}.{release % 1000 // 10}")


def implementation() -> str:
    """Whose numba.cuda is imported here: "NVIDIA", or "Built-in" for numba's deprecated own."""
    from numba import cuda

    return str(cuda.implementation)
