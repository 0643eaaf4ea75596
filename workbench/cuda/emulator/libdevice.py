"""`numba.cuda.libdevice` on the CPU: the functions with one correct result, and models of the approximate ones.

The table `FUNCTIONS` maps a name to a compiled function. A float32 function gives what its float64 counterpart gives,
rounded, or the host's float32 function; ``fast_`` ones follow the hardware's formula with an exact ``ex2`` or ``lg2``.
Those that round towards a direction are in `rounding`, conversions to integers in `conversions`.
"""

import math

import numpy as np
from numba.core import types

from workbench.cuda.emulator import conversions, rounding
from workbench.cuda.emulator.arithmetic import brev, clz, ffs, fma, maximum, minimum, popc
from workbench.cuda.emulator.inner import inner
from workbench.cuda.emulator.intrinsics import bits_of, from_bits
from workbench.cuda.emulator.narrow import half_bits, widened_half

int32, uint32, int64, uint64 = types.int32, types.uint32, types.int64, types.uint64
uint16, float32, float64 = types.uint16, types.float32, types.float64


def _unary(function, kind, result=None):
    result = result or kind
    return inner(error_model="numpy")(lambda x: result(function(kind(x))))


def _binary(function, kind):
    return inner(error_model="numpy")(lambda x, y: kind(function(kind(x), kind(y))))


def _ternary(function, kind):
    return inner(error_model="numpy")(lambda x, y, z: kind(function(kind(x), kind(y), kind(z))))


add = inner(lambda x, y: x + y)
sub = inner(lambda x, y: x - y)
mul = inner(lambda x, y: x * y)
div = inner(error_model="numpy")(lambda x, y: x / y)
max_of = inner(lambda x, y: maximum(x, y))
min_of = inner(lambda x, y: minimum(x, y))
fma_of = inner(lambda x, y, z: fma(x, y, z))
rsqrt = inner(error_model="numpy")(lambda x: 1.0 / math.sqrt(float64(x)))
saturate = inner(lambda x: min(max(x, float32(0)), float32(1)) if x == x else float32(0))
dim = inner(lambda x, y: x - y if x > y else (x - x if x == x and y == y else x + y))
exp10 = inner(lambda x: math.pow(10.0, float64(x)))
round_away = inner(lambda x: math.copysign(np.floor(abs(float64(x)) + 0.5), x))

LOG2_E, LN_2, LOG10_2, LOG2_10 = np.float32([1 / math.log(2), math.log(2), math.log10(2), math.log2(10)])
ex2 = inner(lambda x: float32(np.exp2(float64(x))))
lg2 = inner(error_model="numpy")(lambda x: float32(np.log2(float64(x))))
fast_exp = inner(lambda x: ex2(x * LOG2_E))
fast_exp10 = inner(lambda x: ex2(x * LOG2_10))
fast_log = inner(lambda x: lg2(x) * LN_2)
fast_log10 = inner(lambda x: lg2(x) * LOG10_2)
fast_pow = inner(lambda x, y: ex2(y * lg2(x)))


@inner()
def byte_perm(x, y, selectors):
    """Four of the bytes of x, 0 to 3, and y, 4 to 7, each by its own selector of four bits, of which three count."""
    both = uint64(uint32(x)) | uint64(uint32(y)) << uint64(32)
    made = uint64(0)
    for i in range(4):
        byte = both >> uint64(8 * (selectors >> 4 * i & 7)) & uint64(255)
        made |= byte << uint64(8 * i)
    return int32(made)


float_as_int = inner(lambda x: int32(bits_of(float32(x))))
int_as_float = inner(lambda x: from_bits(bits_of(int32(x)), float32(0)))
double_as_longlong = inner(lambda x: bits_of(float64(x)))
longlong_as_double = inner(lambda x: from_bits(int64(x), float64(0)))
float2half = inner(lambda x: half_bits(float64(float32(x))))
half2float = inner(lambda x: widened_half(uint16(x)))


_MATH_NAMES = (
    "acos acosh asin asinh atan atanh cos cosh erf erfc exp expm1 fabs lgamma log log10 log1p sin sinh sqrt tan tanh"
).split()
_UNARY = {name: getattr(math, name) for name in _MATH_NAMES} | {"tgamma": math.gamma, "round": round_away}
_UNARY |= {"exp2": np.exp2, "log2": np.log2, "cbrt": np.cbrt, "rint": np.rint, "nearbyint": np.rint}
_UNARY |= {"ceil": np.ceil, "floor": np.floor, "trunc": np.trunc}  # those of math give an int64
_UNARY |= {"rsqrt": rsqrt, "exp10": exp10}
_BINARY = {"atan2": math.atan2, "copysign": math.copysign, "fmod": np.fmod, "hypot": math.hypot, "pow": math.pow}
_BINARY |= {"fmax": max_of, "fmin": min_of, "fdim": dim}

_INTEGERS = {"int": int32, "uint": uint32, "ll": int64, "ull": uint64}

FUNCTIONS = {
    **conversions.FUNCTIONS,
    **rounding.FUNCTIONS,
    **{name: _unary(function, float64) for name, function in _UNARY.items()},
    **{f"{name}f": _unary(function, float32) for name, function in _UNARY.items()},
    **{name: _binary(function, float64) for name, function in _BINARY.items()},
    **{f"{name}f": _binary(function, float32) for name, function in _BINARY.items()},
    **{f"f{name}_rn": _binary(f, float32) for name, f in {"add": add, "sub": sub, "mul": mul, "div": div}.items()},
    **{f"d{name}_rn": _binary(f, float64) for name, f in {"add": add, "mul": mul, "div": div}.items()},
    **{name: _ternary(fma_of, float64) for name in ("fma", "fma_rn")},
    **{name: _ternary(fma_of, float32) for name in ("fmaf", "fmaf_rn")},
    **{name: _unary(math.sqrt, float32) for name in ("fsqrt_rn",)},
    **{name: _unary(math.sqrt, float64) for name in ("dsqrt_rn",)},
    "frcp_rn": _unary(inner(error_model="numpy")(lambda x: float32(1) / x), float32),
    "drcp_rn": _unary(inner(error_model="numpy")(lambda x: 1.0 / x), float64),
    "frsqrt_rn": _unary(rsqrt, float32),
    "saturatef": _unary(saturate, float32),
    "fast_expf": _unary(fast_exp, float32),
    "fast_exp10f": _unary(fast_exp10, float32),
    "fast_logf": _unary(fast_log, float32),
    "fast_log2f": _unary(lg2, float32),
    "fast_log10f": _unary(fast_log10, float32),
    "fast_powf": _binary(fast_pow, float32),
    "fast_fdividef": _binary(div, float32),
    "fast_sinf": _unary(math.sin, float32),
    "fast_cosf": _unary(math.cos, float32),
    "fast_tanf": _unary(math.tan, float32),
    "byte_perm": byte_perm,
    "float_as_int": float_as_int,
    "int_as_float": int_as_float,
    "double_as_longlong": double_as_longlong,
    "longlong_as_double": longlong_as_double,
    "float2half_rn": float2half,
    "half2float": half2float,
    "double2float_rn": _unary(float32, float64, float32),
    **{f"{name}2float_rn": _unary(float32, kind, float32) for name, kind in _INTEGERS.items()},
    **{f"{name}2double_rn": _unary(float64, kind, float64) for name, kind in _INTEGERS.items()},
    **{name: _unary(math.isnan, kind, int32) for name, kind in {"isnanf": float32, "isnand": float64}.items()},
    **{name: _unary(math.isinf, kind, int32) for name, kind in {"isinff": float32, "isinfd": float64}.items()},
    **{name: _unary(math.isfinite, kind, int32) for name, kind in {"finitef": float32, "isfinited": float64}.items()},
    **{name: _unary(popc, kind, int32) for name, kind in {"popc": uint32, "popcll": uint64}.items()},
    **{name: _unary(clz, kind, int32) for name, kind in {"clz": uint32, "clzll": uint64}.items()},
    **{name: _unary(ffs, kind, int32) for name, kind in {"ffs": uint32, "ffsll": uint64}.items()},
    **{name: _unary(brev, kind, kind) for name, kind in {"brev": uint32, "brevll": uint64}.items()},
}
