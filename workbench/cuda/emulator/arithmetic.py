"""Arithmetic that CUDA defines and numba's CPU target has differently or not at all."""

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.typing import signature
from numba.extending import intrinsic

from workbench.cuda.emulator.inner import inner, inner_overload

int32, uint32, uint64 = types.int32, types.uint32, types.uint64


def maximum(a, b):
    """``max(a, b)`` as on the GPU: of two floats, the one that is not NaN (`fmaxf`)."""


def minimum(a, b):
    """``min(a, b)`` as on the GPU: of two floats, the one that is not NaN (`fminf`)."""


@inner_overload(maximum)
def _maximum(a, b):
    return lambda a, b: a if a > b or b != b else b


@inner_overload(minimum)
def _minimum(a, b):
    return lambda a, b: a if a < b or b != b else b


@intrinsic
def _fma(typingctx, a, b, c):
    def codegen(context, builder, sig, args):
        float_type = args[0].type
        function = builder.module.declare_intrinsic(
            "llvm.fma", [float_type], ir.FunctionType(float_type, [float_type] * 3)
        )
        return builder.call(function, args)

    return signature(a, a, a, a), codegen


def fma(a, b, c):
    """``a * b + c`` with one rounding, in float32 when all three are."""


@inner_overload(fma)
def _fma_of(a, b, c):
    wide = types.float32 if all(t in (types.float32, types.int8, types.int16) for t in (a, b, c)) else types.float64
    return lambda a, b, c: _fma(wide(a), wide(b), wide(c))


def _bit_function(name, extra):
    @intrinsic
    def count(typingctx, value):
        value = types.unliteral(value)

        def codegen(context, builder, sig, args):
            bits = args[0].type
            arguments = [bits] + [ir.IntType(1)] * len(extra)
            function = builder.module.declare_intrinsic(f"llvm.{name}", [bits], ir.FunctionType(bits, arguments))
            return builder.call(function, [args[0], *extra])

        return signature(value, value), codegen

    return count


_FALSE = ir.Constant(ir.IntType(1), 0)
popc = _bit_function("ctpop", [])
clz = _bit_function("ctlz", [_FALSE])  # the width where the value is 0
_bitreverse = _bit_function("bitreverse", [])
_ctz = _bit_function("cttz", [_FALSE])


def brev(x):
    """Return the bits in reverse order, as an unsigned number of the same width."""


@inner_overload(brev)
def _brev_of(x):
    unsigned = uint64 if x.bitwidth == 64 else uint32
    return lambda x: _bitreverse(unsigned(x))


@inner
def ffs(x):
    """Return the position of the lowest set bit, counted from 1; 0 where there is none."""
    return uint32(0) if x == 0 else uint32(_ctz(x) + 1)


@inner
def selp(condition, a, b):
    """Return ``a`` where the condition holds, else ``b``."""
    return a if condition else b


@inner
def cbrt(x):
    """Return the cube root, in the type of ``x``."""
    return np.cbrt(x)


@inner
def fmod(x, y):
    """Return the remainder of the division that rounds to zero, in the type of the operands."""
    return np.fmod(x, y)
