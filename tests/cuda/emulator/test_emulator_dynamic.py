import ml_dtypes
import numpy as np
import pytest
from numba import cuda, float32, float64, int32, uint8, uint32

from workbench.cuda import emulator
from workbench.cuda.emulator.memory import Memory


def reverses(x, out, extents):
    before = cuda.shared.array(3, uint8)  # static memory lies before dynamic memory
    s = cuda.shared.array(0, float32)
    n = x.shape[1]
    t = cuda.threadIdx.x
    head, tail = s[:n], s[n:]
    head[t] = x[cuda.blockIdx.x, t]
    tail[t] = -head[t]
    before[t % 3] = 255
    cuda.syncthreads()
    out[cuda.blockIdx.x, t] = head[n - 1 - t] + 1000 * tail[t]
    extents[0], extents[1] = s.size, s.shape[0]


@pytest.mark.parametrize("workers", [1, 2])
def test_dynamic_shared_memory_has_the_size_of_the_launch(emulate, workers):
    for n in (4, 32):
        x, out, extents = np.arange(1, 4 * n + 1, dtype=np.float32).reshape(4, n), np.zeros((4, n)), np.zeros(2)
        emulate(reverses, 4, n, x, out, extents, dynamic_shared_bytes=8 * n, workers=workers)
        np.testing.assert_array_equal(out, x[:, ::-1] - 1000 * x)
        np.testing.assert_array_equal(extents, 2 * n)


def aliases(out, extents):
    words = cuda.shared.array(shape=0, dtype=uint32)
    numbers = cuda.shared.array((0,), float32)
    octets = cuda.shared.array(0, uint8)
    t = cuda.threadIdx.x
    numbers[t] = t + 1
    cuda.syncthreads()
    if t == 0:
        octets[3] = octets[3] | uint8(128)
    cuda.syncthreads()
    out[t] = words[t]
    extents[0], extents[1], extents[2] = words.size, numbers.size, octets.size


def test_all_dynamic_arrays_start_at_the_same_place(emulate):
    out, extents = np.zeros(4, np.uint32), np.zeros(3, np.int64)
    emulate(aliases, 1, 4, out, extents, dynamic_shared_bytes=18)
    np.testing.assert_array_equal(out.view(np.float32), [-1, 2, 3, 4])
    np.testing.assert_array_equal(extents, [4, 4, 18])


def one_type(out):
    s = cuda.shared.array(0, float32)
    i = cuda.grid(1)
    out[i] = s[cuda.threadIdx.x]
    s[cuda.threadIdx.x] = 0


def several_types(f2, b2, f4, f8, i4):
    s_f2, s_b2 = cuda.shared.array(0, np.float16), cuda.shared.array(0, ml_dtypes.bfloat16)
    s_f4, s_f8 = cuda.shared.array(0, float32), cuda.shared.array(0, float64)
    s_i4 = cuda.shared.array(0, int32)
    t = cuda.threadIdx.x
    f2[t], b2[t], f4[t], f8[t], i4[t] = s_f2[t], s_b2[t], s_f4[t], s_f8[t], s_i4[t]


def test_dynamic_memory_is_poisoned_before_every_block(emulate):
    out = np.zeros(8, np.float32)
    emulate(one_type, 4, 2, out, dynamic_shared_bytes=8)
    np.testing.assert_array_equal(out.view(np.uint32), 0x7FC0DEAD)
    arrays = [np.zeros(2, dtype) for dtype in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.int32)]
    emulate(several_types, 1, 2, *arrays, dynamic_shared_bytes=16)
    for array in arrays[:4]:
        assert np.isnan(array.astype(np.float64)).all()
    np.testing.assert_array_equal(arrays[4], -1)


@cuda.jit(device=True)
def doubled():
    s = cuda.shared.array(0, float32)
    mine = s[cuda.threadIdx.x ^ 1]
    cuda.syncthreads()
    s[cuda.threadIdx.x] = 2 * mine


def calls_device(out):
    s = cuda.shared.array(0, float32)
    s[cuda.threadIdx.x] = cuda.threadIdx.x
    cuda.syncthreads()
    doubled()
    out[cuda.threadIdx.x] = s[cuda.threadIdx.x]


def test_a_device_function_declares_the_same_memory(emulate):
    out = np.zeros(4)
    emulate(calls_device, 1, 4, out, dynamic_shared_bytes=16)
    np.testing.assert_array_equal(out, [2, 0, 6, 4])


def static_and_dynamic(out):
    s = cuda.shared.array(1024, float32)
    d = cuda.shared.array(0, float32)
    s[0] = 1
    d[d.size - 1] = 2
    out[0] = s[0] + d[d.size - 1]


def test_a_block_has_227_kib(emulate, error_of):
    out = np.zeros(1)
    most = 227 * 1024 - 4096
    emulate(static_and_dynamic, 1, 1, out, dynamic_shared_bytes=most)
    assert out[0] == 3
    message = "a block has at most 232448 bytes of shared memory, not 4096 static and 228356 dynamic ones"
    assert error_of(static_and_dynamic, 1, 1, (out,), dynamic_shared_bytes=most + 4) == message


@pytest.mark.parametrize("given", [{}, {"dynamic_shared_bytes": 0}], ids=["nothing", "zero"])
def test_a_kernel_that_uses_dynamic_memory_must_be_given_some(error_of, given):
    message = "one_type uses dynamic shared memory; pass its size as dynamic_shared_bytes"
    assert error_of(one_type, 1, 1, (np.zeros(1, np.float32),), **given) == message


@pytest.mark.parametrize("size", [-1, 2.5], ids=str)
def test_a_size_is_a_number_of_bytes(error_of, size):
    message = f"dynamic_shared_bytes must be a number of bytes, not {size}"
    assert error_of(one_type, 1, 1, (np.zeros(1, np.float32),), dynamic_shared_bytes=size) == message


def mirrors(x, out):
    before = cuda.shared.array(3, uint8)
    s = cuda.shared.array(0, float32)
    t = cuda.threadIdx.x
    before[t % 3] = 1
    s[t] = x[t]
    cuda.syncthreads()
    out[t] = s[s.size - 1 - t]


def mirrors_wrongly(x, out):
    s = cuda.shared.array(0, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    out[t] = s[s.size - 1 - t] + s[s.size]


def test_dynamic_memory_is_watched():
    found = {}
    for kernel in (mirrors, mirrors_wrongly):
        memory, x = Memory(), np.arange(8, dtype=np.float32)
        emulated = emulator.compile(emulator.source_of(kernel), watched=True)
        emulated(1, 3 if kernel is mirrors else 8, (x, np.zeros(8)), dynamic_shared_bytes=32, memory=memory)
        line = kernel.__code__.co_firstlineno
        found[kernel] = {(f.kind, f.array, f.index, f.line - line) for f in memory.findings}
    unwritten = ("uninitialised-read", "s", (7,), 7)
    assert found[mirrors] == {unwritten}
    kinds = {(kind, array) for kind, array, _, _ in found[mirrors_wrongly]}
    assert kinds == {("uninitialised-read", "s"), ("out-of-bounds", "s"), ("race", "s")}
    assert ("out-of-bounds", "s", (8,), 4) in found[mirrors_wrongly]
