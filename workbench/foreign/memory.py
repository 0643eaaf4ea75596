"""Memory of one call of a function: arrays between guards, and fresh memory that holds NaN until it is written.

A third of 37 real kernel bugs showed through memory alone: outputs that nobody wrote, loads and stores past the end.
Guards hold NaN, so that a load past the end spoils what is made of it; a store past the end changes them.
"""

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from workbench.arrays import handed_over

#: bytes of a guard on either side: what CUDA's allocator aligns to, so that what lies behind it is aligned as fresh
#: memory is
GUARD = 512
#: dtype -> the bits of a quiet NaN that no arithmetic makes, of fresh memory; those of guards are one more, since a NaN
#: that is computed with keeps them on many processors
_NAN: Mapping[str, int] = {
    "float64": 0x7FF85A5A5A5A5A5A,
    "float32": 0x7FDA5A5A,
    "bfloat16": 0x7FDA,
    "float16": 0x7EDA,
    "float8_e4m3fn": 0x7F,
    "float8_e5m2": 0x7F,
}
#: of whole numbers all bits: -1, or the largest
_WHOLE = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
#: what makes fresh memory in torch, below autograd
_FRESH = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")


def unwritten(x: np.ndarray) -> np.ndarray:
    """Which elements still hold what fresh memory is filled with; of dtypes whose NaN is any NaN, and of whole numbers,
    nobody knows: none.
    """
    if (bits := _NAN.get(x.dtype.name)) is None or x.dtype.itemsize == 1:
        return np.zeros(x.shape, bool)
    return x.view(f"i{x.dtype.itemsize}") == bits


@dataclass(eq=False)
class _Guarded:
    """An array with what lies before and behind it."""

    name: str
    sides: tuple[Any, Any]  #: as whole numbers
    fill: int

    @property
    def broken(self) -> bool:
        """Whether somebody wrote there."""
        return not all(bool((side == self.fill).all()) for side in self.sides)


@dataclass(eq=False)
class Memory:
    """What one call was given, and what it allocated by numpy.empty and torch.empty and their like."""

    blocks: list[_Guarded] = field(default_factory=list)

    def placed(self, name: str, x: Any) -> Any:
        """A copy of an array of NumPy or torch, of the same strides where these are positive, between guards; what is
        neither, and what cannot be filled, as it is.
        """
        if isinstance(x, np.ndarray):
            return self._numpy(name, x)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(x, torch.Tensor):
            return self._torch(torch, name, x.detach(), copied=True)
        return x

    def handed_over(self, name: str, x: np.ndarray, arrays: str, device: str) -> Any:
        """A NumPy array as one of another library, between guards where they can stand."""
        return self.placed(name, x if arrays == "numpy" else handed_over(x.copy(), arrays, device))

    @contextmanager
    def fresh(self, function: Callable[..., Any]) -> Iterator[None]:
        """Within it fresh memory is filled, and stands between guards: torch's, and NumPy's of the file of a function
        and of those beside it that it imports, but for files that numba compiles, which knows NumPy's own alone.
        """
        torch = sys.modules.get("torch")
        with self._numpy_filled(function), nullcontext() if torch is None else _filled(torch, self):
            yield

    @property
    def broken(self) -> list[str]:
        """Names of arrays before or behind which somebody wrote."""
        return list(dict.fromkeys(block.name for block in self.blocks if block.broken))

    def _numpy(self, name: str, x: np.ndarray) -> np.ndarray:
        if (fill := _fill(x.dtype.name)) is None:
            return x.copy()
        plain = all(step > 0 and step % x.itemsize == 0 for step, n in zip(x.strides, x.shape, strict=True) if n > 1)
        x = x if plain and x.size else np.array(x, order="K")
        n = 1 + sum((n - 1) * step // x.itemsize for n, step in zip(x.shape, x.strides, strict=True)) if x.size else 0
        flat, inner = self._filled(name, n, x.dtype, fill)
        made = np.ndarray(x.shape, x.dtype, flat, inner, x.strides)
        made[...] = x
        return made

    def _filled(self, name: str, n: int, dtype: Any, fill: int) -> tuple[np.ndarray, int]:
        """Filled memory for n elements of `dtype` between guards, and the byte at which they begin."""
        size = np.dtype(dtype).itemsize
        raw = np.empty(n * size + 2 * GUARD + 64, np.uint8)
        skipped = -raw.ctypes.data % 64
        whole = raw[skipped : skipped + n * size + 2 * GUARD].view(f"i{size}")
        side = GUARD // size
        whole.fill(_guard(fill))
        whole[side : side + n] = fill
        self.blocks.append(_Guarded(name, (whole[:side], whole[side + n :]), _guard(fill)))
        return whole, GUARD

    @contextmanager
    def _numpy_filled(self, function: Callable[..., Any]) -> Iterator[None]:
        def filled(made: np.ndarray) -> np.ndarray:
            if type(made) is not np.ndarray or (fill := _fill(made.dtype.name)) is None or not made.size:
                return made
            flat, inner = self._filled("memory that it allocated", made.size, made.dtype, fill)
            return np.ndarray(made.shape, made.dtype, flat, inner, made.strides)

        def empty(*args: Any, **kwargs: Any) -> Any:
            return filled(np.empty(*args, **kwargs))

        def empty_like(*args: Any, **kwargs: Any) -> Any:
            return filled(np.empty_like(*args, **kwargs))

        own: dict[int, Any] = {id(np.empty): empty, id(np.empty_like): empty_like}
        own[id(np)] = _Numpy(empty=empty, empty_like=empty_like)
        before = [(space, name, x) for space in _namespaces(function) for name, x in [*space.items()] if id(x) in own]
        try:
            for space, name, x in before:
                space[name] = own[id(x)]
            yield
        finally:
            for space, name, x in before:
                space[name] = x

    def _torch(self, torch: ModuleType, name: str, x: Any, *, copied: bool) -> Any:
        dtype = str(x.dtype).removeprefix("torch.")
        strided = x.layout is torch.strided and not x.is_complex() and type(x) in (torch.Tensor, torch.nn.Parameter)
        if (fill := _fill(dtype)) is None or not strided or x.device.type == "meta" or not x.numel():
            return x.clone() if copied else x
        size, steps = x.element_size(), x.stride()
        n = 1 + sum((n - 1) * step for n, step in zip(x.shape, steps, strict=True))
        side = GUARD // size
        flat = torch.empty(n + 2 * side, dtype=x.dtype, device=x.device)
        bits = flat.view(getattr(torch, f"int{8 * size}"))
        bits.fill_(_guard(fill))
        bits[side : side + n] = fill
        self.blocks.append(_Guarded(name, (bits[:side], bits[side + n :]), _guard(fill)))
        made = flat.as_strided(x.shape, steps, side)
        if copied:  # an expanded one is written once
            spread = tuple(slice(0, 1) if step == 0 else slice(None) for step in steps)
            made[spread].copy_(x[spread])
        return _at_its_beginning(torch, made)


def _at_its_beginning(torch: ModuleType, x: Any) -> Any:
    """The same memory as a tensor that begins where its storage does: autograd strides over fresh memory from there."""
    try:
        return torch.from_dlpack(x)
    except (BufferError, RuntimeError, TypeError):  # of a dtype that DLPack does not have
        return x


def _guard(fill: int) -> int:
    """What guards are filled with, where fresh memory is with `fill`."""
    return fill if fill in (-1, _NAN["float8_e5m2"]) else fill + 1


class _Numpy(ModuleType):
    """NumPy with some functions in the place of its own."""

    def __init__(self, **own: Any) -> None:
        super().__init__("numpy")
        self.__dict__.update(own)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


def _namespaces(function: Callable[..., Any]) -> list[dict[str, Any]]:
    """The globals of a function and of what lies beside its file, without those in which numba compiles something."""
    function = inspect.unwrap(getattr(function, "func", function))  # of a functools.partial
    function = function if isinstance(function, FunctionType) else type(function).__call__
    space = getattr(function, "__globals__", {})
    held = [cell.cell_contents for cell in getattr(function, "__closure__", None) or () if _is_full(cell)]
    folder = os.path.dirname(space.get("__file__") or "")
    beside = [x for x in space.values() if isinstance(x, ModuleType) and folder == os.path.dirname(_file_of(x))]
    found = [space, *(vars(one) for one in beside if folder)]
    return [] if any(_of_numba(x) for one in (*(y.values() for y in found), held) for x in one) else found


def _is_full(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # of a name that is not assigned yet
        return False


def _file_of(module: ModuleType) -> str:
    return getattr(module, "__file__", None) or "/"


def _of_numba(x: Any) -> bool:
    return (x.__name__ if isinstance(x, ModuleType) else type(x).__module__).partition(".")[0] == "numba"


def _fill(dtype: str) -> int | None:
    return -1 if dtype in _WHOLE else _NAN.get(dtype)


@contextmanager
def _filled(torch: ModuleType, memory: Memory) -> Iterator[None]:
    """Within it torch's fresh memory is `memory`'s."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Filling(TorchDispatchMode):
        """Fresh tensors between guards."""

        supports_higher_order_operators = True  # such as flex_attention, which are no overloads

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            """False: what keeps torch.compile out of a mode imports all of it, 2 s at the first operation."""
            return False

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            """True: what torch.compile made of a function runs as it does without the mode. Else its operations would
            run one by one, and other numbers would be judged.
            """
            return True

        def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = f(*args, **(kwargs or {}))
            name = getattr(getattr(f, "overloadpacket", None), "__name__", "")
            if name in _FRESH and isinstance(made, torch.Tensor):
                return memory._torch(torch, "memory that it allocated", made, copied=False)
            return made

    with Filling():
        yield
