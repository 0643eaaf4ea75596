"""What kernels of operations beside attention have in common: a record of one, and what it does on its inputs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workbench.cuda.faults.fault import Fault
from workbench.cuda.kernel import Constants, Launch
from workbench.floats import DTYPES


@dataclass(frozen=True)
class Work:
    """A kernel on its inputs, with fresh buffers."""

    constants: Constants
    launches: Sequence[Launch]  #: in order
    arrays: dict[str, np.ndarray]  #: inputs, buffers and results, as kernel functions take them
    filled: tuple[str, ...]  #: those that are full before the first launch
    scalars: Mapping[str, Any]
    made: Mapping[str, np.ndarray]  #: stages and results, which share their memory with `arrays`
    open_: Mapping[str, np.ndarray]  #: stage -> elements that nobody need write, bool that broadcasts to it
    any_order: tuple[str, ...] = ()  #: arrays whose bits depend on the order of blocks


#: of inputs and numbers by name, and the stages to dump
Works = Callable[[Mapping[str, np.ndarray], Mapping[str, Any], Sequence[str]], Work]


@dataclass(frozen=True, eq=False)  # compared and hashed by identity: `functions` is a dict
class OperationKernel:
    """One kernel of an operation beside attention, written at the end of its own file."""

    name: str
    operation: str
    file: Path  #: its own source
    functions: Mapping[str, Path]  #: kernel function -> the source that defines it, in launch order
    summary: str
    stages: tuple[str, ...]  #: that it can dump beside its results; `_cast` where the inputs have 16 bits
    work: Works  #: Refusal for inputs that it cannot take
    contract: Mapping[str, Any]  #: conventions of the operation that it keeps
    numbers: tuple[str, ...]  #: of the operation's, that it takes
    dtypes: tuple[str, ...] = (*DTYPES,)  #: of q, k and v, that random cases may have
    dims: int = 1  #: that a load takes at once: sizes of dims are multiples of it
    least: tuple[int, int] = (0, 0)  #: the first compute capability that has its instructions
    dynamic: tuple[str, ...] = ()  #: functions whose launches say how much shared memory a block has

    def dynamic_bytes(self, constants: Constants, function: str) -> int:
        """Shared memory of a block that a launch of `function` has to ask for."""
        return constants.shared_bytes if function in self.dynamic else 0

    def faults_of(self, file: Path, faults: Sequence[Fault]) -> tuple[Fault, ...]:
        """Those of its `faults` that change the source `file`."""
        return tuple(fault for fault in faults if (fault.file or self.file.name) == file.name)

    def dumped(self, dtype: str) -> tuple[str, ...]:
        """The stages that it can dump of inputs of a dtype."""
        return tuple(name for name in self.stages if dtype != "float32" or not name.endswith("_cast"))
