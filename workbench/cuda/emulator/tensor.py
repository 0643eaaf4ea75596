"""The multiply-accumulate of a tensor core as a function of bits, in integers: what its float32 results are made of.

`case/tensor_cores.py` says what a step is, and of which sizes those of each generation of GPUs are; the exponent of a
product is the sum of its factors' exponents. This emulator has Hopper's: `ACCUMULATION`.

Special values: subnormals count in full; NaN is 0x7fffffff; a sum of zeros, and of addends that cancel, is +0; a sum
beyond float32 is infinite, also where the infinite one is only a step's.
"""

from collections.abc import Mapping

import ml_dtypes
import numpy as np
from numba import njit

from workbench.case.tensor_cores import GENERATIONS, Accumulation
from workbench.cuda.emulator.inner import inner
from workbench.cuda.emulator.narrow import single, single_bits

#: Hopper (sm_90), by the types of the factors; `pytest tests/cuda/calibrate/test_probe_mma.py` measured the same on an
#: H200: of 8192 random sums of each type none differs. For fp8 no instruction of its own stands behind mma.sync there:
#: ptxas 13.0 converts to float16 and emits two m16n8k16, the first for k % 4 < 2 on top of zeros, the second on top of
#: its result, and adds C last, rounded to nearest. (sm_89 and sm_120 have QMMA instead, and wgmma another path: the
#: table has them, no kernel here does.)
ACCUMULATION: Mapping[str, Accumulation] = {
    "f16": GENERATIONS["hopper"]["float16"],
    "bf16": GENERATIONS["hopper"]["bfloat16"],
    "fp8": GENERATIONS["hopper"]["float16"],
}

F16, BF16, E4M3, E5M2 = 0, 1, 2, 3
#: type of a factor -> its code in compiled functions
CODES = {"f16": F16, "bf16": BF16, "e4m3": E4M3, "e5m2": E5M2}
#: code of F16, BF16 or E4M3 -> bits of fraction, and of exponent
FRACTION_BITS, _EXPONENT_BITS = (10, 7, 3), (5, 8, 4)
#: code - E4M3 and bits -> the float16 of the same value, as bits
_HALVES = np.stack(
    [
        np.arange(256, dtype=np.uint8).view(dtype).astype(np.float16).view(np.uint16).astype(np.int64)
        for dtype in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
    ]
)
_HALVES[(_HALVES & 0x7FFF) > 0x7C00] = 0x7FFF

NAN = 0x7FFFFFFF
INFINITY = 0x7F800000
SPECIAL = 1 << 20  # the exponent of an infinity, and of NaN, which has the significand 0
ZERO = -(1 << 20)  # the exponent of nothing


@njit(nogil=True)
def half_of_fp8(bits, code):
    """Return the float16 bits of fp8 bits: exact. NaN becomes 0x7fff."""
    return _HALVES[code - E4M3, bits]


@inner
def decoded(bits, fraction_bits, exponent_bits):
    """Return (significand, exponent) of a float with infinities: its value is significand 2^(exponent - fraction_bits).

    Only the significand of a subnormal is less than ``1 << fraction_bits``.
    """
    top = (1 << exponent_bits) - 1
    fraction = bits & ((1 << fraction_bits) - 1)
    field = bits >> fraction_bits & top
    sign = -1 if bits >> (fraction_bits + exponent_bits) & 1 else 1
    if field == top:
        return (0 if fraction else sign), SPECIAL
    bias = top >> 1
    return (sign * (fraction | 1 << fraction_bits), field - bias) if field else (sign * fraction, 1 - bias)


@inner
def factor(bits, code):
    """Return the same of a factor's bits, of F16, BF16 or E4M3, which has no infinity, and one NaN of each sign."""
    fraction_bits, exponent_bits = FRACTION_BITS[code], _EXPONENT_BITS[code]
    significand, exponent = decoded(bits, fraction_bits, exponent_bits)
    if code == E4M3 and exponent == SPECIAL and bits & 7 != 7:
        return (8 | bits & 7) * (-1 if bits & 0x80 else 1), 8
    return significand, exponent


@inner
def aligned(significand, shift):
    """Return a significand moved to the left, or to the right and cut off towards zero."""
    if shift >= 0:
        return significand << min(shift, 63)  # only that of nothing, beside smaller addends, is moved so far
    moved = abs(significand) >> min(-shift, 63)
    return moved if significand >= 0 else -moved


@inner
def cut_off(total, unit, fraction_bits):
    """Return the float32 bits of ``total * 2^unit`` rounded towards zero to so many bits of fraction.

    Beyond the largest float32 it is infinity.
    """
    if total == 0:
        return 0
    magnitude = abs(total)
    width = 0
    while magnitude >> width:
        width += 1
    exponent = max(unit + width - 1, -126)
    kept = aligned(magnitude, unit - (exponent - fraction_bits)) << (23 - fraction_bits)
    bits = kept + ((exponent + 126) << 23)  # the leading bit adds one more
    if bits == 0:
        return 0  # an H200 gives +0 for what is cut off below zero, too
    sign = 0 if total > 0 else 0x80000000
    return sign | (bits if exponent < 128 else INFINITY)


@inner
def step(a, a_exponents, b, b_exponents, product_bits, c, extra_bits):
    """Return the float32 bits of c plus the products of two decoded vectors, of ``product_bits`` fraction bits."""
    c, largest = decoded(c, 23, 8)
    c_exponent = largest
    positive, negative, undefined = False, False, False
    if c_exponent == SPECIAL:
        positive, negative, undefined = c > 0, c < 0, c == 0
    if c == 0:
        largest = ZERO
    for k in range(a.size):
        exponent = a_exponents[k] + b_exponents[k]
        product = a[k] * b[k]
        if exponent > SPECIAL // 2:
            positive, negative, undefined = positive or product > 0, negative or product < 0, undefined or product == 0
        elif product and exponent > largest:
            largest = exponent
    if undefined or (positive and negative):
        return NAN
    if positive or negative:
        return INFINITY if positive else 0x80000000 | INFINITY
    if largest == ZERO:
        return 0
    unit = largest - 23 - extra_bits
    total = aligned(c, c_exponent - 23 - unit)
    for k in range(a.size):
        total += aligned(a[k] * b[k], a_exponents[k] + b_exponents[k] - product_bits - unit)
    return cut_off(total, unit, 23 + min(extra_bits, 0))


@inner(_nrt=True)
def _decoded_matrix(bits, code):
    """Return significands and exponents of a matrix of float16 or bfloat16 bits."""
    significands = np.empty(bits.shape, np.int64)
    exponents = np.empty(bits.shape, np.int64)
    for i in range(bits.shape[0]):
        for j in range(bits.shape[1]):
            significands[i, j], exponents[i, j] = factor(np.int64(bits[i, j]), code)
    return significands, exponents


@inner(_nrt=True)
def product_16(a, b_transposed, c, code, block, extra_bits):
    """Return the bits of A B + C for bits of 16-bit factors of one type: [m, k], [n, k] and [m, n]."""
    a, a_exponents = _decoded_matrix(a, code)
    b, b_exponents = _decoded_matrix(b_transposed, code)
    d = c.copy()
    for i in range(d.shape[0]):
        for j in range(d.shape[1]):
            for k in range(0, a.shape[1], block):
                ks = slice(k, k + block)
                parts = a[i, ks], a_exponents[i, ks], b[j, ks], b_exponents[j, ks]
                d[i, j] = step(*parts, 2 * FRACTION_BITS[code], d[i, j], extra_bits)
    return d


@inner(_nrt=True)
def _half_matrix(bits, code, part):
    """Return the float16 bits of those columns k of an fp8 matrix with ``k % 4 // 2 == part``."""
    halves = np.empty((bits.shape[0], bits.shape[1] // 2), np.int64)
    for i in range(halves.shape[0]):
        for j in range(halves.shape[1]):
            halves[i, j] = half_of_fp8(np.int64(bits[i, j // 2 * 4 + part * 2 + j % 2]), code)
    return halves


@inner
def added(a, b):
    """Return the bits of the sum of two float32 given as bits, rounded to nearest."""
    total = single(np.uint32(a)) + single(np.uint32(b))
    return NAN if total != total else np.int64(single_bits(total))


@njit(nogil=True)
def product(a, b_transposed, c, a_code, b_code, block, extra_bits):
    """Return the bits of A B + C as the tensor core accumulates it.

    Parameters
    ----------
    a, b_transposed : the bits of the factors, integers of shape [m, k] and [n, k].
    c : the float32 bits of C, int64 [m, n], and so is the result.
    a_code, b_code : the factors' types (`CODES`): equal, or both fp8.
    block, extra_bits : see `Accumulation`.
    """
    if a_code == F16 or a_code == BF16:
        return product_16(a, b_transposed, c, a_code, block, extra_bits)
    d = np.zeros_like(c)
    for part in range(2):
        halves = _half_matrix(a, a_code, part), _half_matrix(b_transposed, b_code, part)
        d = product_16(*halves, d, F16, block, extra_bits)
    for i in range(d.shape[0]):
        for j in range(d.shape[1]):
            d[i, j] = added(c[i, j], d[i, j])
    return d


_DECLARED = tuple(ACCUMULATION[kind] for kind in ("f16", "bf16", "fp8", "fp8"))
_BLOCK, _BITS = tuple(one.block for one in _DECLARED), tuple(one.extra_bits for one in _DECLARED)


@njit(nogil=True)
def mma(a, b_transposed, c, a_code, b_code):
    """Return `product` with the declared `ACCUMULATION`."""
    return product(a, b_transposed, c, a_code, b_code, _BLOCK[a_code], _BITS[a_code])
