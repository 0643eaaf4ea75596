import ml_dtypes
import numpy as np
import pytest
from numba import cuda, float32

WEIGHTS = np.random.default_rng(0).standard_normal((4, 3))
TRANSPOSED = WEIGHTS.T  # not contiguous
HALVES = np.arange(6).astype(np.float16)
BRAINS = (np.arange(6) / 8).astype(ml_dtypes.bfloat16)
SLOPES = np.array([2, -3, 5], np.int8)
EMPTY, COMPLEX, HUGE = np.zeros(0), np.zeros(2, complex), np.zeros(8193)


@cuda.jit(device=True)
def slope(i):
    return cuda.const.array_like(SLOPES)[i]


def reads(out):
    table = cuda.const.array_like(WEIGHTS)
    t = cuda.threadIdx.x
    out[0, t] = table[t // 3, t % 3]
    cuda.syncthreads()
    out[1, t] = table[3 - t // 3, t % 3] + table.shape[0]
    out[2, t] = cuda.const.array_like(TRANSPOSED)[t % 3, t // 3]
    out[3, t] = float32(cuda.const.array_like(HALVES)[t % 6]) + float32(cuda.const.array_like(BRAINS)[t % 6])
    out[4, t] = slope(t % 3)
    out[5, t] = WEIGHTS[t // 3, t % 3]  # numba.cuda makes a constant of it, too


def test_constant_arrays_have_the_values_of_the_namespace(emulate):
    out = np.zeros((6, 12))
    emulate(reads, 1, 12, out)
    index = np.arange(12)
    both = HALVES.astype(float) + BRAINS.astype(float)
    expected = [WEIGHTS.ravel(), WEIGHTS[::-1].ravel() + 4, WEIGHTS.ravel(), both[index % 6], SLOPES[index % 3]]
    np.testing.assert_array_equal(out, [*expected, WEIGHTS.ravel()])


def made(values):
    table = np.array(values)

    def kernel(out):
        out[cuda.threadIdx.x] = cuda.const.array_like(table)[cuda.threadIdx.x]

    return kernel


def test_a_kernel_with_other_constants_is_another_kernel(emulate):
    for values in ([1.0, 2.0], [3.0, 4.0]):
        out = np.zeros(2)
        emulate(made(values), 1, 2, out)
        assert out.tolist() == values


def writes(out):
    table = cuda.const.array_like(WEIGHTS)
    table[0, 0] = out[0]


def test_a_constant_array_cannot_be_written(error_of):
    text = error_of(writes, 1, 1, (np.zeros(1),))
    assert text.startswith("+2: numba cannot compile writes for these arguments\n") and "readonly" in text


def of_an_argument(out):
    out[0] = cuda.const.array_like(out)[0]


def of_nothing(out):
    out[0] = cuda.const.array_like(EMPTY)[0]


def of_complex(out):
    out[0] = cuda.const.array_like(COMPLEX)[0].real


def too_large(out):
    out[0] = cuda.const.array_like(HUGE)[0]


@pytest.mark.parametrize(
    ("kernel", "what"),
    [
        (of_an_argument, "cuda.const.array_like(out)"),
        (of_nothing, "EMPTY, an array of shape (0,) and dtype float64"),
        (of_complex, "COMPLEX, an array of shape (2,) and dtype complex128"),
        (too_large, "HUGE: 65544 bytes exceed constant memory (65536)"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_cannot_be_a_constant_array_is_refused(error_of, kernel, what):
    assert error_of(kernel) == f"+1: the emulator does not support {what}"
