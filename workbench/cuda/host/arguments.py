"""Arguments of a launch: on the device and back, as numba.cuda copies them, with the types that it gives them."""

import ast
import ctypes
import sys
from collections import ChainMap
from collections.abc import Callable, Sequence
from inspect import getclosurevars
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numba.cuda import types
from numba.cuda.args import ArgHint, In, Out
from numba.cuda.cext import _dispatcher
from numba.cuda.core import sigutils
from numba.cuda.cudadrv import devicearray
from numba.cuda.cudadrv.driver import is_device_memory
from numba.cuda.dispatcher import _LAUNCH_CONFIG_KW, CUDADispatcher
from numba.cuda.typing import signature

from workbench.cuda import emulator
from workbench.cuda.host import TREE
from workbench.cuda.host.context import Context
from workbench.cuda.host.memory import Pinned, pointer, seen
from workbench.refusal import Refusal


def copied(x: Any, context: Context) -> tuple[Any, Callable[[], None] | None]:
    """An argument on the device, and what brings it back behind the launch; None of what stays as it is.

    An array of NumPy is copied there and back, one in `cuda.In` there alone, one in `cuda.Out` back alone. A tensor of
    torch in the host's memory is a tensor on the device. Refusal for an array on a GPU.
    """
    value = x.value if isinstance(x, ArgHint) else x
    if is_device_memory(value):
        if not (isinstance(value.gpu_data, Pinned) or getattr(value.gpu_data, "context", None) is context):
            raise _elsewhere(value)
        return value, None
    if not isinstance(value, np.ndarray):
        return as_device_array(value, context) or value, None
    there, _ = devicearray.auto_device(value, copy=not isinstance(x, Out) or x.copy_input, user_explicit=True)
    return there, None if isinstance(x, In) or not value.flags.writeable else lambda: _back(there, value)


def _back(there: Any, value: np.ndarray) -> None:
    value[...] = there.copy_to_host()


def as_device_array(x: Any, context: Context) -> Any:
    """A tensor of torch in the host's memory as numba's array on the device, in place; None of anything else. Refusal
    for an array on a GPU.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor) and x.device.type == "cpu":
        x = x.detach()
        bits = x.view(torch.uint16).numpy().view(ml_dtypes.bfloat16) if x.dtype == torch.bfloat16 else x.numpy()
        return devicearray.DeviceNDArray(bits.shape, bits.strides, bits.dtype, gpu_data=pointer(context, bits))
    if hasattr(x, "__cuda_array_interface__"):
        raise _elsewhere(x)
    return None


def _elsewhere(x: Any) -> Refusal:
    kind = type(x)
    return Refusal(
        f"a {kind.__module__}.{kind.__name__} on a GPU was given to a kernel that runs on the emulator, whose arrays "
        "are in the host's memory; `--backend cuda` runs it on the GPU"
    )


class Typed(CUDADispatcher):
    """Chooses the types of arguments as the dispatcher of a kernel does, by its signatures, and compiles nothing."""

    def compile(self, sig: Any) -> Any:
        """Remember the types."""
        return noted(self, sig)

    @classmethod
    def of(cls, dispatcher: CUDADispatcher, function: Any, more: Sequence[Any]) -> "Typed":
        """That of a kernel's `function`, which takes arguments of the types `more` behind those of the kernel."""
        made = cls(function, targetoptions=dispatcher.targetoptions)
        for declared in dispatcher.overloads if not dispatcher._can_compile else ():
            made.compile((*declared, *more))
        made._can_compile = dispatcher._can_compile
        return made

    def types_of(self, arguments: Sequence[Any], configured: Any) -> tuple[Any, ...]:
        """The types of arguments; TypeError where they do not fit the kernel's signatures."""
        found = _dispatcher.Dispatcher._cuda_call(self, *arguments, **{_LAUNCH_CONFIG_KW: configured})
        return tuple(found.signature.args)

    def emulated(self, *, watched: bool) -> emulator.Emulated:
        """The function for the CPU; compiled at its first launch. `emulator.EmulatorError` for what does not run."""
        made = self.__dict__.setdefault("_emulated", {})
        if watched not in made:
            made[watched] = emulator.compile(source_of(self.py_func), watched=watched)
        return made[watched]


def source_of(function: Any) -> emulator.Source:
    """The source of a function; where it was made from a syntax tree, which its file has not, that."""
    if (tree := getattr(function, TREE, None)) is None:
        return emulator.source_of(function)
    names = ChainMap(dict(getclosurevars(function).nonlocals), function.__globals__)
    return emulator.Source(tree.name, ast.Module([tree], []), names, function.__code__.co_filename)


class Noted(NamedTuple):
    """What stands in a dispatcher in the place of a compiled kernel."""

    signature: Any
    objectmode: bool = False


def noted(dispatcher: CUDADispatcher, sig: Any) -> Noted:
    """In the place of `CUDADispatcher.compile`: the types of a signature, as what it compiled."""
    found, _ = sigutils.normalize_signature(sig)
    if found not in dispatcher.overloads:
        dispatcher.add_overload(Noted(signature(types.none, *found)), found)
    return dispatcher.overloads[found]


def noted_device(dispatcher: CUDADispatcher, found: Any, result: Any = types.none) -> Noted:
    """The same in the place of `CUDADispatcher.compile_device`."""
    return dispatcher.overloads.setdefault(found, Noted(signature(result, *found)))


def handed(x: Any, of: Any, name: str, where: str) -> Any:
    """An argument of the type `of` as the emulator takes it. Refusal, which names it, for what it does not take."""
    if isinstance(of, types.Array):
        return seen(x)
    if isinstance(of, types.EnumMember):
        return handed(x.value, of.dtype, name, where)
    if isinstance(of, types.Integer):  # what does not fit is cut off, as numba has it of C
        return np.dtype(str(of)).type(getattr(ctypes, f"c_{of}")(x).value)
    if isinstance(of, types.Float | types.Boolean):
        return np.dtype(str(of)).type(x)
    raise Refusal(f"{where}: the emulator takes only arrays and numbers as kernel arguments; {name} is {x!r} ({of})")
