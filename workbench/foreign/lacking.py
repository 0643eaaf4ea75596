"""What a foreign function lacks on this machine: a package, or a GPU."""

import traceback
from pathlib import Path

from workbench.extras import not_found
from workbench.files import of_python
from workbench.foreign.probes import interpreter as triton_interpreter

_OURS = Path(__file__).parent.parent
#: what numba.cuda raises where it finds no driver, and the page on its kernels
_NUMBA, NUMBA_PAGE = "CudaSupportError", "docs/how-to/numba.md"


def lacking(error: BaseException, name: str) -> str:
    """What the machine lacks, where that is why `name` failed; empty where it is not.

    A module that is not installed, and a kernel of Triton or numba.cuda where there is no GPU.
    """
    if isinstance(error, ModuleNotFoundError):
        return not_found(error, name)
    if str(error) == triton_interpreter.NO_GPU:
        return f"{name} launches a Triton kernel, and there is no GPU. {triton_interpreter.HINT}"
    if type(error).__name__ == _NUMBA:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if _of_user(Path(frame.filename))] or frames
        return (
            f"{name} needs a GPU for numba.cuda, and there is none: the emulator does not cover "
            f"{own[-1].filename}:{own[-1].lineno}: {own[-1].line}"
        )
    return ""


def _of_user(file: Path) -> bool:
    """Whether a file is neither a library's nor the workbench's."""
    return not of_python(file) and not file.is_relative_to(_OURS)


def is_numba_kernel(function: object) -> bool:
    """Whether it is what numba.cuda's `jit` makes, which has to be launched, with a grid or without."""
    return type(function).__name__ in ("CUDADispatcher", "_LaunchConfiguration")
