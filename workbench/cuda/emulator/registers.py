"""Registers of a watched thread, its local memory, while products have them: a byte of flags for each element."""

from numba.core import types

from workbench.cuda.emulator.async_state import MAX_PRODUCTS, Asker, Product
from workbench.cuda.emulator.hazards import READ_BEFORE_PRODUCT, REGISTER_WRITTEN, UNFENCED_REGISTER, found
from workbench.cuda.emulator.inner import inner
from workbench.cuda.emulator.intrinsics import get, peek_byte, poke_byte, put
from workbench.cuda.emulator.products import in_registers, product_at, width_of
from workbench.cuda.emulator.shadow import report
from workbench.cuda.emulator.watch_words import UNINITIALISED, Watch

int64, uint64 = types.int64, types.uint64

_A_BYTES = int64(16)  # of A in registers
#: flags of an element: written; a wgmma_fence lies between the last access and now; a product makes it, or reads it
WRITTEN, FENCED, MADE, TAKEN = 1, 2, 4, 8


@inner
def flags_at(watch, address):
    """Return the address of the flags of an element of local memory; 0 where an address lies elsewhere."""
    offset = uint64(address - get(watch, Watch.LOCAL))
    if offset >= uint64(get(watch, Watch.LOCAL_BYTES)):
        return int64(0)
    return get(watch, Watch.LOCAL_SHADOW) + int64(offset >> uint64(get(watch, Watch.LOCAL_SHIFT)))


@inner
def _product_place(watch, address):
    """Return the place of the last product that has a register."""
    asker = get(watch, Watch.ASKER)
    asked = get(asker, Asker.ASKED)
    for number in range(asked - 1, max(asked - MAX_PRODUCTS, 0) - 1, -1):
        product = product_at(asker, number)
        acc, taken = get(product, Product.ACC), get(product, Product.REGISTERS_AT)
        if acc <= address < acc + 2 * width_of(get(product, Product.CODE)) or taken <= address < taken + 16:
            return get(product, Product.PLACE)
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
def _mark(watch, address, size, bits, is_set):
    """Set flags of registers, or clear them."""
    step = 1 << get(watch, Watch.LOCAL_SHIFT)
    for offset in range(0, size, step):
        flags = flags_at(watch, address + offset)
        poke_byte(flags, peek_byte(flags) | bits if is_set else peek_byte(flags) & ~bits)


@inner
def _check(watch, product, address, size, is_read):
    """Report registers that a product cannot take: unwritten, unfenced, or those of a product of another shape."""
    step = 1 << get(watch, Watch.LOCAL_SHIFT)
    place = get(product, Product.PLACE)
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
    asker = get(watch, Watch.ASKER)
    asked = get(asker, Asker.ASKED)
    for number in range(asked - 2, max(asked - MAX_PRODUCTS, 0) - 1, -1):
        other = product_at(asker, number)
        acc = get(other, Product.ACC)
        if acc <= address < acc + 2 * width_of(get(other, Product.CODE)):
            same = width_of(get(other, Product.CODE)) == width_of(get(product, Product.CODE))
            return same and acc == address and acc == get(product, Product.ACC)
    return False


@inner
def take(watch, product):
    """Note that a product has its registers from now on."""
    code = get(product, Product.CODE)
    size = 2 * width_of(code)
    _check(watch, product, get(product, Product.ACC), size, get(product, Product.ACCUMULATE) != 0)
    _mark(watch, get(product, Product.ACC), size, WRITTEN | MADE, True)
    if in_registers(code):
        _check(watch, product, get(product, Product.REGISTERS_AT), _A_BYTES, True)
        _mark(watch, get(product, Product.REGISTERS_AT), _A_BYTES, TAKEN, True)


@inner
def give_back(watch, asker):
    """Note that products are made: registers that the wait names may be touched again, but for those of others."""
    made, asked = get(asker, Asker.MADE), get(asker, Asker.ASKED)
    for number in range(get(asker, Asker.SEEN), made):
        product = product_at(asker, number)
        if in_registers(get(product, Product.CODE)):
            _mark(watch, get(product, Product.REGISTERS_AT), _A_BYTES, TAKEN, False)
    put(asker, Asker.SEEN, made)
    _mark(watch, get(asker, Asker.ACC), 4 * get(asker, Asker.ACC_COUNT), MADE, False)
    for number in range(made, asked):
        product = product_at(asker, number)
        _mark(watch, get(product, Product.ACC), 2 * width_of(get(product, Product.CODE)), MADE, True)
        if in_registers(get(product, Product.CODE)):
            _mark(watch, get(product, Product.REGISTERS_AT), _A_BYTES, TAKEN, True)


@inner
def fence(watch):
    """Order the accesses of registers so far before the products that follow."""
    flags = get(watch, Watch.LOCAL_SHADOW)
    for byte in range(get(watch, Watch.LOCAL_BYTES) >> get(watch, Watch.LOCAL_SHIFT)):
        poke_byte(flags + byte, peek_byte(flags + byte) | FENCED)
