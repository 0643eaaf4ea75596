"""A run of a reference in torch: its inputs as tensors of the run, and back."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from workbench.reference.graph.arrays import Traced
from workbench.reference.graph.gradients import Gradients
from workbench.reference.graph.node import Graph
from workbench.reference.graph.recording import Recording, significant
from workbench.reference.graph.torch_gradients import Autograd
from workbench.reference.graph.torch_mode import Dispatch
from workbench.reference.graph.torch_numbers import Numbers
from workbench.reference.graph.torch_tensor import DTYPES, Tensor, plain_array, significant_of
from workbench.refusal import Refusal


class Torch:
    """torch for one run."""

    #: a reference that draws without a seed of its own draws other numbers in a second run; outside nothing has changed
    apart = staticmethod(partial(torch.random.fork_rng, devices=[]))

    def __init__(
        self, run: Recording, gradients: Gradients | None = None, given: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        self.run, self._mode = run, Dispatch(run)
        self._autograd = None if gradients is None else Autograd(run, gradients, given)

    @property
    def draws(self) -> bool:
        """Whether the reference asked for random numbers."""
        return self._mode.draws

    def given(self, name: str, x: Any, dtype: Any) -> Any:
        """An input, copied."""
        if isinstance(x, np.ndarray):
            raise Refusal(f"input {name} is an array of NumPy, and others are tensors. Give all of one library")
        if not isinstance(x, torch.Tensor):
            return x
        if x.dtype not in DTYPES:
            raise Refusal(f"input {name} is a tensor of {x.dtype}; inputs hold floats, whole numbers or truths")
        noted = DTYPES[x.dtype] if dtype is None or not x.is_floating_point() else np.dtype(dtype)
        if self.run.values is not None and x.is_floating_point():
            wide = np.empty(x.shape)
            there = x.detach().to(self.run.values.device, torch.float64, copy=True)
            node = self.run.hold(there, noted, name, significant_of(there))
        else:
            wide = plain_array(x)
            held = wide.copy()
            node = self.run.hold(held, noted, name, significant(held))
        differentiable = self._autograd is not None and x.is_floating_point() and x.element_size() > 1
        if differentiable and not name.isidentifier():
            raise Refusal(f"input {name} is in a list or a dict. Gradients are of inputs that are tensors themselves")
        return Tensor(Traced(self.run, wide, node, noted, not x.is_floating_point()), differentiable)

    @contextmanager
    def running(self, f: Any) -> Iterator[None]:
        """What torch is asked for in this thread belongs to the run; what is compiled runs as it is written."""
        eager = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
        if self._autograd is None:
            with eager, torch.no_grad(), Numbers(self.run), self._mode:
                yield
        else:
            with eager, self._autograd.recording(), Numbers(self.run, self._autograd.note), self._mode:
                yield

    def graph(self, name: str, given: Mapping[str, Any], results: Mapping[str, Any]) -> Graph:
        """What was recorded, with gradients where they are asked for; `name` of the reference."""
        if self._autograd is None:
            return self.run.graph({key: x.traced.node_of_run for key, x in results.items()})
        return self._autograd.graph(name, given, results)

    def array(self, x: Any) -> Traced | None:
        """The array of a tensor of the run; None of what is none."""
        if not isinstance(x, Tensor):
            return None
        self._mode.empty.read(x.traced)
        return x.traced
