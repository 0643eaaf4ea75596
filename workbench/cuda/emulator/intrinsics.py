"""Raw memory and raw generators for compiled code: what numba itself has no words for.

Addresses are int64 throughout: they pass through generators, NumPy arrays and C callbacks alike.
"""

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.typing import signature
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

from workbench.cuda.emulator.inner import inner
from workbench.cuda.emulator.narrow import bfloat16, float16

DTYPES = {
    "bool": types.boolean,
    "int8": types.int8,
    "int16": types.int16,
    "int32": types.int32,
    "int64": types.int64,
    "uint8": types.uint8,
    "uint16": types.uint16,
    "uint32": types.uint32,
    "uint64": types.uint64,
    "float16": float16,
    "bfloat16": bfloat16,
    "float32": types.float32,
    "float64": types.float64,
}

_I64 = ir.IntType(64)


def _array(context, builder, array_type, address, shape, strides):
    """Return an array value over memory that it does not own."""
    array = make_array(array_type)(context, builder)
    data_type = context.get_data_type(array_type.dtype)
    size = context.get_abi_sizeof(data_type)
    if strides is None:
        strides = [ir.Constant(_I64, size)]
        for extent in shape[:0:-1]:
            strides.insert(0, builder.mul(strides[0], extent))
    populate_array(
        array,
        data=builder.inttoptr(address, data_type.as_pointer()),
        shape=shape,
        strides=strides,
        itemsize=ir.Constant(_I64, size),
        meminfo=None,
    )
    return array._getvalue()


def array_in(field, offset, shape, dtype):
    """Return a compiled function of a `Context`: the array at ``offset`` bytes from the address in its ``field``.

    The extents are constants of the machine code, so indexing costs shifts instead of multiplications.
    """

    @intrinsic
    def array(typingctx, owner):
        array_type = types.Array(DTYPES[dtype], len(shape), "C")

        def codegen(context, builder, sig, args):
            base = builder.extract_value(args[0], sig.args[0].fields.index(field))
            address = builder.add(base, ir.Constant(_I64, offset))
            return _array(context, builder, array_type, address, [ir.Constant(_I64, n) for n in shape], None)

        return signature(array_type, owner), codegen

    return array


def constant_array(data, shape, dtype):
    """Return a compiled function without parameters: the read-only array of these bytes, which the code contains."""

    @intrinsic
    def array(typingctx):
        array_type = types.Array(DTYPES[dtype], len(shape), "C", readonly=True)

        def codegen(context, builder, sig, args):
            constant = cgutils.global_constant(builder, "constant_array", cgutils.make_bytearray(data))
            constant.align = 16
            address = builder.ptrtoint(constant, _I64)
            return _array(context, builder, array_type, address, [ir.Constant(_I64, n) for n in shape], None)

        return signature(array_type), codegen

    return array


def dynamic_array(dtype):
    """Return a compiled function of a `Context`: the array that covers all dynamic shared memory of the launch."""

    @intrinsic
    def array(typingctx, owner):
        array_type = types.Array(DTYPES[dtype], 1, "C")

        def codegen(context, builder, sig, args):
            address, size = (
                builder.extract_value(args[0], sig.args[0].fields.index(field)) for field in ("dynamic", "dynamic_size")
            )
            itemsize = context.get_abi_sizeof(context.get_data_type(array_type.dtype))
            extent = builder.udiv(size, ir.Constant(_I64, itemsize))
            return _array(context, builder, array_type, address, [extent], None)

        return signature(array_type, owner), codegen

    return array


def argument_at(position, dtype, ndim, layout, readonly):
    """Return a compiled function of an address: the kernel argument stored there, at word ``position``.

    A scalar (``ndim`` None) is stored as itself; an array as its address, extents and, unless ``layout`` is ``"C"``,
    strides in bytes.
    """
    element = DTYPES[dtype]
    array_type = None if ndim is None else types.Array(element, ndim, layout, readonly=readonly)

    @intrinsic
    def argument(typingctx, words):
        def codegen(context, builder, sig, args):
            start = builder.inttoptr(args[0], _I64.as_pointer())

            def word(index):
                return builder.gep(start, [ir.Constant(_I64, position + index)])

            if array_type is None:
                data_type = context.get_data_type(element)
                return context.unpack_value(builder, element, builder.bitcast(word(0), data_type.as_pointer()))
            address = builder.load(word(0))
            shape = [builder.load(word(1 + axis)) for axis in range(ndim)]
            strides = None if layout == "C" else [builder.load(word(1 + ndim + axis)) for axis in range(ndim)]
            return _array(context, builder, array_type, address, shape, strides)

        return signature(element if array_type is None else array_type, words), codegen

    return argument


@intrinsic
def words_at(typingctx, address, count):
    """Return the ``count`` int64 words at an address as an array."""
    array_type = types.Array(types.int64, 1, "C")

    def codegen(context, builder, sig, args):
        return _array(context, builder, array_type, args[0], [args[1]], None)

    return signature(array_type, types.int64, types.int64), codegen


def _memory(width):
    """Return two compiled functions that read and write an integer of `width` bits, as an int64, at an address."""
    integer = ir.IntType(width)

    @intrinsic
    def peek(typingctx, address):
        def codegen(context, builder, sig, args):
            value = builder.load(builder.inttoptr(args[0], integer.as_pointer()))
            return value if width == 64 else builder.zext(value, _I64)

        return signature(types.int64, types.int64), codegen

    @intrinsic
    def poke(typingctx, address, value):
        def codegen(context, builder, sig, args):
            value = args[1] if width == 64 else builder.trunc(args[1], integer)
            builder.store(value, builder.inttoptr(args[0], integer.as_pointer()))
            return context.get_dummy_value()

        return signature(types.none, types.int64, types.int64), codegen

    return peek, poke


peek, poke = _memory(64)
peek_byte, poke_byte = _memory(8)


@inner
def get(words, position):
    """Return one of the int64 words at an address; a position is a member of an IntEnum, which numba freezes."""
    return peek(words + 8 * position)


@inner
def put(words, position, value):
    """Set one of the int64 words at an address."""
    poke(words + 8 * position, value)


@intrinsic
def bits_of(typingctx, value):
    """Return the bits of a number as an int64; a narrow integer keeps its value."""

    def codegen(context, builder, sig, args):
        (bits,) = args
        if isinstance(value, types.Float):
            bits = builder.bitcast(bits, ir.IntType(value.bitwidth))
        if bits.type.width == 64:
            return bits
        signed = isinstance(value, types.Integer) and value.signed
        return builder.sext(bits, _I64) if signed else builder.zext(bits, _I64)

    return signature(types.int64, value), codegen


@intrinsic
def from_bits(typingctx, bits, like):
    """Return the number of the type of ``like`` whose `bits_of` are ``bits``."""
    result = types.unliteral(like)

    def codegen(context, builder, sig, args):
        value_type = context.get_value_type(result)
        width = result.bitwidth if isinstance(result, types.Float) else value_type.width
        narrowed = args[0] if width == 64 else builder.trunc(args[0], ir.IntType(width))
        return builder.bitcast(narrowed, value_type)

    return signature(result, types.int64, like), codegen


@intrinsic
def start(typingctx, slot, generator):
    """Copy a fresh generator to the address ``slot``; return its size in bytes. Address 0 only asks for the size."""

    def codegen(context, builder, sig, args):
        pointer = args[1]
        size = ir.Constant(_I64, context.get_abi_sizeof(pointer.type.pointee))
        with builder.if_then(cgutils.is_not_null(builder, args[0])):
            cgutils.raw_memcpy(builder, builder.inttoptr(args[0], pointer.type), pointer, size, 1)
        return size

    return signature(types.int64, types.int64, generator), codegen


FINISHED, RAISED = -1, -2


@intrinsic
def resume(typingctx, slot, kernel, arguments):
    """Run the generator at ``slot`` to its next barrier; return the site, `FINISHED` or `RAISED`.

    ``kernel`` and ``arguments`` only tell the generator's type.
    """
    generator = kernel.get_call_type(typingctx, arguments.types, {}).return_type

    def codegen(context, builder, sig, args):
        pointer = builder.inttoptr(args[0], context.get_value_type(generator))
        call = context.get_generator_impl(generator)
        status, site = call(context, builder, signature(generator.yield_type, generator), [pointer])
        site = context.cast(builder, site, generator.yield_type, types.int64)
        stopped = builder.select(status.is_stop_iteration, ir.Constant(_I64, FINISHED), ir.Constant(_I64, RAISED))
        return builder.select(status.is_ok, site, stopped)

    return signature(types.int64, types.int64, kernel, arguments), codegen


@intrinsic
def call_entry(typingctx, entry, slot, thread, launch):
    """Call the C function ``int64 entry(int64, int64, int64)`` at an address."""

    def codegen(context, builder, sig, args):
        function_type = ir.FunctionType(_I64, [_I64] * 3)
        return builder.call(builder.inttoptr(args[0], function_type.as_pointer()), args[1:])

    return signature(types.int64, *[types.int64] * 4), codegen


@intrinsic
def copy_bytes(typingctx, target, source, size):
    """Copy ``size`` bytes between two addresses."""

    def codegen(context, builder, sig, args):
        byte = ir.IntType(8).as_pointer()
        cgutils.raw_memcpy(builder, builder.inttoptr(args[0], byte), builder.inttoptr(args[1], byte), args[2], 1)
        return context.get_dummy_value()

    return signature(types.none, types.int64, types.int64, types.int64), codegen
