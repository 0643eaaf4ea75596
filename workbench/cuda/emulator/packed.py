"""Operations of `workbench.cuda.ptx` that a thread performs alone: conversions, wide loads and stores, ex2, tanh."""

import numpy as np
from numba.core import types

from workbench.cuda.emulator.inner import inner
from workbench.cuda.emulator.intrinsics import bits_of, from_bits
from workbench.cuda.emulator.narrow import bfloat_bits, half_bits, widened_half
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


@inner
def cvt_f16x2_f32(low, high):
    """Return two float16 in a uint32."""
    typed("cvt_f16x2_f32", (low, high))
    return uint32(half_bits(float64(low)) | uint32(half_bits(float64(high))) << uint32(16))


@inner
def cvt_bf16x2_f32(low, high):
    """Return two bfloat16 in a uint32."""
    typed("cvt_bf16x2_f32", (low, high))
    return uint32(bfloat_bits(float64(low)) | uint32(bfloat_bits(float64(high))) << uint32(16))


def _fp8_rounder(fraction_bits, largest):
    """Return the compiled function float32 -> bits of the nearest fp8, ties to even, at most ``largest`` in size."""
    least_exponent = -6 if fraction_bits == 3 else -14
    smallest_normal, unit = 2.0**least_exponent, 2.0 ** (fraction_bits - least_exponent)
    dropped = 23 - fraction_bits
    bias = (127 + least_exponent - 1) << 23  # between the two exponent fields

    @inner
    def rounded(x):
        if x != x:
            return 0x7F
        sign = bits_of(x) >> 24 & 0x80
        magnitude = min(float64(abs(x)), largest)
        if magnitude < smallest_normal:
            return sign | int64(np.rint(magnitude * unit))
        bits = bits_of(float32(magnitude)) - bias
        return sign | (bits + (1 << (dropped - 1)) - 1 + (bits >> dropped & 1)) >> dropped

    return rounded


_e4m3, _e5m2 = _fp8_rounder(3, 448.0), _fp8_rounder(2, 57344.0)


@inner
def cvt_e4m3x2_f32(low, high):
    """Return two e4m3 in a uint16."""
    typed("cvt_e4m3x2_f32", (low, high))
    return uint16(_e4m3(low) | _e4m3(high) << 8)


@inner
def cvt_e5m2x2_f32(low, high):
    """Return two e5m2 in a uint16."""
    typed("cvt_e5m2x2_f32", (low, high))
    return uint16(_e5m2(low) | _e5m2(high) << 8)


@inner
def cvt_f32_f16x2(packed):
    """Return the two float16 of a uint32, the lower one first, as float32."""
    typed("cvt_f32_f16x2", (packed,))
    return widened_half(uint16(packed)), widened_half(uint16(packed >> uint32(16)))


@inner
def cvt_f16x2_e4m3x2(packed):
    """Return two e4m3 as float16 in a uint32."""
    typed("cvt_f16x2_e4m3x2", (packed,))
    return uint32(half_of_fp8(int64(packed) & 0xFF, E4M3) | half_of_fp8(int64(packed) >> 8, E4M3) << 16)


@inner
def cvt_f16x2_e5m2x2(packed):
    """Return two e5m2 as float16 in a uint32."""
    typed("cvt_f16x2_e5m2x2", (packed,))
    return uint32(half_of_fp8(int64(packed) & 0xFF, E5M2) | half_of_fp8(int64(packed) >> 8, E5M2) << 16)


@inner
def _float(word):
    return from_bits(int64(word), float32(0))


@inner
def ld_v2_u32(array, index):
    """Return two uint32."""
    return load_words(array, index, 2)


@inner
def ld_v4_u32(array, index):
    """Return four uint32."""
    return load_words(array, index, 4)


@inner
def ld_v2_f32(array, index):
    """Return two float32."""
    a, b = load_words(array, index, 2)
    return _float(a), _float(b)


@inner
def ld_v4_f32(array, index):
    """Return four float32."""
    a, b, c, d = load_words(array, index, 4)
    return _float(a), _float(b), _float(c), _float(d)


@inner
def st_v2_u32(array, index, values):
    """Store two uint32."""
    typed("st_v2_u32", (values,))
    store_words(array, index, values)


@inner
def st_v4_u32(array, index, values):
    """Store four uint32."""
    typed("st_v4_u32", (values,))
    store_words(array, index, values)


@inner
def _word(value):
    return uint32(bits_of(value))


@inner
def st_v2_f32(array, index, values):
    """Store two float32."""
    typed("st_v2_f32", (values,))
    store_words(array, index, (_word(values[0]), _word(values[1])))


@inner
def st_cs_v2_f32(array, index, values):
    """Store two float32; the emulator has no caches."""
    typed("st_cs_v2_f32", (values,))
    store_words(array, index, (_word(values[0]), _word(values[1])))


@inner
def st_v4_f32(array, index, values):
    """Store four float32."""
    typed("st_v4_f32", (values,))
    store_words(array, index, (_word(values[0]), _word(values[1]), _word(values[2]), _word(values[3])))


@inner
def red_add_v4_f32(array, index, values):
    """Add four float32: one thread of a kernel that uses atomics runs at a time."""
    typed("red_add_v4_f32", (values,))
    a, b, c, d = ld_v4_f32(array, index)
    st_v4_f32(array, index, (a + values[0], b + values[1], c + values[2], d + values[3]))
