"""Tensors of a run: to torch of the user's dtype, shape and strides, without memory; in truth an array of the run.

`x.dtype`, `torch.finfo(x.dtype)` and promotion answer as they do outside of a run, since torch itself does. The values
are float64 and on the CPU, and so is the tensor: a reference takes the branch that it has for a CPU. What torch reads
past its dispatcher (`tolist`, `numpy`) is answered or refused here.
"""

from collections.abc import Mapping
from typing import Any, NoReturn

import ml_dtypes
import numpy as np
import torch

from workbench.reference.graph.arrays import Traced
from workbench.reference.graph.recording import FRACTION, Recording

#: torch's dtypes and NumPy's of the same numbers
DTYPES: Mapping[torch.dtype, np.dtype] = {
    torch.float64: np.dtype(np.float64),
    torch.float32: np.dtype(np.float32),
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
    torch.float8_e4m3fn: np.dtype(ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: np.dtype(ml_dtypes.float8_e5m2),
    torch.bool: np.dtype(np.bool_),
    torch.uint8: np.dtype(np.uint8),
    torch.int8: np.dtype(np.int8),
    torch.int16: np.dtype(np.int16),
    torch.int32: np.dtype(np.int32),
    torch.int64: np.dtype(np.int64),
}
_TORCH = {numpy: of_torch for of_torch, numpy in DTYPES.items()}
#: why there are no gradients
BY_HAND = (
    "a reference does without torch.autograd. Ask for gradients of all of it (--gradients), or write its backward pass"
    " by hand, as plain code"
)


class Tensor(torch.Tensor):
    """A tensor of a run."""

    traced: Traced

    @staticmethod
    def __new__(cls, traced: Traced, requires_grad: bool = False) -> "Tensor":
        value = traced.value
        strides = tuple(n // value.itemsize for n in value.strides)
        made: Tensor = torch.Tensor._make_wrapper_subclass(
            cls, value.shape, strides=strides, dtype=of_torch(traced.dtype), requires_grad=requires_grad
        )
        made.traced = traced
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> NoReturn:
        """Of a tensor that outlived its run, or was taken to another thread."""
        found = next(x for x in [*args, *(kwargs or {}).values()] if isinstance(x, Tensor))
        found.run.refuse(f"{func} of a tensor of a run that has ended, or of another thread")

    # what stages and the names of local variables ask

    run: Recording = property(lambda self: self.traced.run)  # type: ignore[assignment]
    is_current: bool = property(lambda self: self.traced.is_current)  # type: ignore[assignment]
    assigned: int = property(lambda self: self.traced.assigned)  # type: ignore[assignment]
    node_of_run: int = property(lambda self: self.traced.node_of_run)  # type: ignore[assignment]

    def again(self) -> "Tensor":
        """All of it, as a node of its own."""
        made: Tensor = torch.ops.aten.alias.default(self)  # of which autograd knows
        made.traced = self.traced.again()
        return made

    def __rtruediv__(self, other: Any) -> torch.Tensor:
        """The division that is written, of which torch makes a reciprocal and a product."""
        dtype = self.dtype if self.is_floating_point() else None
        return torch.div(torch.scalar_tensor(other, dtype=dtype, device=self.device), self)

    # decisions; C++ asks for them through `aten::_local_scalar_dense`

    def __bool__(self) -> bool:
        return bool(self._one("if"))

    def __float__(self) -> float:
        return float(self._one("float()"))

    def __int__(self) -> int:
        return int(self._one("int()"))

    def item(self) -> Any:
        """The float64 value, as a decision."""
        return self._one("item()")

    def tolist(self) -> Any:
        """The float64 values, as a decision."""
        return self.traced.tolist()

    def _one(self, words: str) -> Any:
        if self.numel() != 1:
            raise RuntimeError(f"{words} of a tensor with {self.numel()} elements, where one is needed")
        return self.traced._taken(words).item()

    def __format__(self, how: str) -> str:
        return format(self.item() if self.numel() == 1 else repr(self), how)

    # what is refused

    def _refused(self, *_: Any, **__: Any) -> NoReturn:
        self.run.refuse(
            "a tensor of the reference would become a plain array here, and what follows could not be judged."
            " Stay in torch"
        )

    numpy = __array__ = data_ptr = untyped_storage = _refused

    def __deepcopy__(self, _: Any) -> torch.Tensor:
        return self.clone()

    def requires_grad_(self, requires_grad: bool = True) -> "Tensor":
        """Refused: a reference has no gradients within it."""
        if requires_grad:
            self.run.refuse(BY_HAND)
        return self

    def backward(self, *_: Any, **__: Any) -> NoReturn:
        """Refused, too."""
        self.run.refuse(BY_HAND)

    @property
    def data(self) -> "Tensor":  # type: ignore[override]
        """Itself, without a gradient."""
        return Tensor(self.traced)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Tensor({self.traced.known!r}, dtype={self.dtype})"


def of_torch(dtype: Any) -> torch.dtype:
    """torch's name of a NumPy dtype; KeyError for one that it does not have."""
    return _TORCH[np.dtype(dtype)]


def plain_array(x: torch.Tensor) -> np.ndarray:
    """The values of a tensor that is not of the run: float64, or whole numbers as they are."""
    x = x.detach().cpu()
    return x.double().numpy().copy() if x.is_floating_point() else x.numpy().copy()


def significant_of(x: torch.Tensor) -> int:
    """As `recording.significant`, of a tensor of float64 on any device, by the least bit that any value needs."""
    if not x.numel():
        return 0
    fractions = torch.where(torch.isfinite(x), x.contiguous().view(torch.int64) & FRACTION, 0)
    lowest = fractions & -fractions
    least = int(torch.where(lowest == 0, 1 << 52, lowest).min())
    return 53 - (least.bit_length() - 1) if least < 1 << 52 else int(bool((x != 0).any()))
