"""Directed roundings of `numba.cuda.libdevice`: towards zero (``rz``), up (``ru``), down (``rd``); right for all input.

The processor rounds: IEEE 754 gives it these modes for sums, products, quotients, roots, fused multiply-adds and
conversions. Each operation is a function of its own that sets the mode, computes and sets it back. LLVM never inlines
it, so nothing that its caller computes can move in between; and of its own three steps LLVM keeps the order, since the
operation is a "constrained intrinsic" (LLVM Language Reference), which says in which mode it stands.
"""

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.typing import signature
from numba.extending import intrinsic

from workbench.cuda.emulator.inner import inner

int32, uint32, int64, uint64 = types.int32, types.uint32, types.int64, types.uint64
float32, float64 = types.float32, types.float64

#: suffix -> LLVM's word for the direction, and its number for `llvm.set.rounding`, where 1 is to nearest
_DIRECTIONS = {"rz": ("towardzero", 0), "ru": ("upward", 2), "rd": ("downward", 3)}


def _operation(name, direction, result, operand):
    """Return the intrinsic that takes a tuple of operands of a type and gives the rounded result, of type `result`."""
    word, mode = _DIRECTIONS[direction]

    @intrinsic
    def operation(typingctx, values):
        def codegen(context, builder, sig, args):
            made, kind = context.get_value_type(result), context.get_value_type(operand)
            count = sig.args[0].count
            suffix = f"{made.intrinsic_name}.{kind.intrinsic_name}" if result != operand else kind.intrinsic_name
            function = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(made, [kind] * count), f"rounded.{name}.{suffix}.{direction}"
            )
            if not function.blocks:
                function.linkage = "internal"
                function.attributes.add("noinline")
                _define(function, f"llvm.experimental.constrained.{name}.{suffix}", word, mode)
            return builder.call(function, cgutils.unpack_tuple(builder, args[0], count))

        return signature(result, types.UniTuple(operand, len(values))), codegen

    return operation


def _define(function, constrained, word, mode):
    """Write a function that calls a constrained intrinsic with its arguments, in a mode of rounding."""
    module, made, kinds = function.module, function.return_value.type, [x.type for x in function.args]
    builder = ir.IRBuilder(function.append_basic_block())
    set_mode = cgutils.get_or_insert_function(
        module, ir.FunctionType(ir.VoidType(), [ir.IntType(32)]), "llvm.set.rounding"
    )
    words = [ir.MetaDataString(module, f"round.{word}"), ir.MetaDataString(module, "fpexcept.ignore")]
    typed = ir.FunctionType(made, kinds + [ir.MetaDataType()] * 2)
    builder.call(set_mode, [ir.Constant(ir.IntType(32), mode)])
    result = builder.call(cgutils.get_or_insert_function(module, typed, constrained), [*function.args, *words])
    builder.call(set_mode, [ir.Constant(ir.IntType(32), 1)])
    builder.ret(result)


def _functions(direction):
    """Return name -> compiled function for one direction."""

    def unary(name, result, operand):
        operation = _operation(name, direction, result, operand)
        return inner(lambda x: operation((operand(x),)))

    def binary(name, kind):
        operation = _operation(name, direction, kind, kind)
        return inner(lambda x, y: operation((kind(x), kind(y))))

    found = {"fsub": binary("fsub", float32)}
    for letter, kind in {"f": float32, "d": float64}.items():
        found |= {f"{letter}{name}": binary(f"f{name}", kind) for name in ("add", "mul", "div")}
        found[f"{letter}sqrt"] = unary("sqrt", kind, kind)
        found[f"{letter}rcp"] = _reciprocal(found[f"{letter}div"])
        found["fmaf" if kind is float32 else "fma"] = _fused(_operation("fma", direction, kind, kind), kind)
    found["double2float"] = unary("fptrunc", float32, float64)
    for name, operand in {"int": int32, "uint": uint32, "ll": int64, "ull": uint64}.items():
        conversion = "sitofp" if operand.signed else "uitofp"
        found[f"{name}2float"] = unary(conversion, float32, operand)
        if operand.bitwidth == 64:
            found[f"{name}2double"] = unary(conversion, float64, operand)
    return {f"{name}_{direction}": function for name, function in found.items()}


def _reciprocal(quotient):
    return inner(lambda x: quotient(1, x))


def _fused(operation, kind):
    return inner(lambda x, y, z: operation((kind(x), kind(y), kind(z))))


FUNCTIONS = {name: function for direction in _DIRECTIONS for name, function in _functions(direction).items()}
