"""Watched accesses: every subscript of a watched kernel becomes a call of one of these.

An access is checked against the array's bounds, noted in the shadow memory, and then made. One that is out of bounds
is reported and not made: a read gives 0, a write is dropped. What is no single element (a part of an array, an item of
a tuple) is taken without a note; its elements are watched when they are read in turn.
"""

import operator

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.core.typing import signature
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from workbench.cuda.emulator import copies, shadow
from workbench.cuda.emulator.inner import inner, inner_overload
from workbench.cuda.emulator.intrinsics import get
from workbench.cuda.emulator.watch_words import MISALIGNED, OUT_OF_BOUNDS, Watch

int64 = types.int64
_I64 = ir.IntType(64)
_MAX_DIMS = Watch.NOTE - Watch.INDEX


class StopThread(Exception):
    """Ends a thread that cannot go on, after a finding that says why."""


def store(value, array, index, watch, place):
    """Assign ``array[index] = value``."""


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
    if len(parts) > _MAX_DIMS:
        raise TypingError(f"a watched kernel's arrays have at most {_MAX_DIMS} axes")

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
                builder.store(word, builder.gep(words, [ir.Constant(_I64, Watch.NDIM + position)]))
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


def _calling(typingctx, function, given):
    """Return what an intrinsic returns that calls a compiled function with arguments of these types."""
    callee = types.Dispatcher(function)
    called = callee.get_call_type(typingctx, given, {})

    def codegen(context, builder, sig, args):
        return context.get_function(callee, called)(builder, args)

    return called, codegen


@inner
def _row(array, index, watch, place):
    if locate(array, index, watch) == 0:
        shadow.report(watch, OUT_OF_BOUNDS, place, int64(0), base(array))
        raise StopThread


@inner
def _element(array, index, watch, place):
    address = locate(array, index, watch)
    if address == 0:
        shadow.report(watch, OUT_OF_BOUNDS, place, int64(0), base(array))
        return nothing(array)
    shadow.read(watch, address, place)
    return fetch(array, address)


@intrinsic(prefer_literal=True)
def load(typingctx, array, index, watch, place):
    """Return ``array[index]``; watched where it is an element."""
    given = (array, types.unliteral(index), types.int64, types.int64)
    if isinstance(array, types.BaseTuple) and isinstance(index, types.IntegerLiteral):
        position = index.literal_value

        def item(context, builder, sig, args):
            return context.cast(builder, builder.extract_value(args[0], position), array[position], array[position])

        return signature(array[position], array, index, watch, place), item
    parts = _integers(index) if isinstance(array, types.Array) else None
    if parts is not None and len(parts) == array.ndim:
        return _calling(typingctx, _element, given)

    getitem = typingctx.resolve_value_type(operator.getitem)
    taken = getitem.get_call_type(typingctx, given[:2], {})
    noted = parts is not None and _calling(typingctx, _row, given)

    def part(context, builder, sig, args):
        if noted:
            noted[1](context, builder, noted[0], args)
        index_ = context.cast(builder, args[1], given[1], taken.args[1])
        return context.get_function(getitem, taken)(builder, [args[0], index_])

    return signature(taken.return_type, *given), part


@inner_overload(store)
def _store(value, array, index, watch, place):
    parts = _integers(index)
    if parts is None or len(parts) != array.ndim:
        raise TypingError("a watched kernel cannot store to a slice")

    def element(value, array, index, watch, place):
        address = locate(array, index, watch)
        if address == 0:
            shadow.report(watch, OUT_OF_BOUNDS, place, int64(0), base(array))
        else:
            shadow.write(watch, address, place)
            assign(array, address, value)

    return element


@inner_overload(locked)
def _locked(array, index, watch, place):
    def impl(array, index, watch, place):
        address = locate(array, index, watch)
        if address == 0:
            shadow.report(watch, OUT_OF_BOUNDS, place, int64(0), base(array))
            raise StopThread
        shadow.atomic(watch, address, place)
        return array

    return impl


def wide_read(array, index, size, watch, place):
    """Return the array after noting the read of ``size`` bytes from an element on."""


def wide_write(array, index, size, watch, place):
    """Return the array after noting the write of ``size`` bytes from an element on."""


def wide_locked(array, index, size, watch, place):
    """Return the array after noting an atomic operation on each element of ``size`` bytes."""


def wide_copy(array, index, size, watch, place):
    """Return the array after noting that a copy of ``size`` bytes to an element is under way."""


def _wide(note):
    def of(array, index, size, watch, place):
        step = max(1, array.dtype.bitwidth // 8)

        def impl(array, index, size, watch, place):
            if size == 0:
                return array
            address = locate(array, index, watch)
            if address == 0 or address + size > base(array) + array.nbytes:
                shadow.report(watch, OUT_OF_BOUNDS, place, int64(0), base(array))
                raise StopThread
            if address % size:
                shadow.report(watch, MISALIGNED, place, int64(0), address)
                raise StopThread
            for offset in range(0, size, step):
                note(watch, address + offset, place)
            return array

        return impl

    return of


inner_overload(wide_read)(_wide(shadow.read))
inner_overload(wide_write)(_wide(shadow.write))
inner_overload(wide_locked)(_wide(shadow.atomic))
inner_overload(wide_copy)(_wide(shadow.await_copy))


@inner
def arrived(queue, group, watch, place):
    """Note the writes of the copies of the groups before ``group``, which are made next."""
    for copy in range(queue[copies.MADE], queue[copies.ASKED]):
        entry = copies.FIRST + 4 * (copy % copies.CAPACITY)
        if queue[entry + 3] >= group:
            break
        for offset in range(0, queue[entry + 2], 1 << get(watch, Watch.SHARED_SHIFT)):
            shadow.write(watch, queue[entry] + offset, place)


@inner
def arrived_but(queue, n, watch, place):
    """Return the queue after noting the copies of all committed groups but the last ``n``."""
    arrived(queue, queue[copies.GROUPS] - n, watch, place)
    return queue


@inner
def arrived_all(queue, watch, place):
    """Return the queue after noting all its copies."""
    arrived(queue, queue[copies.GROUPS] + 1, watch, place)
    return queue


@inner
def room(queue, watch, place):
    """Return the queue after noting the oldest copy where it has to be made early to make room."""
    if queue[copies.ASKED] - queue[copies.MADE] == copies.CAPACITY:
        entry = copies.FIRST + 4 * (queue[copies.MADE] % copies.CAPACITY)
        for offset in range(0, queue[entry + 2], 1 << get(watch, Watch.SHARED_SHIFT)):
            shadow.write(watch, queue[entry] + offset, place)
    return queue
