"""Launches of kernels of numba.cuda by a program, which are sent where they are to run."""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import numpy as np
from numba import cuda
from numba.cuda import api
from numba.cuda.cudadrv import devicearray, devices, driver, nvvm
from numba.cuda.dispatcher import CUDADispatcher, ForAll

from workbench.cuda import emulator
from workbench.cuda.host.arguments import Typed, as_device_array, copied, handed, noted, noted_device
from workbench.cuda.host.context import Context
from workbench.cuda.host.memory import at, seen
from workbench.cuda.host.watch import Watch
from workbench.cuda.quiet import quiet
from workbench.refusal import Refusal

#: numba.cuda's own, whatever stands in its place
_CALL = CUDADispatcher.call
#: `numpy.dtype.isbuiltin` of a dtype that another package made
USER_DEFINED = 2
#: threads of a block of `kernel.forall(n)`, which numba.cuda asks the driver for
THREADS_OF_FORALL = 256
#: dispatcher of a kernel -> function that was launched in its place -> what launches that; and on the emulator
_MADE: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()
_TYPED: WeakKeyDictionary[Any, dict[Any, Typed]] = WeakKeyDictionary()

#: launch(dispatcher, arguments, configured)
Launch = Callable[[CUDADispatcher, Sequence[Any], Any], None]


@contextmanager
def sent_to(launch: Launch) -> Iterator[None]:
    """Within it `kernel[grid, block](*arguments)` calls `launch`."""
    with quiet(), patch.object(CUDADispatcher, "call", lambda self, args, configured: launch(self, args, configured)):
        yield


def on_device(x: np.ndarray) -> Any:
    """A copy of an array where kernels reach it."""
    return cuda.to_device(x)


def from_device(x: Any) -> np.ndarray:
    """A copy of an array of the device, once all that was launched has finished."""
    cuda.synchronize()
    return x.copy_to_host()


def on_gpu(dispatcher: CUDADispatcher, function: Any, arguments: Sequence[Any], more: Sequence[Any], to: Any) -> None:
    """Launch `function` in the place of a kernel's own, with `more` arguments behind its own."""
    if function is dispatcher.py_func:
        _CALL(dispatcher, arguments, to)
        return
    made = _MADE.setdefault(dispatcher, {})
    if function not in made:
        made[function] = CUDADispatcher(function, targetoptions=dispatcher.targetoptions)
        for declared in dispatcher.overloads if not dispatcher._can_compile else ():
            made[function].compile((*declared, *(x._numba_type_ for x in more)))
    _CALL(made[function], (*arguments, *more), to)


@dataclass
class OnEmulator:
    """Launches on the emulator."""

    watch: Watch | None = None
    watched_by: Callable[[], str] = str  #: gives the command that tells more of threads that wait for ever; empty: none
    context: Context = field(default_factory=Context)

    @contextmanager
    def standing_in(self) -> Iterator[None]:
        """Within it all that a program asks numba.cuda for a GPU is answered by the host."""
        runtime, array = devices._Runtime, devicearray.DeviceNDArray
        with ExitStack() as stack:
            for owner, name, stands_in in (
                (runtime, "ensure_context", lambda *_: nullcontext()),
                (runtime, "get_or_create_context", lambda *_: self.context),
                (driver.Driver, "is_available", True),
                (nvvm, "is_available", lambda: True),
                (driver, "host_to_device", self._host_to_device),
                (driver, "device_to_host", self._device_to_host),
                (driver, "device_to_device", self._device_to_device),
                (array, "_do_setitem", lambda x, key, value, stream=0: self._set_item(x, key, value)),
                (CUDADispatcher, "compile", noted),
                (CUDADispatcher, "compile_device", noted_device),
                (ForAll, "__call__", _for_all),
                (api, "as_cuda_array", self._as_cuda_array),
                (cuda, "as_cuda_array", self._as_cuda_array),
                (cuda, "event_elapsed_time", lambda start, end: start.elapsed_time(end)),
            ):
                stack.enter_context(patch.object(owner, name, stands_in))
            yield

    def __call__(
        self, dispatcher: CUDADispatcher, function: Any, arguments: Sequence[Any], more: Sequence[Any], to: Any
    ) -> None:
        """As of `on_gpu`. Refusal for what the emulator does not run; `watch.GivenUp` as of `Watch.launch`."""
        made = _TYPED.setdefault(dispatcher, {})
        if function not in made:
            made[function] = Typed.of(dispatcher, function, [x._numba_type_ for x in more])
        pairs = [copied(x, self.context) for x in arguments]
        there = (*(x for x, _ in pairs), *more)
        found = made[function].types_of(there, to)
        try:
            kernel = made[function].emulated(watched=self.watch is not None)
            self._launch(kernel, there, found, to)
        except emulator.EmulatorError as error:
            watched_by = self.watched_by() if isinstance(error, emulator.Stuck) else ""
            more = f"; `{watched_by}` shows more" if watched_by else ""
            raise Refusal(f"{function.__name__} does not run on the emulator{more}\n{error}") from None
        for _, back in pairs:
            if back is not None:
                back()

    def _launch(self, kernel: emulator.Emulated, there: Sequence[Any], found: Sequence[Any], to: Any) -> None:
        """Run a kernel on arguments of known types."""
        program = kernel.program
        if program.dynamic and not to.sharedmem:
            raise Refusal(
                f"{program.location}: {program.name} uses dynamic shared memory but is launched without its size: "
                f"{program.name}[grid, block, stream, bytes]"
            )
        if len(there) != len(program.parameters):
            raise Refusal(
                f"{program.location}: {program.name} takes {len(program.parameters)} arguments "
                f"({', '.join(program.parameters)}); it is launched with {len(there)}"
            )
        named = zip(program.parameters, there, found, strict=True)
        values = [handed(x, of, name, program.location) for name, x, of in named]
        if self.watch is not None:
            self.watch.launch(kernel, to.griddim, to.blockdim, values, to.sharedmem, self.context.memory)
        else:
            kernel(to.griddim, to.blockdim, values, dynamic_shared_bytes=to.sharedmem)

    def _host_to_device(self, dst: Any, src: Any, size: int, stream: Any = 0) -> None:
        _move(dst.device_ctypes_pointer.value, _of_host(src, readonly=True), size)
        self._wrote(seen(dst))

    def _device_to_host(self, dst: Any, src: Any, size: int, stream: Any = 0) -> None:
        address = src.device_ctypes_pointer.value
        _move(_of_host(dst), address, size)
        if self.watch is not None:
            self.watch.reads(seen(src) if hasattr(src, "shape") else at(address, dst.dtype))

    def _device_to_device(self, dst: Any, src: Any, size: int, stream: Any = 0) -> None:
        _move(dst.device_ctypes_pointer.value, src.device_ctypes_pointer.value, size)
        self._wrote(seen(dst))

    def _set_item(self, array: Any, key: Any, value: Any) -> None:
        keys = key if isinstance(key, tuple) else (key,)
        part = seen(array)[keys if Ellipsis in keys else (*keys, ...)]
        part[...] = seen(value) if driver.is_device_memory(value) else value
        self._wrote(part)

    def _wrote(self, x: np.ndarray) -> None:
        self.context.memory.wrote(x)
        if self.watch is not None:
            self.watch.wrote(x)

    def _as_cuda_array(self, x: Any, sync: bool = True) -> Any:
        found = x if driver.is_device_memory(x) else as_device_array(x, self.context)
        if found is None:
            raise TypeError("*obj* doesn't implement the cuda array interface.")  # numba's own words
        return found


def _of_host(x: Any, *, readonly: bool = False) -> int:
    """The address of an array of the host, of whose dtype NumPy has no buffer if it is of ml_dtypes: its bits have."""
    known = not isinstance(x, np.ndarray) or x.dtype.isbuiltin != USER_DEFINED
    address: int = driver.host_pointer(x if known else x.view(f"u{x.itemsize}"), readonly=readonly)
    return address


def _move(target: int, source: int, size: int) -> None:
    ctypes.memmove(target, source, size)


def _for_all(configured: ForAll, *arguments: Any) -> None:
    """A launch of `kernel.forall(n)`."""
    if configured.ntasks:
        threads = configured.thread_per_block or THREADS_OF_FORALL
        grid = -(-configured.ntasks // threads)
        configured.dispatcher[grid, threads, configured.stream, configured.sharedmem](*arguments)
