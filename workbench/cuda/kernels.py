"""The kernels of this project, each a record at the end of its own file."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TypeVar

from workbench.cuda.kernel import Kernel
from workbench.cuda.operation_kernel import OperationKernel

Record = TypeVar("Record")


class _Kernels(Mapping[str, Record]):
    """Name -> kernel. Names are listed without numba, which a kernel's file imports, and that file when it is asked
    for: a completion of the command line may wait for neither.
    """

    def __init__(self, *names: str) -> None:
        self.names = names

    def __getitem__(self, name: str) -> Record:
        if name not in self.names:
            raise KeyError(name)
        from workbench.cuda import compiler  # noqa: F401 - Unavailable where no kernel is compiled

        found: Record = import_module(f"workbench.cuda.{name}").KERNEL
        return found

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


KERNELS: Mapping[str, Kernel] = _Kernels(
    "flash", "flash_tensor", "flash_mma", "flash_wgmma", "split_k", "split_mma", "fp8", "fp8_mma", "fp8_wgmma"
)
#: those of operations beside attention
OF_OPERATIONS: Mapping[str, OperationKernel] = _Kernels("backward", "backward_atomic", "backward_mma")
