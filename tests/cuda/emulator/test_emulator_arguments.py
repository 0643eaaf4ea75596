import numpy as np
import pytest
from numba import cuda, float64, uint8

INTEGERS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]


def scalars(f4, f8, i4, integer, real, flag, out):
    out[0] = f4 * f4  # a float32 product, unless the scalar was widened
    out[1] = f8 * f8
    out[2] = i4 // 2
    out[3] = integer // 3
    out[4] = real * real
    out[5] = 10 if flag else 20


def test_scalars_keep_their_types(emulate):
    out = np.zeros(6)
    third = 1 / 3
    emulate(scalars, 1, 1, np.float32(third), np.float64(third), np.int32(-5), 2**40, third, True, out)
    expected = [np.float32(third) * np.float32(third), third * third, -3, 2**40 // 3, third * third, 10]
    assert out.tolist() == [float(x) for x in expected]


def successor(x, out):
    i = cuda.grid(1)
    out[i] = x[i] + 1


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda dtype: dtype.__name__)
def test_integer_arrays(emulate, dtype):
    info = np.iinfo(dtype)
    x, out = np.array([info.min, 0, 3, info.max], dtype), np.zeros(4, dtype)
    emulate(successor, 1, 4, x, out)
    np.testing.assert_array_equal(out, [info.min + 1, 1, 4, info.min])  # the last one wraps


def strided(x, y, out):
    i, j = cuda.grid(2)
    out[i, j] = x[j, i] * 10 + y[i, 0] + out.shape[1] + x.size


def test_arrays_with_any_strides_are_used_in_place(emulate):
    base = np.arange(48, dtype=np.float64).reshape(6, 8)
    x, y = base[::-2, ::3], np.broadcast_to(np.float32(7), (3, 1))
    store = np.zeros((6, 6))
    out = store[::2, ::2].T.T
    emulate(strided, (3, 3), 1, x, y, out)
    np.testing.assert_array_equal(store[::2, ::2], x.T * 10 + 7 + 3 + 9)
    assert np.count_nonzero(store) == 9


def booleans_and_bytes(mask, count):
    i = cuda.grid(1)
    mask[i] = not mask[i]
    if mask[i]:
        cuda.atomic.add(count, 0, float64(uint8(255)))


def test_boolean_arrays(emulate):
    mask, count = np.array([True, False, False]), np.zeros(1)
    emulate(booleans_and_bytes, 3, 1, mask, count)
    assert mask.tolist() == [False, True, True] and count[0] == 510
