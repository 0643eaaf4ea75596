"""cp.async on the emulator: nothing arrives before it is waited for, groups arrive in order, each thread waits for its own."""

import numpy as np
import pytest
from numba import cuda, float32, uint16

from workbench.cuda import ptx
from workbench.cuda.emulator.copies import CAPACITY


def copies_in_groups(x, out):
    s = cuda.shared.array((3, 4), float32, alignment=16)
    t = cuda.threadIdx.x
    for i in range(3):
        s[i, t] = -1
    cuda.syncthreads()
    if t == 0:
        ptx.cp_async_16(s, (0, 0), x, (0, 0))
        ptx.cp_async_commit()
        ptx.cp_async_8(s, (1, 2), x, (1, 2))
        ptx.cp_async_4(s, (1, 0), x, (1, 0))
        ptx.cp_async_commit()
        ptx.cp_async_16(s, (2, 0), x, (2, 0))
    cuda.syncthreads()
    for i in range(3):
        out[0, i, t] = s[i, t]
    cuda.syncthreads()
    ptx.cp_async_wait_group(1)
    cuda.syncthreads()
    for i in range(3):
        out[1, i, t] = s[i, t]
    cuda.syncthreads()
    ptx.cp_async_wait_group(0)
    cuda.syncthreads()
    for i in range(3):
        out[2, i, t] = s[i, t]
    cuda.syncthreads()
    ptx.cp_async_wait_all()
    cuda.syncthreads()
    for i in range(3):
        out[3, i, t] = s[i, t]


@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_copies_arrive_in_groups_when_waited_for(emulate, order):
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    out = np.zeros((4, 3, 4), np.float32)
    emulate(copies_in_groups, 1, 4, x, out, order=order)
    nothing = np.full((3, 4), -1, np.float32)
    first, second, third = nothing.copy(), nothing.copy(), nothing.copy()
    first[0] = second[0] = third[0] = x[0]
    second[1, [0, 2, 3]] = third[1, [0, 2, 3]] = x[1, [0, 2, 3]]
    third[2] = x[2]
    np.testing.assert_array_equal(out, [nothing, first, second, third])


def one_waits(x, out):
    s = cuda.shared.array((2, 4), float32, alignment=16)
    t = cuda.threadIdx.x
    for i in range(4):
        s[t, i] = -1
    ptx.cp_async_16(s, (t, 0), x, 4 * t)
    ptx.cp_async_commit()
    if t == 0:
        ptx.cp_async_wait_group(0)
    cuda.syncthreads()
    for i in range(4):
        out[t, i] = s[t, i]


def test_a_thread_waits_for_its_own_copies_only(emulate):
    x = np.arange(8, dtype=np.float32)
    out = np.zeros((2, 4), np.float32)
    emulate(one_waits, 1, 2, x, out)
    np.testing.assert_array_equal(out, [[0, 1, 2, 3], [-1] * 4])


def left_over(x, out):
    s = cuda.shared.array(4, float32, alignment=16)
    s[0] = -1
    if cuda.blockIdx.x == 0:
        ptx.cp_async_16(s, 0, x, 0)
    ptx.cp_async_wait_group(0)
    if cuda.blockIdx.x == 1:
        ptx.cp_async_wait_all()
    out[cuda.blockIdx.x] = s[0]


def test_a_block_inherits_no_copies(emulate):
    out = np.zeros(2, np.float32)
    emulate(left_over, 2, 1, np.ones(4, np.float32), out, workers=1)
    np.testing.assert_array_equal(out, [-1, -1])


def in_a_loop(x, out, rounds):
    s = cuda.shared.array((2, 32, 8), uint16, alignment=16)
    t = cuda.threadIdx.x
    ptx.cp_async_16(s, (0, t, 0), x, (0, t, 0))
    ptx.cp_async_commit()
    for i in range(rounds):
        if i + 1 < rounds:
            ptx.cp_async_16(s, ((i + 1) % 2, t, 0), x, (i + 1, t, 0))
        ptx.cp_async_commit()
        ptx.cp_async_wait_group(1)
        cuda.syncthreads()
        for j in range(8):
            out[i, t, j] = s[i % 2, 31 - t, j]
        cuda.syncthreads()


@pytest.mark.parametrize("order", ["ascending", "descending", "shuffle"])
def test_two_buffers_in_turn(emulate, order):
    """More copies than a queue holds, of which two are under way at a time."""
    rounds = CAPACITY + 7
    x = np.random.default_rng(0).integers(0, 2**16, (rounds, 32, 8)).astype(np.uint16)
    out = np.zeros_like(x)
    emulate(in_a_loop, 1, 32, x, out, np.int32(rounds), order=order)
    np.testing.assert_array_equal(out, x[:, ::-1])


def many_copies(x, out):
    s = cuda.shared.array(100, float32, alignment=16)
    for i in range(100):
        s[i] = -1
    for i in range(100):
        ptx.cp_async_4(s, i, x, i)
    for i in range(100):
        out[0, i] = s[i]
    ptx.cp_async_wait_all()
    for i in range(100):
        out[1, i] = s[i]


def test_a_full_queue_makes_its_oldest_copies_early(emulate):
    """As PTX allows; at most CAPACITY copies are held back."""
    x = np.arange(100, dtype=np.float32)
    out = np.zeros((2, 100), np.float32)
    emulate(many_copies, 1, 1, x, out)
    np.testing.assert_array_equal(out[0], np.where(x < 100 - CAPACITY, x, -1))
    np.testing.assert_array_equal(out[1], x)


def misaligned(x):
    s = cuda.shared.array(8, float32, alignment=16)
    ptx.cp_async_16(s, 0, x, 1)


def test_a_misaligned_copy_is_an_error(error_of):
    buffer = np.zeros(12, np.float32)
    start = -(buffer.ctypes.data // 4) % 4
    text = error_of(misaligned, 1, 1, (buffer[start : start + 8],))
    assert text == "+0: misaligned raised an exception in block (0, 0, 0)"


def waits_for_some(n):
    ptx.cp_async_wait_group(n)


def test_a_group_count_is_a_constant(error_of):
    assert error_of(waits_for_some) == (
        "+1: the emulator does not support a group count that is not constant: ptx.cp_async_wait_group(n)"
    )


def wrong_index(x):
    s = cuda.shared.array((8, 8), float32, alignment=16)
    ptx.cp_async_16(s, 0, x, 0)


def test_an_index_has_as_many_numbers_as_the_array_axes(error_of):
    assert "is not an index of" in error_of(wrong_index, 1, 1, (np.zeros(8, np.float32),))
