"""`math.exp` and `math.log` of a float32 as numba-cuda compiles them: the operations of its PTX, one by one.

`log` is the GPU's to the last bit: fused multiply-adds only. `exp` stands on ``ex2.approx.ftz``, for which the exact
power, rounded to nearest, is taken here; the hardware's differs from that by at most 2 ulp (CUDA Programming Guide),
and the result of `exp` by as much. The largest error against float64 in ulp is 1.16 for `exp`, 1.48 from 88 on, and
0.84 for `log`: of the normal results for every 31st float32 from 2^-6 to 89 in size, and for every 509th positive one.
"""

import math

import numpy as np
from numba.core import types

from workbench.cuda.emulator.arithmetic import fma
from workbench.cuda.emulator.inner import inner, inner_overload
from workbench.cuda.emulator.intrinsics import bits_of, from_bits

int32, uint32, int64, float32 = types.int32, types.uint32, types.int64, types.float32


def _singles(bits):
    """Return the float32 numbers that PTX writes as hexadecimal bits."""
    return [np.uint32(int(word, 16)).view(np.float32) for word in bits.split()]


_LOG2_E, _LOG2_E_LOW, _LOG2_E_252ND, _LN_2 = _singles("3FB8AA3B 32A57060 3BBB989D 3F317218")
_TINY = np.finfo(np.float32).tiny
#: coefficients of log(1 + x) = x - x^2/2 + ..., the highest power first
_C9, _C8, _C7, _C6, _C5, _C4, _C3, _C2, _C1 = _singles(
    "BE055027 3E1039F6 BDF8CDCC 3E0F2955 BE2AD8B9 3E4CED0B BE7FFF22 3EAAAA78 BF000000"
)


@inner
def _exp(x):
    unit = fma(x, _LOG2_E_252ND, float32(0.5))
    unit = min(max(unit, float32(0)), float32(1)) if unit == unit else float32(0)  # cvt.sat
    exponent = math.floor(types.float64(unit) * 252.0) - 126  # fma.rm to a multiple of 1
    rest = fma(x, _LOG2_E_LOW, fma(x, _LOG2_E, float32(-exponent)))
    power = float32(np.exp2(types.float64(rest)))
    if power < _TINY:  # ftz
        power = float32(0)
    return power * from_bits(int64(exponent + 127) << 23, float32(0))


@inner
def _log(x):
    shift = float32(0)
    if x < _TINY:
        x *= float32(2.0**23)
        shift = float32(-23)
    bits = int32(bits_of(x))
    exponent = (bits - int32(1059760811)) & int32(-8388608)  # of x / 0.66..., times 2^23
    f = from_bits(int64(uint32(bits - exponent)), float32(0)) - float32(1)
    scaled = fma(float32(exponent), float32(2.0**-23), shift)
    series = fma(fma(fma(fma(_C9, f, _C8), f, _C7), f, _C6), f, _C5)
    series = fma(fma(fma(fma(series, f, _C4), f, _C3), f, _C2), f, _C1)
    result = fma(scaled, _LN_2, fma(f * series, f, f))
    if x == 0:
        return float32(-np.inf)
    if not (0 < x < np.inf):
        return fma(x, float32(np.inf), float32(np.inf))
    return result


def exp(x):
    """Return e to the power x: of a float32 as the GPU, of another number as the host."""


def log(x):
    """Return the natural logarithm: of a float32 as the GPU, of another number as the host."""


@inner_overload(exp)
def _exp_of(x):
    return (lambda x: _exp(x)) if x == float32 else (lambda x: math.exp(x))


@inner_overload(log)
def _log_of(x):
    return (lambda x: _log(x)) if x == float32 else (lambda x: math.log(x))


@inner
def expf(x):
    """Return `exp` of a number as float32."""
    return _exp(float32(x))


@inner
def logf(x):
    """Return `log` of a number as float32."""
    return _log(float32(x))
