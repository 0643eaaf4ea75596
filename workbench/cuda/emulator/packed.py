"""Operations of `workbench.cuda.ptx` that a thread performs alone: conversions, wide loads and stores, ex2, tanh."""

import numpy as np
from numba.core import types

from workbench.cuda.emulator.inner import inner
from workbench.cuda.emulator.intrinsics import bits_of, from_bits
from workbench.cuda.emulator.narrow import bfloat_bits, half_bits, rounder, widened_half
from workbench.cuda.emulator.places import load_words, store_words, typed
from workbench.cuda.emulator.tensor import E4M3, E5M2, half_of_fp8

float32, float64 = types.float32, types.float64
uint16, uint32, int64 = types.uint16, types.uint32, types.int64
_TINY = 2.0**-126


@inner
def ex2_approx(x):
    """Return 2**x, rounded once; subnormals, in and out, are 0. The GPU's may be 2 ulp off."""
    typed("ex2_approx", (x,))
    if x != x:
        return from_bits(int64(0x7FFFFFFF), x)
    result = float32(np.exp2(float64(x)))
    return result if result >= _TINY else float32(0)


@inner
def tanh_approx(x):
    """Return tanh(x), rounded to 11 significant bits: as far off, at most, as the GPU's, 2**-11 of the value."""
    typed("tanh_approx", (x,))
    if x != x:
        return from_bits(int64(0x7FFFFFFF), x)
    bits = bits_of(float32(np.tanh(float64(x)))) & 0xFFFFFFFF
    return from_bits(int64((bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFF), x)


#: float64 -> bits of the nearest fp8, at most the largest in size
_e4m3, _e5m2 = rounder(8, 3, -6, 0x7E), rounder(8, 2, -14, 0x7B)


def _packing(name, bits, width, packed):
    """Return the compiled operation that rounds two float32 to ``width`` bits each and packs them, the first lower."""

    @inner
    def pack(low, high):
        typed(name, (low, high))
        return packed(bits(float64(low)) | uint32(bits(float64(high))) << uint32(width))

    return pack


cvt_f16x2_f32 = _packing("cvt_f16x2_f32", half_bits, 16, uint32)
cvt_bf16x2_f32 = _packing("cvt_bf16x2_f32", bfloat_bits, 16, uint32)
cvt_e4m3x2_f32 = _packing("cvt_e4m3x2_f32", _e4m3, 8, uint16)
cvt_e5m2x2_f32 = _packing("cvt_e5m2x2_f32", _e5m2, 8, uint16)


@inner
def cvt_f32_f16x2(packed):
    """Return the two float16 of a uint32, the lower one first, as float32."""
    typed("cvt_f32_f16x2", (packed,))
    return widened_half(uint16(packed)), widened_half(uint16(packed >> uint32(16)))


def _widening(name, code):
    """Return the compiled operation that gives two fp8 in a uint16 as float16 in a uint32."""

    @inner
    def widen(packed):
        typed(name, (packed,))
        return uint32(half_of_fp8(int64(packed) & 0xFF, code) | half_of_fp8(int64(packed) >> 8, code) << 16)

    return widen


cvt_f16x2_e4m3x2, cvt_f16x2_e5m2x2 = _widening("cvt_f16x2_e4m3x2", E4M3), _widening("cvt_f16x2_e5m2x2", E5M2)


def _load(count, kind):
    """Return the compiled load of a tuple of neighbours."""
    return inner(lambda array, index: load_words(array, index, count, kind))


def _store(name):
    """Return the compiled store of a tuple, by its name; the emulator has no caches."""

    @inner
    def store(array, index, values):
        typed(name, (values,))
        store_words(array, index, values)

    return store


ld_v2_u32, ld_v4_u32 = _load(2, uint32), _load(4, uint32)
ld_v2_f32, ld_v4_f32 = _load(2, float32), _load(4, float32)
st_v2_u32, st_v4_u32 = _store("st_v2_u32"), _store("st_v4_u32")
st_v2_f32, st_v4_f32, st_cs_v2_f32 = _store("st_v2_f32"), _store("st_v4_f32"), _store("st_cs_v2_f32")


@inner
def red_add_v4_f32(array, index, values):
    """Add four float32: one thread of a kernel that uses atomics runs at a time."""
    typed("red_add_v4_f32", (values,))
    a, b, c, d = ld_v4_f32(array, index)
    st_v4_f32(array, index, (a + values[0], b + values[1], c + values[2], d + values[3]))
