import ml_dtypes
import numpy as np
import pytest
from numba import cuda, float32, int32, uint16
from numba.core import types
from numba.cuda import libdevice

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


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_arithmetic_between_narrow_floats_rounds_each_result(emulate, dtype):
    x, y = np.random.default_rng(0).uniform(1, 100, (2, 1024)).astype(dtype)
    out = np.zeros((6, 1024))
    emulate(half_arithmetic, 1, 1024, x, y, out)
    wide = x.astype(np.float32) * y.astype(np.float32)
    expected = [x + y, x - y, x * y, -x / y, x + y]
    np.testing.assert_array_equal(out, [array.astype(np.float64) for array in (*expected, wide)])
    assert np.count_nonzero(out[2] != out[5]) > 100
