"""Conversions of floats to integers as on the GPU: out of range they give the nearest end of the range.

NaN becomes 0 where a float32 or narrower is converted to at most 32 bits, else the number with the highest bit alone
(PTX ISA, ``cvt``). PTX has no 8-bit results: those are the low bits of a 16-bit one.

A float that is stored to an array of integers without an explicit conversion is converted by the host: out of range the
result is the host's.
"""

import math

import numpy as np
from numba.core import types

from workbench.cuda.emulator.inner import inner, inner_overload
from workbench.cuda.emulator.narrow import Narrow


def _converter(bits, signed, rounding, source):
    """Return the compiled function float -> integer, which rounds to the float type ``source``, then to an integer."""
    kind = getattr(types, f"{'' if signed else 'u'}int{bits}")
    wide = kind if bits > 8 else types.int16 if signed else types.uint16
    low, high = int(wide.minval), int(wide.maxval)
    of_nan = (low if signed else 1 << wide.bitwidth - 1) if source is types.float64 or bits == 64 else 0

    @inner
    def convert(x):
        rounded = rounding(types.float64(source(x)))
        if rounded != rounded:
            return kind(wide(of_nan))
        return kind(wide(low) if rounded <= low else wide(high) if rounded >= high else wide(rounded))

    return convert


_ROUNDINGS = {"rn": np.rint, "rd": np.floor, "ru": np.ceil, "rz": np.trunc}
_SUFFIXES = {"int": (32, True), "uint": (32, False), "ll": (64, True), "ull": (64, False)}
#: float2int_rn and its like, by their names in `numba.cuda.libdevice`
FUNCTIONS = {
    f"{name}2{target}_{suffix}": _converter(*integer, rounding, source)
    for name, source in (("float", types.float32), ("double", types.float64))
    for target, integer in _SUFFIXES.items()
    for suffix, rounding in _ROUNDINGS.items()
}


def _is_float(x):
    return isinstance(x, types.Float | Narrow)


def _overloaded(name, rounding, bits=64, signed=True, otherwise=None):
    """Return a function that compiled code may call with a float, or with whatever ``otherwise`` takes."""
    of_single, of_double = (_converter(bits, signed, rounding, source) for source in (types.float32, types.float64))

    def convert(x):
        """Return the number as an integer."""

    convert.__name__ = name

    @inner_overload(convert)
    def _convert(x):
        if not _is_float(x):
            return lambda x: otherwise(x)
        converter = of_double if x == types.float64 else of_single
        return lambda x: converter(x)

    return convert


int8, int16, int32, int64 = (
    _overloaded(f"int{bits}", np.trunc, bits, True, getattr(types, f"int{bits}")) for bits in (8, 16, 32, 64)
)
uint8, uint16, uint32, uint64 = (
    _overloaded(f"uint{bits}", np.trunc, bits, False, getattr(types, f"uint{bits}")) for bits in (8, 16, 32, 64)
)
# All of these give an int64 of a float.
floor = _overloaded("floor", np.floor, otherwise=math.floor)
ceil = _overloaded("ceil", np.ceil, otherwise=math.ceil)
trunc = _overloaded("trunc", np.trunc, otherwise=math.trunc)
to_int = _overloaded("to_int", np.trunc, otherwise=int)
to_nearest = _overloaded("to_nearest", np.rint, otherwise=round)
