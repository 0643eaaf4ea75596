"""Registers of a watched thread, its local memory, while products have them: a byte of flags for each element."""

from numba.core import types

from workbench.cuda.emulator.async_state import MAX_PRODUCTS, Asker, Product
from workbench.cuda.emulator.hazards import READ_BEFORE_PRODUCT, REGISTER_WRITTEN, UNFENCED_REGISTER, found
from workbench.cuda.emulator.inner import inner
from workbench.cuda.emulator.intrinsics import peek, peek_byte, poke, poke_byte
from workbench.cuda.emulator.products import in_registers, product_at, width_of
from workbench.cuda.emulator.shadow import report
from workbench.cuda.emulator.watch_words import UNINITIALISED, Watch

int64, uint64 = types.int64, types.uint64

# numba freezes globals, not attributes of classes; positions become offsets in bytes
_LOCAL, _LOCAL_BYTES = 8 * Watch.LOCAL, 8 * Watch.LOCAL_BYTES
_LOCAL_SHADOW, _LOCAL_SHIFT, _ASKER = 8 * Watch.LOCAL_SHADOW, 8 * Watch.LOCAL_SHIFT, 8 * Watch.ASKER
_ASKED, _MADE, _SEEN = 8 * Asker.ASKED, 8 * Asker.MADE, 8 * Asker.SEEN
_WAIT_ACC, _WAIT_COUNT = 8 * Asker.ACC, 8 * Asker.ACC_COUNT
_ACC, _CODE, _ACCUMULATE = 8 * Product.ACC, 8 * Product.CODE, 8 * Product.ACCUMULATE
_REGISTERS_AT, _PLACE = 8 * Product.REGISTERS_AT, 8 * Product.PLACE
_A_BYTES = int64(16)  # of A in registers
#: flags of an element: written; a wgmma_fence lies between the last access and now; a product makes it, or reads it
WRITTEN, FENCED, MADE, TAKEN = 1, 2, 4, 8


@inner
def flags_at(watch, address):
    """Return the address of the flags of an element of local memory; 0 where an address lies elsewhere."""
    offset = uint64(address - peek(watch + _LOCAL))
    if offset >= uint64(peek(watch + _LOCAL_BYTES)):
        return int64(0)
    return peek(watch + _LOCAL_SHADOW) + int64(offset >> uint64(peek(watch + _LOCAL_SHIFT)))


@inner
def _product_place(watch, address):
    """Return the place of the last product that has a register."""
    asker = peek(watch + _ASKER)
    asked = peek(asker + _ASKED)
    for number in range(asked - 1, max(asked - MAX_PRODUCTS, 0) - 1, -1):
        product = product_at(asker, number)
        acc, taken = peek(product + _ACC), peek(product + _REGISTERS_AT)
        if acc <= address < acc + 2 * width_of(peek(product + _CODE)) or taken <= address < taken + 16:
            return peek(product + _PLACE)
    return int64(0)


@inner
def read_register(watch, flags, address, place):
    """Note a read by the thread."""
    known = peek_byte(flags)
    if not known & WRITTEN:
        report(watch, UNINITIALISED, place, int64(0), address)
    if known & MADE:
        found(watch, READ_BEFORE_PRODUCT, place, _product_place(watch, address), address)
    if known & FENCED:
        poke_byte(flags, known & ~FENCED)


@inner
def write_register(watch, flags, address, place):
    """Note a write by the thread."""
    if peek_byte(flags) & (MADE | TAKEN):
        found(watch, REGISTER_WRITTEN, place, _product_place(watch, address), address)
    poke_byte(flags, WRITTEN)


@inner
def _mark(watch, address, size, bit):
    """Set a flag of registers."""
    step = 1 << peek(watch + _LOCAL_SHIFT)
    for offset in range(0, size, step):
        flags = flags_at(watch, address + offset)
        poke_byte(flags, peek_byte(flags) | bit)


@inner
def _unmark(watch, address, size, bit):
    """Clear a flag of registers."""
    step = 1 << peek(watch + _LOCAL_SHIFT)
    for offset in range(0, size, step):
        flags = flags_at(watch, address + offset)
        poke_byte(flags, peek_byte(flags) & ~bit)


@inner
def _check(watch, product, address, size, is_read):
    """Report registers that a product cannot take: unwritten, unfenced, or those of a product of another shape."""
    step = 1 << peek(watch + _LOCAL_SHIFT)
    place = peek(product + _PLACE)
    for offset in range(0, size, step):
        known = peek_byte(flags_at(watch, address + offset))
        if is_read and not known & WRITTEN:
            report(watch, UNINITIALISED, place, int64(0), address + offset)
            return
        if known & MADE:
            if not _of_same_shape(watch, product, address):
                found(watch, READ_BEFORE_PRODUCT, place, _product_place(watch, address + offset), address + offset)
                return
        elif not known & FENCED:
            found(watch, UNFENCED_REGISTER, place, int64(0), address + offset)
            return


@inner
def _of_same_shape(watch, product, address):
    """Whether the product before it that has these registers has them as sums of the same shape."""
    asker = peek(watch + _ASKER)
    asked = peek(asker + _ASKED)
    for number in range(asked - 2, max(asked - MAX_PRODUCTS, 0) - 1, -1):
        other = product_at(asker, number)
        acc = peek(other + _ACC)
        if acc <= address < acc + 2 * width_of(peek(other + _CODE)):
            same = width_of(peek(other + _CODE)) == width_of(peek(product + _CODE))
            return same and acc == address and acc == peek(product + _ACC)
    return False


@inner
def take(watch, product):
    """Note that a product has its registers from now on."""
    code = peek(product + _CODE)
    size = 2 * width_of(code)
    _check(watch, product, peek(product + _ACC), size, peek(product + _ACCUMULATE) != 0)
    _mark(watch, peek(product + _ACC), size, WRITTEN | MADE)
    if in_registers(code):
        _check(watch, product, peek(product + _REGISTERS_AT), _A_BYTES, True)
        _mark(watch, peek(product + _REGISTERS_AT), _A_BYTES, TAKEN)


@inner
def give_back(watch, asker):
    """Note that products are made: registers that the wait names may be touched again, but for those of others."""
    made, asked = peek(asker + _MADE), peek(asker + _ASKED)
    for number in range(peek(asker + _SEEN), made):
        product = product_at(asker, number)
        if in_registers(peek(product + _CODE)):
            _unmark(watch, peek(product + _REGISTERS_AT), _A_BYTES, TAKEN)
    poke(asker + _SEEN, made)
    _unmark(watch, peek(asker + _WAIT_ACC), 4 * peek(asker + _WAIT_COUNT), MADE)
    for number in range(made, asked):
        product = product_at(asker, number)
        _mark(watch, peek(product + _ACC), 2 * width_of(peek(product + _CODE)), MADE)
        if in_registers(peek(product + _CODE)):
            _mark(watch, peek(product + _REGISTERS_AT), _A_BYTES, TAKEN)


@inner
def fence(watch):
    """Order the accesses of registers so far before the products that follow."""
    flags = peek(watch + _LOCAL_SHADOW)
    for byte in range(peek(watch + _LOCAL_BYTES) >> peek(watch + _LOCAL_SHIFT)):
        poke_byte(flags + byte, peek_byte(flags + byte) | FENCED)
