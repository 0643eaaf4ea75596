"""Conversions of floats to integers, against exact ones."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import cuda, float32, int8, int16, int32, int64, uint8, uint16, uint32, uint64
from numba.cuda import libdevice as lib

from workbench.cuda import emulator

INTEGERS = (np.int32, np.uint32, np.int64, np.uint64)
ROUNDINGS = {"rn": round, "rz": math.trunc, "ru": math.ceil, "rd": math.floor}  # of a Fraction; round is to even


def of_single(x, i4, u4, i8, u8):
    t = cuda.grid(1)
    a = x[t]
    i4[0, t], i4[1, t], i4[2, t], i4[3, t] = (
        lib.float2int_rn(a),
        lib.float2int_rz(a),
        lib.float2int_ru(a),
        lib.float2int_rd(a),
    )
    u4[0, t], u4[1, t], u4[2, t], u4[3, t] = (
        lib.float2uint_rn(a),
        lib.float2uint_rz(a),
        lib.float2uint_ru(a),
        lib.float2uint_rd(a),
    )
    i8[0, t], i8[1, t], i8[2, t], i8[3, t] = (
        lib.float2ll_rn(a),
        lib.float2ll_rz(a),
        lib.float2ll_ru(a),
        lib.float2ll_rd(a),
    )
    u8[0, t], u8[1, t], u8[2, t], u8[3, t] = (
        lib.float2ull_rn(a),
        lib.float2ull_rz(a),
        lib.float2ull_ru(a),
        lib.float2ull_rd(a),
    )
    i4[4, t], u4[4, t], i8[4, t], u8[4, t] = int32(a), uint32(a), np.int64(a), uint64(a)
    i8[5, t], i8[6, t], i8[7, t], i8[8, t], i8[9, t] = int(a), round(a), math.trunc(a), math.ceil(a), math.floor(a)


def of_double(x, i4, u4, i8, u8):
    t = cuda.grid(1)
    a = x[t]
    i4[0, t], i4[1, t], i4[2, t], i4[3, t] = (
        lib.double2int_rn(a),
        lib.double2int_rz(a),
        lib.double2int_ru(a),
        lib.double2int_rd(a),
    )
    u4[0, t], u4[1, t], u4[2, t], u4[3, t] = (
        lib.double2uint_rn(a),
        lib.double2uint_rz(a),
        lib.double2uint_ru(a),
        lib.double2uint_rd(a),
    )
    i8[0, t], i8[1, t], i8[2, t], i8[3, t] = (
        lib.double2ll_rn(a),
        lib.double2ll_rz(a),
        lib.double2ll_ru(a),
        lib.double2ll_rd(a),
    )
    u8[0, t], u8[1, t], u8[2, t], u8[3, t] = (
        lib.double2ull_rn(a),
        lib.double2ull_rz(a),
        lib.double2ull_ru(a),
        lib.double2ull_rd(a),
    )
    i4[4, t], u4[4, t], i8[4, t], u8[4, t] = int32(a), uint32(a), np.int64(a), uint64(a)
    i8[5, t], i8[6, t], i8[7, t], i8[8, t], i8[9, t] = int(a), round(a), math.trunc(a), math.ceil(a), math.floor(a)


OF_FLOATS = {
    dtype: emulator.compile(emulator.source_of(kernel))
    for dtype, kernel in {np.float32: of_single, np.float64: of_double}.items()
}


def integer(value, dtype, rounding, source):
    """What cvt gives, as the PTX manual has it."""
    info = np.iinfo(dtype)
    if math.isnan(value):
        if source is np.float32 and info.bits == 32:
            return 0
        return info.min if info.kind == "i" else 1 << 63 if info.bits == 64 else 1 << 31
    if math.isinf(value):
        return info.max if value > 0 else info.min
    return min(max(ROUNDINGS[rounding](Fraction(value)), info.min), info.max)


def check(source, values):
    x = np.array(values, source)
    out = [np.full((10, len(x)), 7, dtype) for dtype in INTEGERS]
    OF_FLOATS[source](len(x), 1, [x, *out])
    rows = [*ROUNDINGS, "rz"]
    for array, dtype in zip(out, INTEGERS, strict=True):
        for row, rounding in enumerate(rows + ["rz", "rn", "rz", "ru", "rd"] * (dtype is np.int64)):
            right = [integer(float(value), dtype, rounding, source) for value in x]
            assert array[row].tolist() == right, f"{dtype.__name__} row {row} ({rounding}) of {values}"


ENDS = [0.0, 0.5, 1.0, 1.5, 2.5, 126.5, 127.5, 2.0**23, 2.0**31, 2.0**32, 2.0**52, 2.0**63, 2.0**64, 1e38]


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("source", [np.float32, np.float64], ids=["float32", "float64"])
def test_floats_out_of_range_give_the_nearest_end(source):
    near = [float(np.nextafter(source(end), source(side))) for end in ENDS for side in (-math.inf, math.inf)]
    values = [*ENDS, *near, math.inf, math.nan]
    check(source, values + [-value for value in values])


@given(st.lists(st.floats(width=32) | st.floats(-(2.0**33), 2.0**33, width=32), min_size=1, max_size=20))
def test_drawn_float32(values):
    check(np.float32, values)


@pytest.mark.campaign
@given(st.lists(st.floats() | st.floats(-(2.0**65), 2.0**65), min_size=1, max_size=20))
def test_drawn_float64(values):
    check(np.float64, values)


def narrow_integers(x, i1, u1, i2, u2, logical):
    t = cuda.grid(1)
    i1[t], u1[t], i2[t], u2[t], logical[t] = int8(x[t]), uint8(x[t]), int16(x[t]), uint16(x[t]), bool(x[t])


def test_eight_bits_are_the_low_ones_of_sixteen(emulate):
    x = np.array([3.7, -3.7, 200, -200, 300, 4e4, -4e4, 7e4, math.nan], np.float32)
    i1, u1, i2, u2, logical = (np.zeros(9, dtype) for dtype in (np.int8, np.uint8, np.int16, np.uint16, bool))
    emulate(narrow_integers, 1, 9, x, i1, u1, i2, u2, logical)
    assert i2.tolist() == [3, -3, 200, -200, 300, 32767, -32768, 32767, 0]
    assert u2.tolist() == [3, 0, 200, 0, 300, 40000, 0, 65535, 0]
    np.testing.assert_array_equal(i1, i2.astype(np.int8))
    np.testing.assert_array_equal(u1, u2.astype(np.uint8))
    assert logical.all()


def test_numba_cuda_compiles_the_same_saturating_conversions():
    ptx, _ = cuda.compile_ptx(of_casts, (float32[::1], int8[::1], int32[::1], int64[::1]), cc=(9, 0))
    found = [line.split()[0] for line in ptx.splitlines() if line.strip().startswith("cvt.")]
    assert [name for name in found if name.startswith("cvt.rzi") or name.startswith("cvt.rni")] == [
        "cvt.rzi.s16.f32",
        "cvt.rzi.s32.f32",
        "cvt.rzi.s64.f32",
        "cvt.rni.s64.f64",
    ]


def of_casts(x, i1, i4, i8):
    i1[0], i4[0], i8[0], i8[1] = int8(x[0]), int32(x[1]), int(x[2]), round(x[3])


def of_others(h, b, i, out):
    out[0], out[1], out[2] = int32(h[0]), int32(b[0]), uint8(i[0])
    out[3], out[4], out[5] = int(i[1]), round(i[1]), round(2.345, 2) * 100
    out[6], out[7] = math.floor(i[1]), int32(True)


def test_narrow_floats_and_integers_convert_too(emulate):
    h, b, i = np.array([-np.inf], np.float16), np.array([2e38], ml_dtypes.bfloat16), np.array([259, -5])
    out = np.zeros(8)
    emulate(of_others, 1, 1, h, b, i, out)
    np.testing.assert_array_equal(out, [-(2**31), 2**31 - 1, 3, -5, -5, round(2.345, 2) * 100, -5, 1])


@pytest.mark.gpu
def test_a_gpu_gives_the_same_integers(emulate, launch_on_gpu):
    near = [float(np.nextafter(np.float32(end), np.float32(side))) for end in ENDS for side in (-math.inf, math.inf)]
    values = np.array([*ENDS, *near, math.inf, math.nan])
    values = np.concatenate([values, -values])
    for kernel, source in ((of_single, np.float32), (of_double, np.float64), (narrow_integers, np.float32)):
        dtypes = (np.int8, np.uint8, np.int16, np.uint16, bool) if kernel is narrow_integers else INTEGERS
        shape = len(values) if kernel is narrow_integers else (10, len(values))
        here, there = ([np.zeros(shape, dtype) for dtype in dtypes] for _ in range(2))
        emulate(kernel, len(values), 1, values.astype(source), *here)
        launch_on_gpu(kernel, len(values), 1, values.astype(source), *there)
        for ours, theirs in zip(here, there, strict=True):
            np.testing.assert_array_equal(ours, theirs)
