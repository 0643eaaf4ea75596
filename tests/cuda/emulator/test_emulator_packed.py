"""Conversions between packed formats, wide loads and stores, and ex2.approx on the emulator."""

import math

import ml_dtypes
import numpy as np
import pytest
from numba import cuda, float32, uint32

from workbench.cuda import ptx

PAIRS = {
    "cvt_f16x2_f32": (np.float16, np.uint16),
    "cvt_bf16x2_f32": (ml_dtypes.bfloat16, np.uint16),
    "cvt_e4m3x2_f32": (ml_dtypes.float8_e4m3fn, np.uint8),
    "cvt_e5m2x2_f32": (ml_dtypes.float8_e5m2, np.uint8),
}


def packs(convert):
    def kernel(x, out):
        i = cuda.grid(1)
        if 2 * i < x.size:
            out[i] = convert(x[2 * i], x[2 * i + 1])

    return kernel


def awkward(dtype):
    """Every number of the dtype, the midpoints between neighbours and what lies just beside them, and random bits."""
    bits = np.arange(1 << 8 * np.dtype(dtype).itemsize).astype(f"u{np.dtype(dtype).itemsize}")
    with np.errstate(invalid="ignore"):
        every = bits.view(dtype).astype(np.float32)
    finite = np.sort(every[np.isfinite(every)]).astype(np.float64)
    middles = ((finite[1:] + finite[:-1]) / 2).astype(np.float32)
    beside = [np.nextafter(middles, np.float32(side)) for side in (-np.inf, np.inf)]
    random = np.random.default_rng(0).integers(0, 1 << 32, 10_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    x = np.concatenate([every, middles, *beside, random, np.float32([np.inf, -np.inf, np.nan, 1e30, -1e30])])
    return x[: x.size // 2 * 2]


@pytest.mark.campaign(but=2)
@pytest.mark.parametrize("name", PAIRS)
def test_packing_rounds_to_nearest_even_and_fp8_saturates(emulate, name):
    dtype, word = PAIRS[name]
    x = awkward(dtype)
    out = np.zeros(x.size // 2, f"u{2 * np.dtype(word).itemsize}")
    emulate(packs(ptx.OPERATIONS[name]), -(-out.size // 1024), 1024, x, out)
    found = out.view(word)  # the lower one first
    largest = float(ml_dtypes.finfo(dtype).max)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = (np.clip(x, -largest, largest) if word is np.uint8 else x).astype(dtype)
    number = ~np.isnan(x)
    np.testing.assert_array_equal(found[number], expected.view(word)[number])
    assert np.all(found[~number] == np.iinfo(word).max >> 1) and np.count_nonzero(~number)


def unpacks_halves(x, out):
    i = cuda.grid(1)
    out[2 * i], out[2 * i + 1] = ptx.cvt_f32_f16x2(x[i])


def test_every_half_as_float32(emulate):
    bits = np.arange(1 << 16, dtype=np.uint16)
    out = np.zeros(bits.size, np.float32)
    emulate(unpacks_halves, bits.size // 2048, 1024, bits.view(np.uint32), out)
    np.testing.assert_array_equal(out, bits.view(np.float16).astype(np.float32))


def unpacks_fp8(convert):
    def kernel(x, out):
        i = cuda.grid(1)
        out[i] = convert(x[i])

    return kernel


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [("cvt_f16x2_e4m3x2", ml_dtypes.float8_e4m3fn), ("cvt_f16x2_e5m2x2", ml_dtypes.float8_e5m2)],
    ids=["e4m3", "e5m2"],
)
def test_every_fp8_as_float16(emulate, name, dtype):
    bits = np.arange(1 << 8, dtype=np.uint8)
    out = np.zeros(bits.size // 2, np.uint32)
    emulate(unpacks_fp8(ptx.OPERATIONS[name]), 1, out.size, bits.view(np.uint16), out)
    np.testing.assert_array_equal(out.view(np.float16), bits.view(dtype).astype(np.float16))


def powers(x, out):
    i = cuda.grid(1)
    out[i] = ptx.ex2_approx(x[i])


def test_ex2_flushes_subnormals(emulate):
    x = np.float32([0, -0.0, 1, -1, 0.5, 127.5, 128, -126, -126.5, -149, 1e-40, np.inf, -np.inf, np.nan])
    out = np.zeros_like(x)
    emulate(powers, 1, x.size, x, out)
    expected = [1, 1, 2, 0.5, math.sqrt(2), 2**127.5, np.inf, 2.0**-126, 0, 0, 1, np.inf, 0, np.nan]
    np.testing.assert_array_equal(out, np.float32(expected))


def tangents(x, out):
    i = cuda.grid(1)
    out[i] = ptx.tanh_approx(x[i])


def test_tanh_is_off_by_up_to_2_to_the_minus_11(emulate):
    """As much as PTX allows, and not much less: a kernel that is right here has not relied on more."""
    x = np.float32([0, -0.0, np.inf, -np.inf, np.nan, 1e-40])
    out = np.zeros_like(x)
    emulate(tangents, 1, x.size, x, out)
    np.testing.assert_array_equal(out[:5], np.float32([0, -0.0, 1, -1, np.nan]))
    assert list(np.signbit(out[:2])) == [False, True] and abs(out[5] - x[5]) <= 2.0**-137  # 11 bits of a subnormal
    x = np.linspace(-10, 10, 4000, dtype=np.float32)
    out = np.zeros_like(x)
    emulate(tangents, 4, 1000, x, out)
    exact = np.tanh(x.astype(np.float64))
    relative = np.abs(out - exact) / np.abs(exact)
    assert np.all(relative <= 2**-11) and relative.max() > 2**-12 and np.all(np.abs(out) <= 1)


def wide(x, y, out):
    s = cuda.shared.array((32, 4), float32, alignment=16)
    t = cuda.threadIdx.x
    ptx.st_v4_f32(s, (t, 0), ptx.ld_v4_f32(x, 4 * t))
    cuda.syncwarp()
    low, high = ptx.ld_v2_u32(s, (31 - t, 2))
    ptx.st_v2_u32(out, (t, 2), (low, high))
    ptx.st_cs_v2_f32(out, (t, 0), ptx.ld_v2_f32(s, (31 - t, 0)))
    a, b, c, d = ptx.ld_v4_u32(y, 8 * t)  # eight 16-bit elements
    ptx.st_v4_u32(out, (t, 4), (d, c, b, uint32(a + 1)))


def test_wide_loads_and_stores(emulate):
    x = np.arange(128, dtype=np.float32)
    y = np.random.default_rng(0).integers(0, 2**16, 256).astype(np.uint16)
    out = np.zeros((32, 8), np.uint32)
    emulate(wide, 1, 32, x, y, out)
    np.testing.assert_array_equal(out[:, :4].view(np.float32), x.reshape(32, 4)[::-1])
    words = y.view(np.uint32).reshape(32, 4)[:, ::-1].copy()
    words[:, 3] += 1
    np.testing.assert_array_equal(out[:, 4:], words)


def misaligned_store(out):
    ptx.st_v2_f32(out, 1, (float32(1), float32(2)))


def test_a_misaligned_store_is_an_error(error_of):
    out = np.zeros(4, np.float64).view(np.float32)
    text = error_of(misaligned_store, 1, 1, (out,))
    assert text == "+0: misaligned_store raised an exception in block (0, 0, 0)"
    assert not out.any()


def double_operand(x, out):
    out[0] = ptx.ex2_approx(x[0])


def test_operands_are_never_converted(error_of):
    text = error_of(double_operand, 1, 1, (np.zeros(1), np.zeros(1)))
    assert "ex2_approx: x must be float32, not float64" in text
