"""What the operations of `workbench.cuda.hopper` do in a thread: they leave their operands, and `asynchronous` acts.

Every function takes the context, the number of the site, and that of the place where the run is watched, else 0.
"""

import re

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.core.typing import signature
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from workbench.cuda import ptx_emit as inline
from workbench.cuda.emulator import async_state as state
from workbench.cuda.emulator import tensor
from workbench.cuda.emulator.async_state import Asker, Block, coded
from workbench.cuda.emulator.context import Record
from workbench.cuda.emulator.inner import inner, inner_overload
from workbench.cuda.emulator.intrinsics import call_entry, get, put, words_at
from workbench.cuda.emulator.places import address_of

int64 = types.int64
_I64 = ir.IntType(64)
_COUNT = Asker.PRODUCTS - Asker.OPERANDS
_PRODUCT_NAME = re.compile(r"wgmma_m64n(\d+)k\d+_(\w+?)(_rs)?(_trans)?")


@intrinsic
def span(typingctx, array, index):
    """Return the address of an element of a contiguous array, and where the array begins and ends."""
    if problem := inline.misplaced("span", array, index):
        raise TypingError(problem)

    def codegen(context, builder, sig, args):
        view = make_array(array)(context, builder, args[0])
        first = builder.ptrtoint(view.data, _I64)
        size = context.get_constant(types.int64, context.get_abi_sizeof(context.get_data_type(array.dtype)))
        end = builder.add(first, builder.mul(view.nitems, size))
        several = isinstance(index, types.BaseTuple)
        indices = cgutils.unpack_tuple(builder, args[1], len(index)) if several else [args[1]]
        kinds = list(index) if several else [index]
        indices = [context.cast(builder, i, kind, types.intp) for i, kind in zip(indices, kinds, strict=True)]
        at = builder.ptrtoint(cgutils.get_item_pointer(context, builder, array, view, indices), _I64)
        return cgutils.pack_array(builder, [at, first, end])

    return signature(types.UniTuple(types.int64, 3), array, index), codegen


@intrinsic
def checked_barriers(typingctx, bars):
    """Do nothing; where types are compiled, refuse an array that holds no barriers."""
    if str(getattr(bars, "dtype", None)) != "uint64":
        raise TypingError(f"barriers are uint64, not {getattr(bars, 'dtype', bars)}")
    return signature(types.none, bars), lambda context, builder, sig, args: context.get_dummy_value()


@inner
def asked(c, site, place):
    """Return the address of the thread's words, after noting where it asks."""
    asker = get(c.record, Record.ASKER)
    put(asker, Asker.SITE, site)
    put(asker, Asker.PLACE, place)
    return asker


@inner
def perform(asker, operation):
    """Have an operation performed."""
    if call_entry(get(get(asker, Asker.BLOCK), Block.OPERATE), asker, operation, 0):
        raise ValueError("refused")


@inner
def of_barrier(c, site, place, operation, bars, i, operand):
    """Ask for what has a barrier and an integer."""
    checked_barriers(bars)
    asker = asked(c, site, place)
    operands = words_at(asker + 8 * Asker.OPERANDS, _COUNT)
    operands[0], operands[2], operands[3] = span(bars, i)
    operands[1] = operand
    perform(asker, operation)


@inner
def mbarrier_init(c, site, place, bars, i, count):
    """Make a barrier."""
    of_barrier(c, site, place, state.INIT, bars, i, int64(count))


@inner
def mbarrier_arrive(c, site, place, bars, i):
    """Count an arrival."""
    of_barrier(c, site, place, state.ARRIVE, bars, i, int64(0))


@inner
def mbarrier_expect_tx(c, site, place, bars, i, size):
    """Count an arrival that announces bytes."""
    of_barrier(c, site, place, state.EXPECT, bars, i, int64(size))


@inner
def mbarrier_wait(c, site, place, bars, i, parity):
    """Begin to wait; `waited` follows."""
    of_barrier(c, site, place, state.WAIT, bars, i, int64(parity))


@inner
def named_barrier(c, site, place, i, threads):
    """Come to a named barrier; `waited` follows."""
    asker = asked(c, site, place)
    operands = words_at(asker + 8 * Asker.OPERANDS, _COUNT)
    operands[0], operands[1] = i, threads
    perform(asker, state.COME)


named_barrier_arrive = named_barrier


@inner
def fence_async_shared(c, site, place):
    """Order the thread's stores before what other proxies read."""
    perform(asked(c, site, place), state.FENCE)


fence_barrier_init = fence_async_shared


@inner
def wgmma_commit(c, site, place):
    """Close a group of products."""
    perform(asked(c, site, place), state.COMMIT)


@inner
def wgmma_fence(c, site, place, acc, count):
    """Order accesses of registers before the products that follow: of all registers, also of those not named."""
    perform(asked(c, site, place), state.FENCE_REGISTERS)


@inner
def wgmma_wait(c, site, place, n, acc, count):
    """Begin to wait for products; `waited` follows."""
    asker = asked(c, site, place)
    operands = words_at(asker + 8 * Asker.OPERANDS, _COUNT)
    operands[0], operands[1], operands[2] = n, address_of(acc, 0), count
    perform(asker, state.WAIT_PRODUCTS)


@inner
def waited(begun, barrier):
    """Do nothing: the wait, which lies between its beginning and this, is over."""


@intrinsic
def checked_box(typingctx, target, x):
    """Do nothing; where types are compiled, refuse arrays that no tensor map has."""
    if getattr(x, "ndim", None) != 4 or x.dtype.bitwidth not in (8, 16):
        raise TypingError(f"cp_async_bulk_tensor: x has 4 axes, of elements of 8 or 16 bits; it is {x}")
    return signature(types.none, target, x), lambda context, builder, sig, args: context.get_dummy_value()


@inner
def cp_async_bulk_tensor(c, site, place, target, target_index, x, number, at, rows, bars, i):
    """Ask for a box of x."""
    checked_box(target, x)
    checked_barriers(bars)
    asker = asked(c, site, place)
    operands = words_at(asker + 8 * Asker.OPERANDS, _COUNT)
    operands[0] = address_of(bars, i)
    operands[1], operands[2], operands[3] = span(target, target_index)
    operands[4], operands[5] = rows, address_of(x, (0, 0, 0, 0))
    for axis in range(4):
        operands[6 + axis], operands[10 + axis] = x.shape[axis], x.strides[axis]
    if x.strides[3] != x.itemsize:
        operands[13] = 0  # refused
    operands[14], operands[15], operands[16], operands[17] = at
    perform(asker, state.COPY)


def wgmma(c, site, place, name, acc, a, a_at, b, b_at, leading, accumulate):
    """Ask for the product of this name, a constant."""


@inner_overload(wgmma, prefer_literal=True)
def _wgmma(c, site, place, name, acc, a, a_at, b, b_at, leading, accumulate):
    width, kind, registers, transposed = _PRODUCT_NAME.fullmatch(name.literal_value).groups()
    registers = registers is not None
    code = coded(int(width), tensor.CODES[kind], registers, transposed is not None)
    for what, array, wanted in (("acc", acc, "float32"), ("a", a, "uint32" if registers else str(a.dtype))):
        if str(array.dtype) != wanted:
            raise TypingError(f"{name.literal_value}: {what} must be of {wanted}, not {array.dtype}")

    def asked_for(c, site, place, name, acc, a, a_at, b, b_at, leading, accumulate):
        asker = asked(c, site, place)
        operands = words_at(asker + 8 * Asker.OPERANDS, _COUNT)
        operands[0] = code
        operands[1], _, operands[2] = span(acc, 0)
        if registers:
            operands[12], _, operands[13] = span(a, a_at)
            for i in range(4):
                operands[3 + i] = a[a_at + i]
        else:
            operands[3], operands[4], operands[5] = span(a, a_at)
            operands[12] = 0
        operands[7], operands[8], operands[9] = span(b, b_at)
        operands[10], operands[11] = leading, accumulate
        perform(asker, state.PRODUCT)

    return asked_for
