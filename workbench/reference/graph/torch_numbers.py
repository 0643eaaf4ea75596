"""What has to be seen before torch's dispatcher: numbers of Python on their way into tensors, which torch rounds to a
dtype, and gradients, which it refuses in words of its own.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from workbench.reference.graph.arrays import held
from workbench.reference.graph.recording import Recording
from workbench.reference.graph.torch_tensor import BY_HAND, DTYPES, Tensor

#: what makes a tensor of numbers -> the place of them
_MAKERS = {torch.tensor: 0, torch.as_tensor: 0, torch.asarray: 0, torch.Tensor.new_tensor: 1}


class Numbers(TorchFunctionMode):
    """Of one run."""

    def __init__(self, run: Recording, note: Callable[[Any], None] | None = None) -> None:
        super().__init__()
        self.run = run
        self.note = note  #: called with what each has made

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = self._made(func, args, kwargs or {})
        if self.note is not None:
            self.note(made)
        return made

    def _made(self, func: Any, args: Any, kwargs: Any) -> Any:
        asks = func in (torch.autograd.grad, torch.autograd.backward)
        if asks and self.run.backward is None:  # torch.func.grad asks, too, of what it follows
            try:
                return func(*args, **kwargs)
            except RuntimeError:  # no tensor of a run requires a gradient
                self.run.refuse(BY_HAND)
        if func is torch.Tensor.__setitem__ and isinstance(args[2], float) and args[0].is_floating_point():
            args = (*args[:2], torch.scalar_tensor(args[2], dtype=args[0].dtype))  # x[0] = 0.1
        made = func(*args, **kwargs)
        place = _MAKERS.get(func)
        if place is None or not made.is_floating_point() or made.dtype not in DTYPES:
            return made
        data = args[place] if len(args) > place else kwargs.get("data", kwargs.get("obj"))
        if not _of_numbers(data):
            return made
        return Tensor(held(self.run, np.array(data, np.float64), DTYPES[made.dtype]))


def _of_numbers(x: Any) -> bool:
    if isinstance(x, Sequence) and not isinstance(x, str):
        return all(_of_numbers(one) for one in x)
    return isinstance(x, bool | int | float)
