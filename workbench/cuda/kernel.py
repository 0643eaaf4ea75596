"""A kernel of this project, as a record: what it runs, with which constants, grids and promises; needs no numba."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from workbench.case.case import Case
from workbench.case.contract import Contract
from workbench.cuda.faults.fault import Fault
from workbench.floats import DTYPES

#: shared memory of a block, without asking for more on every GPU from sm_50 on, and at most on Hopper
STATIC_SHARED, DYNAMIC_SHARED = 48 * 1024, 227 * 1024
LARGEST_BLOCK = 128  #: rows of the largest tile of any kernel
#: sizes to which head_dim is rounded up in shared memory and registers
HEAD_DIMS = (32, 64, 128, 192, 256, 576)


def padded(head_dim: int) -> int:
    """The least of HEAD_DIMS that holds head_dim, which is at most the largest of them."""
    return next(size for size in HEAD_DIMS if size >= head_dim)


class Constants(Hashable, Protocol):
    """What a build binds the capitals of a kernel's source to; a frozen record, whose repr tells all of it."""

    @property
    def head_dim(self) -> int:
        """What a row has room for: one of HEAD_DIMS."""

    @property
    def threads(self) -> int:
        """Threads in a block."""

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""

    def names(self) -> dict[str, Any]:
        """Capital name in the kernel's source -> its value."""


class Launch(NamedTuple):
    """One launch of a kernel function; its arguments are those that the function names."""

    function: str
    grid: tuple[int, int, int]
    leaves: tuple[str, ...] = ()  #: stages that it leaves for a later launch, and that can be put in instead


@dataclass(frozen=True, eq=False)  # compared and hashed by identity: `functions` is a dict
class Kernel:
    """One attention kernel, written at the end of its own file."""

    name: str
    algorithm: str  #: its stages, by the name of `stages.ALGORITHMS`
    file: Path  #: its own source
    functions: Mapping[str, Path]  #: kernel function -> the source that defines it, in launch order
    summary: str
    resolves: Callable[["Kernel", Case], Case]  #: a case with its tiles and variants; Refusal for one it cannot take
    #: of a resolved case, as are launches and contract, and of the names of inputs beside q, k and v
    constants: Callable[..., Constants]
    launches: Callable[[Case], Sequence[Launch]]  #: in order
    contract: Callable[[Case], Contract]
    dtypes: tuple[str, ...] = (*DTYPES,)  #: of q, k and v, that random cases may have
    dims: int = 1  #: that a copy takes at once: head_dim is a multiple of it, as are strides and addresses in elements
    least_block: int = 1  #: rows and keys that tiles have at least
    dynamic: bool = False  #: whether a launch says how much shared memory a block has: it may be more than 48 KiB then
    static: tuple[str, ...] = ()  #: functions of such a kernel whose launches do not
    masks: bool = True  #: whether it takes a mask, a bias and a dropout mask beside q, k and v
    without: tuple[str, ...] = ()  #: stages of its algorithm that it never makes
    splits: bool = False  #: whether it takes the case option splits
    #: of a resolved case, a number of multiprocessors and bytes of shared memory of each: splits that keep them busy
    fills: Callable[[Case, int, int], int] | None = None
    quantised: bool = False  #: whether it reads codes, and takes the case options about them
    codes: tuple[str, ...] = ()  #: formats of codes that it reads, where these are not all

    def dynamic_bytes(self, constants: Constants, function: str) -> int:
        """Shared memory of a block that a launch of `function` has to ask for."""
        return constants.shared_bytes if self.dynamic and function not in self.static else 0

    def faults_of(self, file: Path, faults: Sequence[Fault]) -> tuple[Fault, ...]:
        """Those of its `faults` that change the source `file`."""
        return tuple(fault for fault in faults if (fault.file or self.file.name) == file.name)
