import math

import numpy as np
from numba import cuda, float32, int32, uint32, uint64
from numba.cuda import libdevice

from workbench.cuda.emulator.libdevice import FUNCTIONS

NEG_INF = np.float32(-np.inf)
THIRD = np.float32(1 / 3)


def float32_chain(x, y, z, out):
    t = cuda.grid(1)
    out[0, t] = x[t] * y[t] + z[t]
    out[1, t] = cuda.fma(x[t], y[t], z[t])
    out[2, t] = x[t] * THIRD - y[t] / z[t]
    out[3, t] = math.exp(x[t]) + math.sqrt(abs(y[t])) * math.log(abs(z[t]))
    acc = float32(0)
    for i in range(8):
        acc += x[t] * y[i]
    out[4, t] = acc


def test_float32_stays_float32_without_contraction(emulate):
    x, y, z = np.random.default_rng(0).standard_normal((3, 1024)).astype(np.float32)
    out = np.zeros((5, 1024))  # float64, so that a wider result would show
    emulate(float32_chain, 4, 256, x, y, z, out)
    wide = x.astype(np.float64)
    fused = (wide * y + z).astype(np.float32)  # one rounding: the product and, here, the sum are exact in float64
    np.testing.assert_array_equal(out[0], x * y + z)
    np.testing.assert_array_equal(out[1], fused)
    assert np.count_nonzero(out[0] != out[1]) > 100
    np.testing.assert_array_equal(out[2], x * THIRD - y / z)
    assert (out[3] == out[3].astype(np.float32)).all()
    acc = np.zeros(1024, np.float32)
    for i in range(8):
        acc = acc + x * y[i]
    np.testing.assert_array_equal(out[4], acc)


def extremes(a, b, out, ints):
    t = cuda.grid(1)
    out[0, t] = max(a[t], b[t])
    out[1, t] = min(a[t], b[t])
    out[2, t] = max(NEG_INF, a[t], b[t])
    out[3, t] = libdevice.fmaxf(a[t], b[t])
    ints[t] = max(int32(t), 3) * 10 + min(t, 5)


def test_max_and_min_drop_nan_in_either_operand(emulate):
    nan = math.nan
    a, b = np.array([[nan, 1, nan, 2, -1], [1, nan, nan, 3, -2]], np.float32)
    out, ints = np.zeros((4, 5)), np.zeros(5, np.int64)
    emulate(extremes, 1, 5, a, b, out, ints)
    np.testing.assert_array_equal(out[0], np.fmax(a, b))
    np.testing.assert_array_equal(out[1], np.fmin(a, b))
    np.testing.assert_array_equal(out[2], [1, 1, -np.inf, 3, -1])
    np.testing.assert_array_equal(out[3], np.fmax(a, b))
    np.testing.assert_array_equal(ints, [30, 31, 32, 33, 44])


def bits(x, out):
    t = cuda.grid(1)
    out[0, t] = cuda.popc(x[t])
    out[1, t] = cuda.clz(uint32(x[t]))
    out[2, t] = cuda.ffs(uint64(x[t]))
    out[3, t] = cuda.brev(uint32(x[t]))
    out[4, t] = cuda.selp(x[t] > 5, 1, 2)


def test_bit_functions(emulate):
    x = np.array([0, 1, 6, 0x80000000, 0xFFFFFFFF], np.int64)
    out = np.full((5, 5), -1)
    emulate(bits, 1, 5, x, out)
    np.testing.assert_array_equal(out[0], [0, 1, 2, 1, 32])
    np.testing.assert_array_equal(out[1], [32, 31, 29, 0, 0])
    np.testing.assert_array_equal(out[2], [0, 1, 2, 32, 1])
    np.testing.assert_array_equal(out[3], [0, 0x80000000, 0x60000000, 1, 0xFFFFFFFF])
    np.testing.assert_array_equal(out[4], [2, 2, 1, 1, 1])


def roundings(x, out):
    t = cuda.grid(1)
    out[0, t] = libdevice.floorf(x[t])
    out[1, t] = libdevice.truncf(x[t])
    out[2, t] = libdevice.rintf(x[t])
    out[3, t] = libdevice.roundf(x[t])
    out[4, t] = libdevice.saturatef(x[t])
    out[5, t] = math.fmod(x[t], float32(0.75))


def test_roundings_of_huge_and_special_floats(emulate):
    x = np.array([-2.5, -0.5, 0.5, 1.5, 1e30, -np.inf, np.nan], np.float32)
    out = np.zeros((6, 7))
    emulate(roundings, 1, 7, x, out)
    with np.errstate(invalid="ignore"):
        away = np.copysign(np.floor(np.abs(x) + np.float32(0.5)), x)
        unit = np.where(np.isnan(x), 0, np.clip(x, 0, 1))
        remainder = np.fmod(x, np.float32(0.75))
    np.testing.assert_array_equal(out, [np.floor(x), np.trunc(x), np.rint(x), away, unit, remainder])


def test_every_libdevice_model_has_a_function_of_numba_behind_it():
    assert FUNCTIONS.keys() <= vars(libdevice).keys()


def device_library(x, y, out, ints):
    t = cuda.grid(1)
    a, b = x[t], y[t]
    out[0, t] = libdevice.fmul_rn(a, b)
    out[1, t] = libdevice.fadd_rn(a, b)
    out[2, t] = libdevice.fsub_rn(a, b)
    out[3, t] = libdevice.fdiv_rn(a, b)
    out[4, t] = libdevice.fmaf_rn(a, b, a)
    out[5, t] = libdevice.exp2f(a)
    out[6, t] = libdevice.log2f(abs(b))
    out[7, t] = cuda.libdevice.sqrtf(libdevice.fabsf(a))
    out[8, t] = libdevice.rsqrtf(abs(b))
    out[9, t] = libdevice.int_as_float(libdevice.float_as_int(a))
    out[10, t] = libdevice.fast_expf(a)
    out[11, t] = libdevice.expf(a) + libdevice.logf(abs(b))
    ints[0, t] = libdevice.float_as_int(a)
    ints[1, t] = libdevice.float2int_rn(b * float32(1e9))
    ints[2, t] = libdevice.float2half_rn(a)


def test_libdevice_gives_float32(emulate):
    x, y = np.random.default_rng(0).normal(0, 4, (2, 256)).astype(np.float32)
    out, ints = np.zeros((12, 256)), np.zeros((3, 256), np.int64)
    emulate(device_library, 1, 256, x, y, out, ints)
    assert (out == out.astype(np.float32)).all()
    np.testing.assert_array_equal(out[:4], [x * y, x + y, x - y, x / y])
    wide, other = x.astype(np.float64), np.abs(y.astype(np.float64))
    np.testing.assert_array_equal(out[4], (wide * y + x).astype(np.float32))
    np.testing.assert_allclose(out[5], np.exp2(wide), rtol=2**-23)
    np.testing.assert_allclose(out[6], np.log2(other), rtol=2**-23)
    np.testing.assert_array_equal(out[7], np.sqrt(np.abs(x)))
    np.testing.assert_allclose(out[8], other**-0.5, rtol=2**-23)
    np.testing.assert_array_equal(out[9], x)
    np.testing.assert_allclose(out[10], np.exp(wide), rtol=20 * 2**-23)  # x * log2(e) is rounded before ex2
    np.testing.assert_allclose(out[11], np.exp(wide) + np.log(other), rtol=2**-21, atol=2**-22)
    np.testing.assert_array_equal(ints[0], x.view(np.int32))
    saturated = np.clip(np.rint((y * np.float32(1e9)).astype(np.float64)), -(2**31), 2**31 - 1)
    np.testing.assert_array_equal(ints[1], saturated)
    np.testing.assert_array_equal(ints[2], x.astype(np.float16).view(np.uint16))
