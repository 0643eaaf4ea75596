"""Watched accesses: every subscript of a watched kernel becomes a call of one of these.

An access is checked against the array's bounds, noted in the shadow memory, and then made. One that is out of bounds
is reported and not made: a read gives 0, a write is dropped. What is no single element (a part of an array, an item of
a tuple) is taken without a note; its elements are watched when they are read in turn.
"""

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.core.typing import signature
from numba.extending import intrinsic, overload
from numba.np.arrayobj import make_array

from workbench.cuda.emulator import shadow
from workbench.cuda.emulator.shadow import OUT_OF_BOUNDS, Watch

_I64 = ir.IntType(64)
_NDIM, _INDEX = Watch.NDIM, Watch.INDEX
_MAX_DIMS = Watch.CLOCKS - Watch.INDEX


class StopThread(Exception):
    """Ends a thread that cannot go on, after a finding that says why."""


def load(array, index, watch, place):
    """Return ``array[index]``; watched where it is an element."""


def load_local(array, index, watch, place):
    """Return ``array[index]`` of an array in local memory."""


def store(value, array, index, watch, place):
    """Assign ``array[index] = value``."""


def store_local(value, array, index, watch, place):
    """Assign ``array[index] = value`` in local memory."""


def locked(array, index, watch, place):
    """Return the array after noting an atomic operation on an element of it."""


def _integers(index):
    """Return the types of an index made of integers alone, else None."""
    parts = index.types if isinstance(index, types.BaseTuple) else [index]
    return parts if all(isinstance(part, types.Integer) for part in parts) else None


@intrinsic
def locate(typingctx, array, index, watch):
    """Return the address of an element; where a part of the index is out of bounds, leave it with `watch`, return 0."""
    parts = [index] if isinstance(index, types.Integer) else list(index.types)

    def codegen(context, builder, sig, args):
        view = make_array(array)(context, builder, args[0])
        values = [args[1]] if isinstance(index, types.Integer) else cgutils.unpack_tuple(builder, args[1])
        values = [context.cast(builder, value, part, types.int64) for value, part in zip(values, parts, strict=True)]
        extents = cgutils.unpack_tuple(builder, view.shape, array.ndim)
        strides = cgutils.unpack_tuple(builder, view.strides, array.ndim)
        address = builder.ptrtoint(view.data, _I64)
        inside = ir.Constant(ir.IntType(1), 1)
        for value, part, extent, stride in zip(values, parts, extents, strides, strict=False):
            wrapped = value
            if part.signed:  # as numba has it on a GPU too: a negative index counts from the end
                wrapped = builder.select(
                    builder.icmp_signed("<", value, ir.Constant(_I64, 0)), builder.add(value, extent), value
                )
            inside = builder.and_(inside, builder.icmp_unsigned("<", wrapped, extent))
            address = builder.add(address, builder.mul(wrapped, stride))
        with builder.if_then(builder.not_(inside), likely=False):
            words = builder.inttoptr(args[2], _I64.as_pointer())
            for position, word in enumerate([ir.Constant(_I64, len(values)), *values]):
                builder.store(word, builder.gep(words, [ir.Constant(_I64, _NDIM + position)]))
        return builder.select(inside, address, ir.Constant(_I64, 0))

    return signature(types.int64, array, index, types.int64), codegen


@intrinsic
def base(typingctx, array):
    """Return the address of an array."""

    def codegen(context, builder, sig, args):
        return builder.ptrtoint(make_array(array)(context, builder, args[0]).data, _I64)

    return signature(types.int64, array), codegen


@intrinsic
def fetch(typingctx, array, address):
    """Return the element of the array's dtype at an address."""

    def codegen(context, builder, sig, args):
        pointer = builder.inttoptr(args[1], context.get_data_type(array.dtype).as_pointer())
        return context.unpack_value(builder, array.dtype, pointer)

    return signature(array.dtype, array, types.int64), codegen


@intrinsic
def assign(typingctx, array, address, value):
    """Store a value, converted to the array's dtype, at an address."""
    if typingctx.can_convert(value, array.dtype) is None:
        raise TypingError(f"cannot store {value} into an array of {array.dtype}")

    def codegen(context, builder, sig, args):
        pointer = builder.inttoptr(args[1], context.get_data_type(array.dtype).as_pointer())
        context.pack_value(builder, array.dtype, context.cast(builder, args[2], value, array.dtype), pointer)
        return context.get_dummy_value()

    return signature(types.none, array, types.int64, value), codegen


@intrinsic
def nothing(typingctx, array):
    """Return the zero of the array's dtype."""

    def codegen(context, builder, sig, args):
        return context.get_constant_null(array.dtype)

    return signature(array.dtype, array), codegen


def _loader(note):
    def of(array, index, watch, place):
        parts = _integers(index)
        if not isinstance(array, types.Array) or parts is None or len(parts) > array.ndim:
            return lambda array, index, watch, place: array[index]

        def row(array, index, watch, place):
            if locate(array, index, watch) == 0:
                shadow.report(watch, OUT_OF_BOUNDS, place, 0, base(array))
                raise StopThread
            return array[index]

        def element(array, index, watch, place):
            address = locate(array, index, watch)
            if address == 0:
                shadow.report(watch, OUT_OF_BOUNDS, place, 0, base(array))
                return nothing(array)
            note(watch, address, place)
            return fetch(array, address)

        return element if len(parts) == array.ndim else row

    return of


def _storer(note):
    def of(value, array, index, watch, place):
        parts = _integers(index)
        if parts is None or len(parts) != array.ndim:
            raise TypingError("the watched emulator does not support a store to a part of an array")

        def element(value, array, index, watch, place):
            address = locate(array, index, watch)
            if address == 0:
                shadow.report(watch, OUT_OF_BOUNDS, place, 0, base(array))
            else:
                note(watch, address, place)
                assign(array, address, value)

        return element

    return of


overload(load)(_loader(shadow.read))
overload(load_local)(_loader(shadow.read_local))
overload(store)(_storer(shadow.write))
overload(store_local)(_storer(shadow.write_local))


@overload(locked)
def _locked(array, index, watch, place):
    def impl(array, index, watch, place):
        address = locate(array, index, watch)
        if address == 0:
            shadow.report(watch, OUT_OF_BOUNDS, place, 0, base(array))
            raise StopThread
        shadow.atomic(watch, address, place)
        return array

    return impl
