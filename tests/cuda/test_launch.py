"""Launches by the driver: what it is given, and when numba.cuda cannot be asked."""

import ctypes
import struct
from types import SimpleNamespace

import numpy as np
import pytest
from cuda.bindings import driver

from workbench import Unavailable
from workbench.cuda import launch
from workbench.cuda.launch import Array, bound, cell, load, parameters
from workbench.cuda.tensor_maps import TensorMap

BUILD = SimpleNamespace(source=SimpleNamespace(name="forward"), parameters=("x", "scale", "k"), maps=())


class Status(SimpleNamespace):
    def __bool__(self):
        return self.name != "CUDA_SUCCESS"


def on_gpu(address, *shape, dtype=np.float16):
    """An array of numba.cuda as far as a launch looks at it."""
    host = np.zeros(shape, dtype)
    pointer = SimpleNamespace(value=address)
    return SimpleNamespace(device_ctypes_pointer=pointer, shape=shape, strides=host.strides, dtype=host.dtype)


def at(place, kind):
    return kind.from_address(place).value


def test_an_array_is_13_cells():
    x = Array(4096, (2, 3, 5, 8), (240, 80, 16, 2), 2)
    assert x.cells == [0, 0, 240, 2, 4096, 2, 3, 5, 8, 240, 80, 16, 2]
    assert x.cells[launch.ADDRESS_CELL] == x.address


@pytest.mark.parametrize("value", [np.float32(-1.5), np.float32(np.inf), np.float32(1e-42)])
def test_a_float_is_its_bits(value):
    assert struct.pack("<Q", cell(value))[:4] == value.tobytes()


@pytest.mark.parametrize(
    ("value", "kind"), [(-7, ctypes.c_int32), (-7, ctypes.c_int64), (True, ctypes.c_bool), (3, ctypes.c_int64)]
)
def test_an_int_is_itself_in_any_width(value, kind):
    made = parameters([cell(value)])
    assert at(at(made.at, ctypes.c_void_p), kind) == value


def test_maps_are_behind_the_cells():
    room = ctypes.create_string_buffer(b"map", 128)
    made = parameters([5, 6], [SimpleNamespace(getPtr=lambda: ctypes.addressof(room))])
    places = [made.addresses[i] for i in range(3)]
    assert [at(place, ctypes.c_int64) for place in places[:2]] == [5, 6]
    assert ctypes.string_at(places[2], 3) == b"map"


def test_a_launch_is_written_once_and_sent_to_a_stream(monkeypatch):
    sent = []

    def record(function, *rest):
        *size, shared, stream, where, extra = rest
        cells = [at(where + 8 * i, ctypes.c_void_p) for i in range(2)]
        sent.append((int(function), size, shared, stream, extra, at(cells[1], ctypes.c_int64)))
        return (Status(name="CUDA_SUCCESS"),)

    monkeypatch.setattr(driver, "cuLaunchKernel", record)
    arguments = (on_gpu(64, 1, 2, 4, 8), np.float32(2), on_gpu(128, 1, 2, 4, 8))
    send = bound(BUILD, SimpleNamespace(handle=9), 1024, (3, 2, 1), 128, arguments)
    send(0), send(7)
    assert sent == [(9, [3, 2, 1, 128, 1, 1], 1024, stream, 0, 0) for stream in (0, 7)]


def test_maps_are_of_the_arrays_that_the_kernel_names(monkeypatch):
    asked = []
    monkeypatch.setattr(launch, "encoded", lambda *given: asked.append(given) or SimpleNamespace(getPtr=lambda: 8))
    build = SimpleNamespace(**{**vars(BUILD), "maps": (TensorMap("k", 64), TensorMap("x", 32))})
    bound(
        build,
        SimpleNamespace(handle=9),
        0,
        (1, 1, 1),
        32,
        (on_gpu(64, 1, 1, 4, 8), np.float32(2), on_gpu(128, 1, 1, 9, 8)),
    )
    assert [(address, shape, rows) for address, shape, _, _, rows in asked] == [
        (128, (1, 1, 9, 8), 64),
        (64, (1, 1, 4, 8), 32),
    ]


def test_what_the_driver_answers_is_said(monkeypatch):
    monkeypatch.setattr(driver, "cuLaunchKernel", lambda *_: (Status(name="CUDA_ERROR_INVALID_VALUE"),))
    send = bound(BUILD, SimpleNamespace(handle=9), 0, (3, 2, 1), 128, ())
    with pytest.raises(
        RuntimeError, match=r"^the driver returned CUDA_ERROR_INVALID_VALUE for forward, grid \(3, 2, 1\)$"
    ):
        send(0)


@pytest.mark.parametrize("dynamic", [0, 1024, 200000])
def test_dynamic_shared_memory_is_asked_for(monkeypatch, dynamic):
    """Even what is less than 48 KiB: the static memory of the kernel comes to it."""
    asked = []
    monkeypatch.setattr(launch, "cubin", lambda *_: SimpleNamespace(load=lambda: SimpleNamespace(handle=3)))
    monkeypatch.setattr(driver, "cuKernelSetAttribute", lambda *x: asked.append(x[1]) or (Status(name="CUDA_SUCCESS"),))
    load(BUILD, None, None, dynamic, 0, (8, 0))
    assert asked == [dynamic] * (dynamic > 0)


def test_kernels_for_hopper_are_refused_elsewhere():
    build = SimpleNamespace(**{**vars(BUILD), "maps": (TensorMap("k", 64),)})
    with pytest.raises(Unavailable) as refused:
        load(build, None, None, 0, 0, (8, 0))
    assert str(refused.value) == (
        "forward needs a GPU of compute capability 9.0 (Hopper); this one has 8.0. `--backend emulator` runs it on the CPU"
    )
