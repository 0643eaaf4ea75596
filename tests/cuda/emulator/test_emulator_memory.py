import ml_dtypes
import numpy as np
import pytest
from numba import cuda, float32, float64, int32

ROWS, COLUMNS = 2, 4
SHAPE = (ROWS, COLUMNS)


def through_shared(x, out):
    flat = cuda.shared.array(ROWS * COLUMNS * 2, float32)
    plane = cuda.shared.array(shape=SHAPE, dtype=float64)
    cube = cuda.shared.array((ROWS, COLUMNS // 2, 2), np.int16)
    t = cuda.threadIdx.x
    flat[t] = x[t]
    plane[t // COLUMNS, t % COLUMNS] = 10 * x[t]
    cube[t // 4, t // 2 % 2, t % 2] = -t
    cuda.syncthreads()
    u = 7 - t
    out[t, 0] = flat[u]
    out[t, 1] = plane[u // COLUMNS, u % COLUMNS]
    out[t, 2] = cube[u // 4, u // 2 % 2, u % 2]
    out[t, 3] = cube.shape[0] * 100 + cube.shape[1] * 10 + cube.size


def test_shared_arrays_of_one_to_three_axes_pass_values_between_threads(emulate):
    x, out = np.arange(8, dtype=np.float32), np.zeros((8, 4))
    emulate(through_shared, 1, 8, x, out)
    u = 7 - np.arange(8)
    np.testing.assert_array_equal(out, np.stack([u, 10 * u, -u, 228 + 0 * u], axis=1).astype(float), strict=True)


def unwritten(f2, b2, f4, f8, i4, u1):
    t = cuda.threadIdx.x
    s_f2 = cuda.shared.array(2, np.float16)
    l_b2 = cuda.local.array(2, ml_dtypes.bfloat16)
    s_f4 = cuda.shared.array(2, float32)
    l_f8 = cuda.local.array(2, float64)
    s_i4 = cuda.shared.array(2, int32)
    l_u1 = cuda.local.array(2, np.uint8)
    i = 2 * cuda.blockIdx.x + t
    f2[i], b2[i], f4[i], f8[i], i4[i], u1[i] = s_f2[t], l_b2[t], s_f4[t], l_f8[t], s_i4[t], l_u1[t]
    cuda.syncthreads()
    s_f2[t], l_b2[t], s_f4[t], l_f8[t], s_i4[t], l_u1[t] = 0.0, 0.0, 0.0, 0.0, 0, 0


@pytest.mark.parametrize("workers", [1, 2])
def test_memory_is_poisoned_before_every_block(emulate, workers):
    dtypes = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.int32, np.uint8]
    arrays = [np.zeros(8, dtype) for dtype in dtypes]
    emulate(unwritten, 4, 2, *arrays, workers=workers)
    for array in arrays[:4]:
        assert np.isnan(array.astype(np.float64)).all()
    np.testing.assert_array_equal(arrays[2].view(np.uint32), 0x7FC0DEAD)
    np.testing.assert_array_equal(arrays[4].view(np.uint32), 0xDEADDEAD)
    np.testing.assert_array_equal(arrays[5], 0xAD)


def declared_twice(out):
    t = cuda.threadIdx.x
    scratch = cuda.local.array(2, float32)
    scratch[0] = 1 + t
    scratch[1] = 10 + t
    first = scratch
    scratch = cuda.local.array(2, float32)
    scratch[0] = 5
    cuda.syncthreads()
    out[t] = first[0] + first[1] + scratch[0]


def test_a_name_may_stand_for_two_arrays_and_each_thread_has_its_own(emulate):
    out = np.zeros(4, np.float32)
    emulate(declared_twice, 1, 4, out)
    np.testing.assert_array_equal(out, 16 + 2 * np.arange(4))


@cuda.jit(device=True)
def fill(tile, x, scale=2.0):
    row = tile[cuda.threadIdx.x // 4]
    row[cuda.threadIdx.x % 4] = x[cuda.threadIdx.x] * scale
    cuda.syncthreads()


def passes_arrays(x, out):
    tile = cuda.shared.array(SHAPE, float32)
    fill(tile, x)
    out[cuda.threadIdx.x] = tile[0, 0] + tile[1, 3]
    cuda.syncthreads()
    fill(tile, x, 3.0)
    out[8 + cuda.threadIdx.x] = tile[1, 3]


def test_device_functions_take_shared_arrays_rows_of_them_and_barriers(emulate):
    x, out = np.arange(1, 9, dtype=np.float32), np.zeros(16, np.float32)
    emulate(passes_arrays, 1, 8, x, out)
    np.testing.assert_array_equal(out, [18] * 8 + [24] * 8)
