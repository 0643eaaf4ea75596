"""What a TARGET is: found here, once, by whoever runs, compares or repeats one."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from workbench.case.user_code import Function
from workbench.cuda.kernel import Kernel
from workbench.cuda.kernels import KERNELS, OF_OPERATIONS
from workbench.foreign.find import find, installed, of_file
from workbench.foreign.lacking import NUMBA_PAGE, is_numba_kernel
from workbench.refusal import Refusal
from workbench.suggested import command
from workbench.trace.join import is_trace
from workbench.trace.plain import is_plain


class Kind(Enum):
    """What there is; the value says it in a sentence."""

    OURS = "a built-in kernel"
    FUNCTION = "your kernel"  #: path.py:function, or a function as Python has it
    INSTALLED = "a kernel of an installed package"
    AT_REST = "a trace"  #: in a file, in several, or in a folder
    ARRAYS = "a file of arrays"  #: that a run left, whose case is said beside it
    PRINTED = "a log"  #: values that a kernel printed


@dataclass(frozen=True)
class Target:
    """A TARGET and its kind."""

    name: str
    kind: Kind
    given: Any = None  #: the function, where it was given as such

    @property
    def kernel(self) -> Kernel | None:
        """The kernel of ours that it is."""
        return KERNELS[self.name] if self.kind is Kind.OURS else None

    @property
    def is_foreign(self) -> bool:
        """Whether it is run, and no kernel of ours."""
        return self.kind in (Kind.FUNCTION, Kind.INSTALLED)

    @property
    def is_trace(self) -> bool:
        """Whether it is a run at rest."""
        return self.kind in (Kind.AT_REST, Kind.ARRAYS)

    @property
    def brings_case(self) -> bool:
        """Whether it says itself what its case is."""
        return self.kind is Kind.AT_REST

    @property
    def is_log(self) -> bool:
        """Whether it is a log of printed values."""
        return self.kind is Kind.PRINTED

    def found(self) -> Function:
        """The foreign function that it is, or the kernel of numba.cuda; Refusal for what cannot be called."""
        function = find(self.name) if self.given is None else self.given
        if not callable(function):
            raise Refusal(f"a target must be a kernel's name, path.py:function, or a function; got {function!r}")
        return function

    def function(self) -> Function:
        """As `found`; Refusal for a kernel."""
        function = self.found()
        if is_numba_kernel(function):
            watched = command("check", self.name)
            raise Refusal(
                f"{self.name} is a numba.cuda kernel: it is launched, not called. Give a function that takes q, k and "
                f"v, launches it and returns out, as in {NUMBA_PAGE}. To watch the kernel alone, add a function "
                f"`launch` without parameters that launches it, and run `{watched}`"
            )
        return function


def known(target: str | Callable[..., Any]) -> Target | None:
    """What TARGET is; None for a name that nothing has."""
    if not isinstance(target, str):
        named = getattr(target, "func", target)  # of a functools.partial
        return Target(getattr(named, "__name__", "callable"), Kind.FUNCTION, target)
    if target in KERNELS:
        return Target(target, Kind.OURS)
    if is_plain(target):
        return Target(target, Kind.ARRAYS)
    if is_trace(target):
        return Target(target, Kind.AT_REST)
    if ":" in target:
        return Target(target, Kind.FUNCTION)
    return Target(target, Kind.INSTALLED) if target in installed() else None


def target_of(target: str | Callable[..., Any]) -> Target:
    """As `known`; Refusal for a name that nothing has."""
    if (found := known(target)) is None:
        if isinstance(target, str) and target.endswith(".py"):
            raise Refusal(of_file(Path(target)))
        if isinstance(target, str) and target in OF_OPERATIONS:
            name = OF_OPERATIONS[target].operation
            raise Refusal(f"{target} is a kernel of {name}: pass --operation {name}")
        raise Refusal(
            f"unknown kernel {target!r}; kernels are {', '.join((*KERNELS, *installed()))}; pass your own as "
            "path.py:function, a trace as FILE.safetensors, arrays as FILE.npz or .pt"
        )
    return found


def targets_of(target: str) -> list[Target]:
    """Those that TARGET names: several are kernels of ours, separated by commas."""
    names = target.split(",")
    return [target_of(name) for name in (names if {*names} <= {*KERNELS} else [target])]
