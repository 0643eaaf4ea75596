"""The kernels of this project, each a record at the end of its own file."""

from collections.abc import Iterator, Mapping
from importlib import import_module

from workbench.cuda.kernel import Kernel


class _Kernels(Mapping[str, Kernel]):
    """Name -> kernel. Names are listed without numba, which a kernel's file imports, and that file when it is asked
    for: a completion of the command line may wait for neither.
    """

    names = ("flash", "flash_tensor", "flash_mma", "flash_wgmma", "split_k", "split_mma", "fp8", "fp8_mma", "fp8_wgmma")

    def __getitem__(self, name: str) -> Kernel:
        if name not in self.names:
            raise KeyError(name)
        from workbench.cuda import compiler  # noqa: F401 - Refusal where no kernel is compiled

        return import_module(f"workbench.cuda.{name}").KERNEL

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


KERNELS: Mapping[str, Kernel] = _Kernels()
