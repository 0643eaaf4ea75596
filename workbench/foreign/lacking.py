"""What a foreign function lacks on this machine: a package, or a GPU."""

import traceback

from workbench.foreign.probes import interpreter as triton_interpreter

#: what numba.cuda raises where it finds no driver, and the page on its kernels
_NUMBA, NUMBA_PAGE = "CudaSupportError", "docs/numba-kernels.md"


def lacking(error: BaseException, name: str) -> str:
    """What the machine lacks, where that is why `name` failed; empty where it is not.

    A module that is not installed, and a kernel of Triton or numba.cuda where there is no GPU.
    """
    if isinstance(error, ModuleNotFoundError):
        line = traceback.extract_tb(error.__traceback__)[-1]
        package = str(error.name).partition(".")[0]
        return f"{name} needs {package}, which is not installed here ({line.filename}:{line.lineno}: {line.line})"
    if str(error) == triton_interpreter.NO_GPU:
        return f"{name} launches a kernel in Triton, and there is no GPU. {triton_interpreter.HINT}"
    if type(error).__name__ == _NUMBA:
        return (
            f"{name} launches a kernel in numba.cuda, and there is no GPU. {NUMBA_PAGE} shows how the emulator runs it"
        )
    return ""


def is_numba_kernel(function: object) -> bool:
    """Whether it is what numba.cuda's `jit` makes, which has to be launched."""
    return type(function).__name__ == "CUDADispatcher"
