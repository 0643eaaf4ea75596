"""Directed roundings of `numba.cuda.libdevice`: towards zero (``rz``), up (``ru``), down (``rd``); right for all input.

A result is found in three steps: the nearest float, the sign of what it misses of the exact result, and one step to the
neighbour where that sign and the direction ask for it. The nearest float is never further than its neighbour on the
other side of the exact result, so one step suffices; of an overflow the nearest float is infinite, what it misses has
the other sign, and the step leads to the largest finite float. Of NaN and of an infinite operand the missing part is
NaN or 0, and no step is made.

float32 results are rounded from float64, where exponents of float32 operands, doubled, neither overflow nor underflow.
A product of two float32 is exact there. A quotient or root that is no float32 lies at least 2^-49 of itself from any,
as the operand and the float32 times the divisor, or its square, are multiples of 2^-48 of the larger; so it lies on
the same side of every float32 as the nearest float64, within 2^-53. A sum is rounded to odd: to the neighbour whose
last bit is odd where it is no float64. That one, too, lies on the same side of every float32, whose bits end in zeros
(Boldo and Melquiond 2008).
"""

import math

from numba.core import types

from workbench.cuda.emulator.arithmetic import fma
from workbench.cuda.emulator.inner import inner
from workbench.cuda.emulator.intrinsics import bits_of, from_bits

int32, uint32, int64, uint64 = types.int32, types.uint32, types.int64, types.uint64
float32, float64 = types.float32, types.float64

_compiled = inner(error_model="numpy")
#: where one float64 misses a product, quotient or root of this size or above, it misses at least 2^-107 of it (the
#: operands are multiples of 2^-53 of themselves): a normal number, whose sign `fma` therefore gives
_SAFE = 2.0**-900


@_compiled
def next_up(x):
    """Return the next larger float of the same type; x is no NaN."""
    if x == 0:
        return from_bits(int64(1), x)
    return from_bits(bits_of(x) + (1 if x > 0 else -1), x)


@_compiled
def next_down(x):
    """Return the next smaller float of the same type; x is no NaN."""
    return -next_up(-x)


@_compiled
def is_negative(x):
    """Return the sign bit."""
    return math.copysign(1.0, x) < 0


@_compiled
def sum_missing(a, b):
    """Return exactly what the float64 ``a + b`` misses (Dekker 1971, for |a| >= |b|; sums never underflow)."""
    if abs(a) < abs(b):
        a, b = b, a
    return b - ((a + b) - a)


@_compiled
def product_missing(x, y, product):
    """Return a number with the sign of ``x * y - product``; a power of two scales a factor and the product exactly."""
    if abs(product) >= _SAFE or x == 0 or y == 0:
        return fma(x, y, -product)
    if product == 0:
        return math.copysign(1.0, x) * math.copysign(1.0, y)
    if abs(x) > abs(y):
        x, y = y, x
    return fma(x * 2.0**300, y, -product * 2.0**300)  # |x| < 2^-450


@_compiled
def quotient_missing(x, y, quotient):
    """Return a number with the sign of ``x / y - quotient``: that of the remainder over y."""
    if abs(x) >= _SAFE:
        remainder = fma(-quotient, y, x)
    else:  # the quotient is below 2^174
        remainder = fma(-quotient * 2.0**200, y, x * 2.0**200)
    return remainder * math.copysign(1.0, y)


@_compiled
def root_missing(x, root):
    """Return a number with the sign of ``sqrt(x) - root``."""
    if x >= _SAFE:
        return fma(-root, root, x)
    return fma(-root * 2.0**100, root * 2.0**100, x * 2.0**200)


@_compiled
def sign_of(a, b, c):
    """Return a number with the sign of the exact ``a + b + c``, for |b| below |a| unless that is 0.

    Where ``first + c`` cancels it is exact, so that one rounding is left; where not, it outweighs what was rounded off.
    """
    first = a + b
    second = first + c
    return second + (sum_missing(a, b) + sum_missing(first, c))


@_compiled
def fma_missing(x, y, z, result):
    """Return a number with the sign of ``x * y + z - result`` for the float64 ``fma``.

    All numbers are scaled such that the larger of product and addend is near 1. Where the other is below 2^-200 of it,
    only its sign matters, so it is taken as that size. Then nothing overflows or underflows, and exact operations leave
    ``top + carry + rest`` of the sum, as in ErrFma of Boldo and Muller (2005). `sign_of` compares it with the result.
    """
    if not math.isfinite(result):
        return fma(x, y, -result) if math.isfinite(z) else 0.0
    if x == 0 or y == 0:
        return 0.0
    (x, x_exponent), (y, y_exponent), (z, z_exponent) = math.frexp(x), math.frexp(y), math.frexp(z)
    product_exponent = x_exponent + y_exponent
    scale = product_exponent if z == 0 else max(product_exponent, z_exponent)
    x = math.ldexp(x, max(product_exponent - scale, -200))
    z = math.ldexp(z, max(z_exponent - scale, -200))
    result = math.ldexp(result, -scale)
    high = x * y
    low = fma(x, y, -high)
    middle, rest = z + low, sum_missing(z, low)
    top, carry = high + middle, sum_missing(high, middle)
    return sign_of(top - result, carry, rest)


@_compiled
def odd(nearest, missing):
    """Return the float64 rounded to odd of which the nearest one and the sign of what it misses are known."""
    if bits_of(nearest) & 1:
        return nearest
    return next_up(nearest) if missing > 0 else next_down(nearest) if missing < 0 else nearest


_STEPS = {
    "rz": lambda x, missing: next_down(x) if x > 0 and missing < 0 else next_up(x) if x < 0 and missing > 0 else x,
    "ru": lambda x, missing: next_up(x) if missing > 0 else x,
    "rd": lambda x, missing: next_down(x) if missing < 0 else x,
}


@_compiled
def _halves(x):
    """Return two float64 whose exact sum is the int64."""
    return float64(x >> 32) * 2.0**32, float64(x & 0xFFFFFFFF)


@_compiled
def _unsigned_halves(x):
    """Return two float64 whose exact sum is the uint64."""
    return float64(x >> uint64(32)) * 2.0**32, float64(x & uint64(0xFFFFFFFF))


def _functions(direction):
    """Return name -> compiled function for one direction."""
    step = _compiled(_STEPS[direction])
    zero = -0.0 if direction == "rd" else 0.0  # the sum of two numbers that cancel

    @_compiled
    def single(x):
        nearest = float32(x)
        return step(nearest, x - nearest)

    @_compiled
    def double_sum(a, b):
        if a + b == 0:
            return a if is_negative(a) == is_negative(b) else zero
        return step(a + b, sum_missing(a, b))

    @_compiled
    def single_sum(a, b):
        if a + b == 0:
            return float32(a if is_negative(a) == is_negative(b) else zero)
        return single(odd(a + b, sum_missing(a, b)))

    @_compiled
    def double_product(x, y):
        return step(x * y, product_missing(x, y, x * y))

    @_compiled
    def double_quotient(x, y):
        return step(x / y, quotient_missing(x, y, x / y))

    @_compiled
    def double_root(x):
        return step(math.sqrt(x), root_missing(x, math.sqrt(x)))

    @_compiled
    def double_fma(x, y, z):
        result = fma(x, y, z)
        missing = fma_missing(x, y, z, result)
        if result == 0 and missing == 0:
            negative = is_negative(x) != is_negative(y)
            return result if negative == is_negative(z) else zero
        return step(result, missing)

    return {
        f"fadd_{direction}": _compiled(lambda x, y: single_sum(float64(float32(x)), float64(float32(y)))),
        f"fsub_{direction}": _compiled(lambda x, y: single_sum(float64(float32(x)), -float64(float32(y)))),
        f"fmul_{direction}": _compiled(lambda x, y: single(float64(float32(x)) * float64(float32(y)))),
        f"fdiv_{direction}": _compiled(lambda x, y: single(float64(float32(x)) / float64(float32(y)))),
        f"frcp_{direction}": _compiled(lambda x: single(1.0 / float64(float32(x)))),
        f"fsqrt_{direction}": _compiled(lambda x: single(math.sqrt(float64(float32(x))))),
        f"fmaf_{direction}": _compiled(
            lambda x, y, z: single_sum(float64(float32(x)) * float64(float32(y)), float64(float32(z)))
        ),
        f"dadd_{direction}": _compiled(lambda x, y: double_sum(float64(x), float64(y))),
        f"dmul_{direction}": _compiled(lambda x, y: double_product(float64(x), float64(y))),
        f"ddiv_{direction}": _compiled(lambda x, y: double_quotient(float64(x), float64(y))),
        f"drcp_{direction}": _compiled(lambda x: double_quotient(1.0, float64(x))),
        f"dsqrt_{direction}": _compiled(lambda x: double_root(float64(x))),
        f"fma_{direction}": _compiled(lambda x, y, z: double_fma(float64(x), float64(y), float64(z))),
        f"double2float_{direction}": _compiled(lambda x: single(float64(x))),
        f"int2float_{direction}": _compiled(lambda x: single(float64(int32(x)))),
        f"uint2float_{direction}": _compiled(lambda x: single(float64(uint32(x)))),
        f"ll2float_{direction}": _compiled(lambda x: single_sum(*_halves(int64(x)))),
        f"ull2float_{direction}": _compiled(lambda x: single_sum(*_unsigned_halves(uint64(x)))),
        f"ll2double_{direction}": _compiled(lambda x: double_sum(*_halves(int64(x)))),
        f"ull2double_{direction}": _compiled(lambda x: double_sum(*_unsigned_halves(uint64(x)))),
    }


FUNCTIONS = {name: function for direction in _STEPS for name, function in _functions(direction).items()}
