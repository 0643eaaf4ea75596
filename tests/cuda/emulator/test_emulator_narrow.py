import ml_dtypes
import numpy as np
import pytest
from numba import cuda, float32, int32, uint16
from numba.core import types
from numba.core.errors import NumbaError
from numba.cuda import libdevice
from numba.cuda import types as cuda_types
from numba.cuda.descriptor import cuda_target

float16 = types.float16
EIGHTH = np.float16(0.125)


def cast(x, narrow, wide):
    i = cuda.grid(1)
    if i < x.size:
        narrow[i] = x[i]
        wide[i] = float32(narrow[i])


def awkward_floats(dtype):
    """Every number of the dtype, the midpoints between neighbours, and float32 of every size and class."""
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype).astype(np.float32)
    finite = np.sort(every[np.isfinite(every)]).astype(np.float64)
    middles = ((finite[1:] + finite[:-1]) / 2).astype(np.float32)
    random = np.random.default_rng(0).integers(0, 1 << 32, 100_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    around = [np.nextafter(middles, np.float32(side)) for side in (-np.inf, np.inf)]
    return np.concatenate([every, middles, *around, random])


@pytest.mark.campaign(but=2)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("source", [np.float32, np.float64], ids=["from float32", "from float64"])
def test_stores_round_to_nearest_even_and_loads_are_exact(emulate, dtype, source):
    with np.errstate(invalid="ignore"):  # signalling NaNs among the bit patterns
        x = awkward_floats(dtype).astype(source)
    if source is np.float64:  # just beside a midpoint: a detour over float32 would round twice
        x = np.concatenate([x, np.nextafter(x, np.inf), np.nextafter(x, -np.inf)])
    narrow, wide = np.zeros(x.size, dtype), np.zeros(x.size, np.float32)
    emulate(cast, -(-x.size // 1024), 1024, x, narrow, wide)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = x.astype(dtype) if source is np.float32 or dtype is np.float16 else once_rounded(x)
    number = ~np.isnan(x)
    np.testing.assert_array_equal(narrow.view(np.uint16)[number], expected.view(np.uint16)[number])
    np.testing.assert_array_equal(wide[number], expected.astype(np.float32)[number])
    assert np.isnan(wide[~number]).all() and (narrow.view(np.uint16)[~number] == 0x7FFF).all()


def once_rounded(x):
    """Bfloat16 of float64 with one rounding: ml_dtypes goes over float32, so round to odd there first."""
    nearest = x.astype(np.float32)
    bits = nearest.view(np.uint32)
    away = np.abs(nearest.astype(np.float64)) > np.abs(x)
    truncated = np.where(away, bits - 1, bits).astype(np.uint32)
    inexact = nearest.astype(np.float64) != x
    return (
        np.where(inexact & ~np.isnan(x), truncated | 1, bits)
        .astype(np.uint32)
        .view(np.float32)
        .astype(ml_dtypes.bfloat16)
    )


def halves_in_tiles(x, out, scale):
    tile = cuda.shared.array(8, float16)
    mine = cuda.local.array(2, np.float16)
    t = cuda.threadIdx.x
    tile[t] = float16(x[t])
    mine[0] = float32(x[t]) * scale + EIGHTH
    mine[1] = tile[t]
    cuda.syncthreads()
    s = float32(tile[7 - t]) * float32(tile[t])
    out[t] = s
    out[8 + t] = mine[0]
    out[16 + t] = mine[1] if t % 2 else mine[0]


def test_half_precision_tiles_in_shared_and_local_memory(emulate):
    x = np.linspace(-3, 3, 8).astype(np.float16)
    out = np.zeros(24, np.float16)
    emulate(halves_in_tiles, 1, 8, x, out, np.float32(1.7))
    wide = x.astype(np.float32)
    scaled = (wide * np.float32(1.7) + np.float32(0.125)).astype(np.float16)
    np.testing.assert_array_equal(out[:8], (wide[::-1] * wide).astype(np.float16))
    np.testing.assert_array_equal(out[8:16], scaled)
    np.testing.assert_array_equal(out[16:], np.where(np.arange(8) % 2, x, scaled))


@cuda.jit(device=True)
def load_bits(bits):
    return libdevice.int_as_float(int32(bits << 16))


@cuda.jit(device=True)
def store_bits(x):
    bits = libdevice.float_as_int(float32(x)) & 0xFFFFFFFF
    return uint16((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)


def doubled(x, out):
    t = cuda.grid(1)
    out[t] = store_bits(load_bits(x[t]) * float32(1.3))


def test_bfloat16_as_bits(emulate):
    x = np.random.default_rng(0).standard_normal(256).astype(ml_dtypes.bfloat16)
    out = np.zeros(256, np.uint16)
    emulate(doubled, 1, 256, x.view(np.uint16), out)
    expected = (x.astype(np.float32) * np.float32(1.3)).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(out, expected.view(np.uint16))


def half_arithmetic(x, y, out):
    i = cuda.grid(1)
    out[0, i] = x[i] + y[i]
    out[1, i] = x[i] - y[i]
    out[2, i] = x[i] * y[i]
    out[3, i] = -x[i] / y[i]
    total = x[i]
    total += y[i]
    out[4, i] = total
    out[5, i] = x[i] * float32(y[i])


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_arithmetic_between_narrow_floats_rounds_each_result(emulate, dtype):
    x, y = np.random.default_rng(0).uniform(1, 100, (2, 1024)).astype(dtype)
    out = np.zeros((6, 1024))
    emulate(half_arithmetic, 1, 1024, x, y, out)
    wide = x.astype(np.float32) * y.astype(np.float32)
    expected = [x + y, x - y, x * y, -x / y, x + y]
    np.testing.assert_array_equal(out, [array.astype(np.float64) for array in (*expected, wide)])
    assert np.count_nonzero(out[2] != out[5]) > 100


def either(x, out, n):
    i = cuda.grid(1)
    out[0, i] = x[i] if i < n else float32(0.1)
    out[1, i] = float32(0.1) if i >= n else x[i]
    out[2, i] = x[i] if i < n else 0.1
    largest = float32(0.1)
    for j in range(i + 1):
        largest = max(largest, x[j])
    out[3, i] = largest


def test_float16_or_a_wider_number_is_the_wider_one_as_on_the_gpu(emulate):
    """numba.cuda's own rule is NumPy's: float32 of float16 and float32, float64 of float16 and a constant."""
    for other, wider in ((cuda_types.float32, cuda_types.float32), (cuda_types.int64, cuda_types.float64)):
        assert cuda_target.typing_context.unify_pairs(cuda_types.float16, other) == wider
    x = np.linspace(0.05, 3, 8).astype(np.float16)
    out = np.zeros((4, 8))
    emulate(either, 1, 8, x, out, np.int32(5))
    single = np.where(np.arange(8) < 5, x, np.float32(0.1))
    double = np.where(np.arange(8) < 5, x.astype(np.float64), 0.1)
    np.testing.assert_array_equal(out, [single, single, double, np.maximum.accumulate(np.maximum(x, np.float32(0.1)))])


def either_of_bfloat16(x, out):
    either = float32(0)
    for i in range(5):  # of x[i] if ... else ..., Python 3.12 makes two stores, each of one type
        out[i] = either
        either = x[i]


def test_bfloat16_or_another_number_is_refused_as_on_the_gpu(error_of):
    with pytest.raises(NumbaError, match="cannot be represented as a NumPy dtype"):
        cuda_target.typing_context.unify_pairs(cuda_types.float32, cuda_types.bfloat16)
    x = np.zeros(8, ml_dtypes.bfloat16)
    assert error_of(either_of_bfloat16, 1, 8, (x, np.zeros(8, np.float32))) == (
        "+2: numba cannot compile either_of_bfloat16 for these arguments\n"
        "Failed in nopython mode pipeline (step: nopython frontend)\n"
        "numba.cuda has no common type for bfloat16 or float32: convert explicitly, e.g. float32(x)"
    )
