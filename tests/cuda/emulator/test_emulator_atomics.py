import numpy as np
import pytest
from numba import cuda, int64, uint32


def tallies(total, extremes, bits, ring, place):
    counter = cuda.shared.array(1, uint32)
    t = cuda.threadIdx.x
    if t == 0:
        counter[0] = 0
    cuda.syncthreads()
    place[cuda.grid(1)] = cuda.atomic.add(counter, 0, 1)
    cuda.atomic.add(total, 0, 0.5)
    cuda.atomic.sub(total, 1, 2)
    cuda.atomic.max(extremes, (0, 1), t)
    cuda.atomic.min(extremes, (0, 0), -t)
    cuda.atomic.or_(bits, 0, 1 << (t % 8))
    cuda.atomic.xor(bits, 1, t)
    cuda.atomic.and_(bits, 2, ~(1 << (t % 8)))
    cuda.atomic.inc(ring, 0, 4)
    cuda.atomic.dec(ring, 1, 4)


def test_atomics_on_global_and_shared_memory(emulate):
    total, extremes = np.zeros(2, np.float32), np.zeros((1, 2), np.int32)
    bits, ring, place = np.array([0, 0, 0xFFF], np.int64), np.zeros(2, np.uint32), np.zeros(24, np.int64)
    emulate(tallies, 2, 12, total, extremes, bits, ring, place)
    np.testing.assert_array_equal(total, [12, -48])
    np.testing.assert_array_equal(extremes, [[-11, 11]])
    np.testing.assert_array_equal(bits, [0xFF, 0, 0xF00])
    np.testing.assert_array_equal(ring, [24 % 5, -24 % 5])
    np.testing.assert_array_equal(place, np.tile(np.arange(12), 2))


def exchanges(x, old):
    old[0] = cuda.atomic.exch(x, 0, 7)
    old[1] = cuda.atomic.cas(x, 1, 11, 12)
    old[2] = cuda.atomic.cas(x, 2, 11, 12)
    old[3] = cuda.atomic.compare_and_swap(x[3:], 13, 14)
    old[4] = cuda.atomic.add(x, int64(4), 1)


def test_exchanges_return_the_old_element(emulate):
    x, old = np.array([10, 11, 12, 13, 14], np.int32), np.zeros(5, np.int64)
    emulate(exchanges, 1, 1, x, old)
    np.testing.assert_array_equal(x, [7, 12, 12, 14, 15])
    np.testing.assert_array_equal(old, [10, 11, 12, 13, 14])


def wraps(x, y):
    t = cuda.threadIdx.x
    cuda.atomic.add(x, 0, 1)
    cuda.atomic.sub(x, 1, 1)
    cuda.atomic.max(y, (0, t), 3.0)
    cuda.atomic.min(y, (1, t), 3.0)
    cuda.atomic.nanmax(y, (2, t), 3.0)
    cuda.atomic.nanmin(y, (3, t), 3.0)
    cuda.atomic.max(y, (4, t), np.nan)
    cuda.atomic.min(y, (5, t), np.nan)
    cuda.atomic.nanmax(y, (6, t), np.nan)
    cuda.atomic.nanmin(y, (7, t), np.nan)


def test_unsigned_atomics_wrap_and_only_nanmax_and_nanmin_replace_a_nan(emulate):
    nan = np.nan
    x, y = np.array([2**32 - 3, 2], np.uint32), np.tile(np.array([nan, 1, 5], np.float32), (8, 1))
    emulate(wraps, 1, 3, x, y)
    np.testing.assert_array_equal(x, [0, 2**32 - 1])
    expected = [[nan, 3, 5], [nan, 1, 3], [3, 3, 5], [3, 1, 3], *[[nan, 1, 5]] * 4]
    np.testing.assert_array_equal(y, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", [wraps, tallies], ids=["wraps", "tallies"])
def test_a_gpu_leaves_the_same(emulate, launch_on_gpu, kernel):
    nan, threads = np.nan, 3 if kernel is wraps else 12

    def arrays():
        if kernel is wraps:
            return [np.array([2**32 - 3, 2], np.uint32), np.tile(np.array([nan, 1, 5], np.float32), (8, 1))]
        numbers = [np.zeros(2, np.float32), np.zeros((1, 2), np.int32), np.array([0, 0, 0xFFF], np.int64)]
        return [*numbers, np.zeros(2, np.uint32), np.zeros(12, np.int64)]

    here, there = arrays(), arrays()
    emulate(kernel, 1, threads, *here)
    launch_on_gpu(kernel, 1, threads, *there)
    for ours, theirs in zip(here, there, strict=True):
        np.testing.assert_array_equal(np.sort(ours.ravel()), np.sort(theirs.ravel()))  # places are in any order


def counts_in_floats(x):
    cuda.atomic.add(x, 0, 1)
    cuda.atomic.inc(x, 0, 4)


def test_atomics_that_numba_cuda_lacks_are_refused(error_of):
    text = error_of(counts_in_floats, 1, 1, (np.zeros(1, np.float32),))
    assert text.startswith("+2: numba cannot compile counts_in_floats for these arguments\n")
    assert "inc" in text


def last_block_adds(partial, ticket, out):
    s = cuda.shared.array(1, int64)
    if cuda.threadIdx.x == 0:
        partial[cuda.blockIdx.x] = cuda.blockIdx.x + 1
        cuda.threadfence()
        s[0] = cuda.atomic.add(ticket, 0, 1)
    cuda.syncthreads()
    if s[0] == cuda.gridDim.x - 1 and cuda.threadIdx.x == 0:
        for i in range(cuda.gridDim.x):
            out[0] += partial[i]


def test_the_last_block_sees_what_the_others_wrote(emulate):
    for order in ("ascending", "descending", "shuffle"):
        out = np.zeros(1, np.int64)
        emulate(last_block_adds, 9, 2, np.zeros(9, np.int64), np.zeros(1, np.int64), out, order=order)
        assert out[0] == 45
