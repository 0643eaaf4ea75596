import inspect

import numpy as np
import pytest
from numba import cuda

from workbench.cuda import emulator


@pytest.fixture
def emulate():
    """Compile and launch in one go: emulate(kernel, grid, block, *args, **schedule)."""

    def launch(kernel, grid, block, *args, **schedule):
        emulator.compile(emulator.source_of(kernel))(grid, block, args, **schedule)

    return launch


@pytest.fixture
def error_of():
    """The message of the EmulatorError that a call raises, with line numbers relative to the kernel's def."""

    def message(kernel, *launch, **options):
        function = getattr(kernel, "py_func", kernel)
        with pytest.raises(emulator.EmulatorError) as caught:
            emulated = emulator.compile(emulator.source_of(kernel))
            if launch:
                emulated(*launch, **options)
        text = str(caught.value)
        first = function.__code__.co_firstlineno
        for offset in range(40, -1, -1):
            text = text.replace(f"{function.__code__.co_filename}:{first + offset}:", f"+{offset}:")
        return text

    return message


@pytest.fixture
def launch_on_gpu():
    """Compile for a GPU and launch there: launch_on_gpu(kernel, grid, block, *arrays)."""

    def launch(kernel, grid, block, *arrays):
        on_device = [cuda.to_device(array) for array in arrays]
        cuda.jit(getattr(kernel, "py_func", kernel))[grid, block](*on_device)
        for array, device in zip(arrays, on_device, strict=True):
            device.copy_to_host(array)

    return launch


@pytest.fixture
def found():
    """What a watched launch finds: (kind, array, line of the kernel from its def, other line, index, count).

    Of found(kernel, grid, block, *args), `outputs` are the places of arguments that the host has not written, `once`
    those written once only.
    """

    def findings(kernel, grid, block, *args, outputs=(), once=(), steps=None, **schedule):
        memory = emulator.Memory() if steps is None else emulator.Memory(steps=steps)
        for i in (*outputs, *once):
            memory.add(args[i], written=False, once=i in once)
        emulator.compile(emulator.source_of(kernel), watched=True)(grid, block, args, memory=memory, **schedule)
        first = inspect.getsourcelines(getattr(kernel, "py_func", kernel))[1]
        return [
            (f.kind, f.array, f.line - first, f.other_line and f.other_line - first, f.index, f.count)
            for f in memory.findings
        ]

    return findings


@pytest.fixture
def floats():
    """floats(*shape): 0, 1, 2 and so on."""

    def counted(*shape):
        return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)

    return counted
