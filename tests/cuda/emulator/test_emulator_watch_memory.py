"""Watched micro-kernels that read what nobody wrote, leave their arrays, or write twice."""

import inspect

import numpy as np
from numba import cuda, float32, int32

from workbench.cuda import emulator

# ---- uninitialised reads


def reads_unwritten(x, out):
    s = cuda.shared.array(32, float32)
    mine = cuda.local.array((2, 2), int32)
    t = cuda.threadIdx.x
    if t != 5:
        s[t] = x[t]
    mine[1, 1] = 1
    cuda.syncthreads()
    out[cuda.blockIdx.x, t] = s[t] + mine[1, 0]


def test_unwritten_shared_and_local_memory_of_every_block(found, floats):
    assert found(reads_unwritten, 2, 32, floats(32), np.zeros((2, 32), np.float32)) == [
        ("uninitialised-read", "mine", 8, None, (1, 0), 64),
        ("uninitialised-read", "s", 8, None, (5,), 2),
    ]


@cuda.jit(device=True)
def last(x):
    return x[x.shape[0] - 1]


def reads_several_at_one_place(out):
    one = cuda.shared.array(8, float32)
    other = cuda.shared.array(4, float32)
    mine = cuda.local.array(2, float32)
    dynamic = cuda.shared.array(0, float32)
    if cuda.threadIdx.x < 0:  # never
        one[7] = other[3] = mine[1] = dynamic[5] = 1
    out[cuda.threadIdx.x] = last(one) + last(one) + last(other) + last(mine) + last(dynamic)


def test_arrays_that_a_function_reads_at_one_place_are_told_apart():
    memory, out = emulator.Memory(), np.zeros(3, np.float32)
    kernel = emulator.compile(emulator.source_of(reads_several_at_one_place), watched=True)
    kernel(1, 3, (out,), dynamic_shared_bytes=24, memory=memory)
    assert [(f.kind, f.array, f.index, f.count) for f in memory.findings] == [
        ("uninitialised-read", "one", (7,), 6),
        ("uninitialised-read", "other", (3,), 3),
        ("uninitialised-read", "mine", (1,), 3),
        ("uninitialised-read", "dynamic", (5,), 3),
    ]
    assert {f.line for f in memory.findings} == {inspect.getsourcelines(last.py_func)[1] + 2}


def writes_half(out):
    t = cuda.threadIdx.x
    if t % 2 == 0:
        out[t] = t


def reads_all(x, out):
    out[cuda.threadIdx.x] = x[cuda.threadIdx.x]


def test_what_a_launch_left_unwritten_is_found_when_the_next_one_reads_it():
    memory, partial, out = emulator.Memory(), np.zeros(8, np.float32), np.zeros(8, np.float32)
    for array in (partial, out):
        memory.add(array, written=False)
    first = emulator.compile(emulator.source_of(writes_half), watched=True)
    first(1, 8, (partial,), memory=memory)
    assert memory.findings == []
    emulator.compile(emulator.source_of(reads_all), watched=True)(1, 8, (partial, out), memory=memory)
    assert [(f.kind, f.array, f.index, f.count) for f in memory.findings] == [("uninitialised-read", "x", (1,), 4)]
    unwritten = memory.unwritten(first.program, "out", partial)
    assert (unwritten.kind, unwritten.index, unwritten.count) == ("unwritten-output", (1,), 4)
    assert unwritten.line == inspect.getsourcelines(writes_half)[1] + 3
    assert memory.unwritten(first.program, "out", out) is None


def test_an_array_nobody_spoke_of_counts_as_written(found, floats):
    assert found(reads_all, 1, 8, floats(8), np.zeros(8, np.float32)) == []


# ---- bounds


def beyond(x, out, i):
    out[0] = x[i, 1] + 1


def writes_beyond(x, out, i):
    out[i] = x[0, 0]


def row_beyond(x, out, i):
    row = x[i]
    out[0] = row[0]


def adds_beyond(x, out, i):
    cuda.atomic.add(out, i, x[0, 0])


def shared_beyond(x, out, i):
    s = cuda.shared.array((2, 3), float32)
    t = cuda.shared.array((2, 3), float32)
    t[0, 0] = x[0, 0]
    s[1, i] = t[0, 0]


def test_indices_out_of_bounds_are_reported_and_not_touched(found, floats):
    x, out = floats(2, 3), np.zeros(2, np.float32)
    assert found(beyond, 1, 1, x, out, 2) == [("out-of-bounds", "x", 1, None, (2, 1), 1)]
    assert out[0] == 1, "the read gives 0"
    assert found(beyond, 1, 1, x, out, -3) == [("out-of-bounds", "x", 1, None, (-3, 1), 1)]
    assert found(beyond, 1, 1, x, out, -1) == [], "counts from the end, on a GPU too"
    assert out[0] == x[1, 1] + 1
    assert found(writes_beyond, 1, 1, x, out[:1], 1) == [("out-of-bounds", "out", 1, None, (1,), 1)]
    assert out[1] == 0
    assert found(row_beyond, 1, 1, x, out, 5) == [("out-of-bounds", "x", 1, None, (5,), 1)]
    assert found(adds_beyond, 1, 1, x, out, 2) == [("out-of-bounds", "out", 1, None, (2,), 1)]
    assert found(shared_beyond, 1, 1, x, out, 3) == [("out-of-bounds", "s", 4, None, (1, 3), 1)]


# ---- second writes


def writes_twice(out, n):
    for i in range(n):
        out[0] = i


def test_second_write_where_one_is_allowed(found):
    out = np.zeros(1, np.float32)
    assert found(writes_twice, 1, 1, out, 1, once=[0]) == []
    assert found(writes_twice, 1, 1, out, 3, once=[0]) == [("second-write", "out", 2, 2, (0,), 2)]
    assert found(writes_twice, 1, 1, out, 3) == []
