"""Kernels of a project on a CPU, by Triton's interpreter: what it lacks of what they use."""

import builtins
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any


def is_interpreted() -> bool:
    """Whether Triton's kernels run on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def complete(root: Path) -> None:
    """Gives the modules that were imported from `root` a `range` of Triton's numbers: `for i in range(n)` of a kernel
    makes plain ones there, which have no `.to`. `torch.cpu.device` is as `torch.cuda.device` is.
    """
    import torch

    torch.cpu.device = lambda index: nullcontext()  # type: ignore[attr-defined]
    for module in [*sys.modules.values()]:
        if str(getattr(module, "__file__", None) or "").startswith(str(root)):
            module.__dict__["range"] = _range


def _range(*ends: Any) -> Iterable[Any]:
    from triton.language import tensor

    return _numbers(ends) if any(isinstance(x, tensor) for x in ends) else builtins.range(*ends)


def _numbers(ends: tuple[Any, ...]) -> Iterator[Any]:
    import numpy as np
    from triton.language import int32, tensor
    from triton.runtime.interpreter import TensorHandle

    for i in builtins.range(*(int(x) for x in ends)):
        yield tensor(TensorHandle(np.array([i], np.int32), int32), int32)
