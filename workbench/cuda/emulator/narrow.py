"""float16 and bfloat16 for numba's CPU target: 16-bit storage, conversion in integer arithmetic.

A value converts to float32 and float64 exactly and from them with one rounding to nearest even, whatever the host can
do. ``+ - * /`` of two narrow values round their exact result once, as the GPU does: computing in float32 in between
changes nothing, since 24 bits are at least twice 11 plus 2 (Figueroa 1995). With a float32 they give float32.
"""

import operator

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.errors import TypingError
from numba.core.typeconv import Conversion
from numba.core.typing import signature
from numba.extending import intrinsic, lower_cast, models, register_model
from numba.np.numpy_support import as_dtype, from_dtype

from workbench.cuda.emulator.inner import inner, inner_overload


class Narrow(types.Number):
    """The numba type of a 16-bit float."""

    def __init__(self, name):
        super().__init__(name=f"emulated_{name}")
        self.bitwidth = 16

    @property
    def key(self):
        """Return what tells two of these types apart."""
        return self.name

    def can_convert_from(self, typingctx, other):
        """Return that any real number may be rounded to this type, never silently in an expression."""
        return Conversion.unsafe if isinstance(other, types.Float | types.Integer | types.Boolean) else None

    def can_convert_to(self, typingctx, other):
        """Return that the wider floats hold every value."""
        if isinstance(other, types.Float):
            return Conversion.promote if other.bitwidth == 32 else Conversion.safe
        return None

    def unify(self, typingctx, other):
        """Return the type of a variable that may hold either: of float16 what NumPy promotes both to, as in numba.cuda.

        It has none for bfloat16 and another number; that is refused in words that say what to write.
        """
        if not isinstance(other, types.Number | types.Boolean):
            return None
        if bfloat16 in (self, other):
            pair = " or ".join(x.name.removeprefix("emulated_") for x in (self, other))
            raise TypingError(f"numba.cuda has no common type for {pair}: convert explicitly, e.g. float32(x)")
        wide = np.promote_types(np.float16, as_dtype(other))
        return self if wide == np.float16 else from_dtype(wide)


float16, bfloat16 = Narrow("float16"), Narrow("bfloat16")

_unify = types.Number.unify


def _unified(self, typingctx, other):
    return other.unify(typingctx, self) if isinstance(other, Narrow) else _unify(self, typingctx, other)


# numba asks the first of two types, and its own know no others than NumPy's
types.Number.unify = _unified


@register_model(Narrow)
class NarrowModel(models.PrimitiveModel):
    """The bits as an i16, in memory and in registers."""

    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, ir.IntType(16))


def _reinterpret(source, target):
    @intrinsic
    def reinterpret(typingctx, value):
        def codegen(context, builder, sig, args):
            return builder.bitcast(args[0], context.get_value_type(target))

        return signature(target, source), codegen

    return reinterpret


_double_bits = _reinterpret(types.float64, types.uint64)
_double = _reinterpret(types.uint64, types.float64)
single = _reinterpret(types.uint32, types.float32)
single_bits = _reinterpret(types.float32, types.uint32)

_INFINITY = 0x7FF << 52


def rounder(width, mantissa_bits, least_exponent, top):
    """Return the compiled function float64 -> bits of the nearest float of `width` bits, ties to even; what is larger
    than that of the bits `top`, the largest or infinity, becomes that.

    Of a float32 the float64 is the exact value, so this is one rounding for both. NaN becomes all ones but the sign, as
    on the GPU.
    """
    dropped_sign, sign_bit = 64 - width, 1 << width - 1
    dropped = 52 - mantissa_bits
    half_less_one = (1 << (dropped - 1)) - 1
    bias = (1023 + least_exponent - 1) << 52  # between the two exponent fields
    smallest_normal = 2.0**least_exponent
    # Adding 2^52 units of the smallest subnormal leaves |x| rounded to such units in the low bits of the sum.
    units = 2.0 ** (least_exponent - mantissa_bits + 52)
    units_bits = (1023 + least_exponent - mantissa_bits + 52) << 52

    @inner
    def rounded(x):
        bits = _double_bits(x)
        sign = (bits >> types.uint64(dropped_sign)) & types.uint64(sign_bit)
        magnitude = bits & types.uint64(0x7FFFFFFFFFFFFFFF)
        if magnitude > types.uint64(_INFINITY):
            return types.uint16(sign_bit - 1)
        if abs(x) < smallest_normal:
            return types.uint16(sign | (_double_bits(abs(x) + units) - types.uint64(units_bits)))
        odd = (magnitude >> types.uint64(dropped)) & types.uint64(1)
        magnitude = (magnitude + types.uint64(half_less_one) + odd - types.uint64(bias)) >> types.uint64(dropped)
        return types.uint16(sign | min(magnitude, types.uint64(top)))

    return rounded


@inner
def widened_half(bits):
    """Return the float32 of float16 bits: exponent moved by a multiplication, which also normalises subnormals."""
    sign = (types.uint32(bits) & types.uint32(0x8000)) << types.uint32(16)
    magnitude = (types.uint32(bits) & types.uint32(0x7FFF)) << types.uint32(13)
    if magnitude >= types.uint32(0x7C00 << 13):
        return single(types.uint32(sign | magnitude | types.uint32(0x7F800000)))
    value = single(types.uint32(magnitude)) * types.float32(2.0**112)
    return -value if sign else value


@inner
def _widened_bfloat(bits):
    return single(types.uint32(types.uint32(bits) << types.uint32(16)))


half_bits, bfloat_bits = rounder(16, 10, -14, 0x7C00), rounder(16, 7, -126, 0x7F80)
_ROUND = {float16: half_bits, bfloat16: bfloat_bits}
_WIDEN = {float16: widened_half, bfloat16: _widened_bfloat}


@lower_cast(Narrow, types.Float)
def _widen(context, builder, narrow, wide, value):
    widen = _WIDEN[narrow].py_func
    single = context.compile_internal(builder, widen, signature(types.float32, types.uint16), [value])
    return context.cast(builder, single, types.float32, wide)


@lower_cast(types.Float, Narrow)
@lower_cast(types.Integer, Narrow)
@lower_cast(types.Boolean, Narrow)
def _round(context, builder, wide, narrow, value):
    double = context.cast(builder, value, wide, types.float64)
    round_ = _ROUND[narrow].py_func
    return context.compile_internal(builder, round_, signature(types.uint16, types.float64), [double])


@intrinsic
def _narrowed(typingctx, value, like):
    def codegen(context, builder, sig, args):
        return context.cast(builder, args[0], value, like)

    return signature(like, value, like), codegen


def _overload_operator(function, inplace):
    # target="cpu" goes before numba's own templates, which would take the float32 to which a narrow value converts
    @inner_overload(function, target="cpu")
    @inner_overload(inplace, target="cpu")
    def operation(a, b):
        if isinstance(a, Narrow) and a == b:
            return lambda a, b: _narrowed(function(types.float32(a), types.float32(b)), a)
        return None


@inner_overload(operator.neg, target="cpu")
def _negative(a):
    return (lambda a: _narrowed(-types.float32(a), a)) if isinstance(a, Narrow) else None


_overload_operator(operator.add, operator.iadd)
_overload_operator(operator.sub, operator.isub)
_overload_operator(operator.mul, operator.imul)
_overload_operator(operator.truediv, operator.itruediv)
