import numpy as np
import pytest
from numba import cuda, float32

from workbench.cuda import emulator


def block_votes(x, out):
    t = cuda.threadIdx.x
    out[t, 0] = cuda.syncthreads_count(x[t] > 2)
    out[t, 1] = cuda.syncthreads_and(x[t] >= 0)
    out[t, 2] = cuda.syncthreads_and(x[t] > 2)
    out[t, 3] = cuda.syncthreads_or(x[t] > 2)
    out[t, 4] = cuda.syncthreads_or(x[t] < 0) + 10 * cuda.syncthreads_count(x[t])


def test_block_barriers_that_vote(emulate):
    x, out = np.arange(40) % 5, np.full((40, 5), -1)
    emulate(block_votes, 1, 40, x, out)
    np.testing.assert_array_equal(out, [[16, 1, 0, 1, 320]] * 40)


def exits_early(n, out):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    if t >= n:
        return
    s[t] = t
    cuda.syncthreads()
    out[t] = s[n - 1 - t]
    out[64 + t] = cuda.syncthreads_count(1)


def test_exited_threads_take_no_part_in_a_block_barrier(emulate):
    out = np.zeros(128, np.float32)
    emulate(exits_early, 1, 64, 40, out)
    np.testing.assert_array_equal(out[:40], np.arange(40)[::-1])
    np.testing.assert_array_equal(out[64:104], 40)


def barriers_in_loops(x, out):
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    stride = 16
    while stride > 0:
        cuda.syncthreads()
        if t < stride:
            s[t] += s[t + stride]
        stride //= 2
    cuda.syncthreads()
    for i in range(3):
        if i == 1:
            continue
        out[i] = s[0]
        cuda.syncthreads()
        if t == 0:
            s[0] = s[0] + i + 1
        cuda.syncthreads()


@pytest.mark.parametrize("order", ["ascending", "descending", "shuffle"])
def test_barriers_inside_loops_and_branches(emulate, order):
    x, out = np.arange(32, dtype=np.float32), np.zeros(3, np.float32)
    emulate(barriers_in_loops, 1, 32, x, out, order=order)
    np.testing.assert_array_equal(out, [496, 0, 497])


def two_sites(out):
    if cuda.threadIdx.x < 32:
        cuda.syncthreads()
    else:
        cuda.syncthreads()
    out[0] = 1


def test_threads_at_different_barriers_are_an_error(error_of):
    assert error_of(two_sites, (3, 2), 64, (np.zeros(1),)) == (
        "two_sites: divergent barrier in block (0, 0, 0)\n"
        "  +2: cuda.syncthreads reached by threads 0-31\n"
        "  +4: cuda.syncthreads reached by threads 32-63"
    )


def barrier_and_shuffle(out):
    if cuda.threadIdx.x == 0 and cuda.threadIdx.y == 1:
        return
    if cuda.threadIdx.y == 0 and cuda.blockIdx.x == 1:
        cuda.syncthreads()
    elif cuda.blockIdx.x == 1:
        cuda.syncthreads_or(cuda.threadIdx.x)
    out[0] = 1


def test_the_message_names_block_threads_and_exited_threads(error_of):
    assert error_of(barrier_and_shuffle, 2, (4, 2), (np.zeros(1),)) == (
        "barrier_and_shuffle: divergent barrier in block (1, 0, 0)\n"
        "  +4: cuda.syncthreads reached by threads (0, 0, 0)-(3, 0, 0)\n"
        "  +6: cuda.syncthreads_or reached by threads (1, 1, 0)-(3, 1, 0)\n"
        "  exited: thread (0, 1, 0)"
    )


@cuda.jit(device=True)
def wait_below(limit):
    if cuda.threadIdx.x >= limit:
        cuda.syncwarp()
        return float32(1)
    cuda.syncthreads()
    return float32(2)


def diverges_in_a_device_function(out):
    out[0] = wait_below(16)


def test_the_line_is_that_of_the_device_function(error_of):
    text = error_of(diverges_in_a_device_function, 1, 32, (np.zeros(1),))
    first = wait_below.py_func.__code__.co_firstlineno
    assert text == (
        "diverges_in_a_device_function: lanes of the mask are missing in block (0, 0, 0)\n"
        f"  {__file__}:{first + 3}: cuda.syncwarp reached by threads 16-31 with mask 0xffffffff, without threads 0-15\n"
        f"  {__file__}:{first + 5}: cuda.syncthreads reached by threads 0-15"
    )


def every_odd_block(out):
    if cuda.blockIdx.x % 2 and cuda.threadIdx.x:
        cuda.syncthreads()
    elif cuda.blockIdx.x % 2:
        cuda.syncthreads()


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_first_failing_block_is_named_for_any_number_of_workers(workers):
    emulated = emulator.compile(emulator.source_of(every_odd_block))
    for order, block in [("ascending", 1), ("descending", 7)]:
        with pytest.raises(emulator.EmulatorError, match=rf"divergent barrier in block \({block}, 0, 0\)"):
            emulated(8, 2, (np.zeros(1),), order=order, workers=workers)
