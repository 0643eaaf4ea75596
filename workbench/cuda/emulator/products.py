"""Products of a warp group: wgmma ("PTX ISA 9.0", asynchronous warpgroup-level matrix instructions).

They are made when the group waits for them, not before: a kernel that reads sums too early sees what was there, one
that overwrites factors too early multiplies what it wrote. Registers of A are those of the moment of the call. The four
warps of a group meet where they wait.
"""

import numpy as np

from workbench.case.tensor_cores import GENERATIONS
from workbench.cuda.emulator import async_state as state
from workbench.cuda.emulator import tensor
from workbench.cuda.emulator.async_state import Asker, Block, Product
from workbench.cuda.emulator.boxes import swizzled
from workbench.cuda.emulator.inner import inner
from workbench.cuda.emulator.intrinsics import get, peek, peek_byte, poke, put, words_at
from workbench.cuda.emulator.mbarriers import tell
from workbench.cuda.emulator.tensor import factor, step

_DECLARED = tuple(GENERATIONS["hopper"][kind] for kind in ("float16", "bfloat16", "float8"))
_EXTRA_BITS = tuple(one.extra_bits for one in _DECLARED)
_ALIKE = (Product.CODE, Product.A, Product.B, Product.LEADING, Product.ACCUMULATE, Product.GROUP)
# a step takes all products of an instruction
assert tuple(one.block for one in _DECLARED) == (16, 16, 32)


@inner
def width_of(code):
    """Return the columns of B."""
    return code & 0xFFF


@inner
def type_of(code):
    """Return the factors' type, of `tensor.CODES`."""
    return code >> 12 & 15


@inner
def in_registers(code):
    """Whether A lies in registers."""
    return code >> 16 & 1 == 1


@inner
def by_rows(code):
    """Whether B lies by rows, of 64 columns each."""
    return code >> 17 & 1 == 1


@inner
def depth_of(code):
    """Return the columns of A."""
    return 32 if type_of(code) == tensor.E4M3 else 16


@inner
def itemsize_of(code):
    """Return the bytes of a factor."""
    return 1 if type_of(code) == tensor.E4M3 else 2


@inner
def a_at(product, row, k):
    """Return where in shared memory an element of A lies."""
    return swizzled(get(product, Product.A) + row * state.ROW_BYTES + k * itemsize_of(get(product, Product.CODE)))


@inner
def b_at(product, k, column):
    """Return where in shared memory an element of B lies."""
    code = get(product, Product.CODE)
    if by_rows(code):
        tile = get(product, Product.B) + column // 64 * get(product, Product.LEADING)
        return swizzled(tile + k * state.ROW_BYTES + column % 64 * 2)
    return swizzled(get(product, Product.B) + column * state.ROW_BYTES + k * itemsize_of(code))


@inner
def _refused_tile(at, begin, end, last):
    """Return 0, or why a tile cannot begin at an address; `last` is that of its last byte."""
    if at % 16 or at % state.SWIZZLE_BYTES >= state.ROW_BYTES:
        return state.MISPLACED
    return state.OUTSIDE if at < begin or last >= end else 0


@inner
def _is_alone(asker):
    """Whether the warp group of a thread has fewer than 128 threads."""
    return (get(asker, Asker.THREAD) // state.GROUP + 1) * state.GROUP > get(get(asker, Asker.BLOCK), Block.THREADS)


@inner
def ask(asker):
    """Append the product that the operands ask for; return 0, or why not.

    Operands: code; address of the sums, and where their array ends; those of A, or four registers of it; B, where its
    array begins and ends; the distance of tiles of B; whether to accumulate; where the registers of A lie,
    and where their array ends.
    """
    operands = asker + 8 * Asker.OPERANDS
    code, acc, b = peek(operands), peek(operands + 8), peek(operands + 56)
    width, depth_bytes, leading = width_of(code), depth_of(code) * itemsize_of(code), peek(operands + 80)
    if _is_alone(asker):
        return state.LONE
    refused_at = get(asker, Asker.BLOCK) + 8 * Block.REFUSED_AT
    poke(refused_at, acc)
    if acc + 2 * width > peek(operands + 16):
        return state.OUTSIDE
    if in_registers(code):
        poke(refused_at, peek(operands + 96))
        refused = state.OUTSIDE if peek(operands + 96) + 16 > peek(operands + 104) else 0
    else:
        a = peek(operands + 24)
        poke(refused_at, a)
        refused = _refused_tile(a, peek(operands + 32), peek(operands + 40), a + 63 * state.ROW_BYTES + depth_bytes - 1)
    if refused:
        return refused
    poke(refused_at, b)
    last = b + (width - 1) * state.ROW_BYTES + depth_bytes - 1
    if by_rows(code):
        if b % state.SWIZZLE_BYTES or leading % state.SWIZZLE_BYTES:
            return state.MISPLACED
        last = b + (width - 1) // 64 * leading + 15 * state.ROW_BYTES + (width - 1) % 64 * 2 + 1
    refused = _refused_tile(b, peek(operands + 64), peek(operands + 72), last)
    if refused:
        return refused
    asked = get(asker, Asker.ASKED)
    if asked - get(asker, Asker.MADE) == state.MAX_PRODUCTS:
        return state.MANY_PRODUCTS
    product = product_at(asker, asked)
    put(asker, Asker.ASKED, asked + 1)
    put(product, Product.ACC, acc)
    put(product, Product.CODE, code)
    put(product, Product.A, 0 if in_registers(code) else peek(operands + 24))
    for i in range(4):
        poke(product + 8 * Product.REGISTERS + 8 * i, peek(operands + 24 + 8 * i) if in_registers(code) else 0)
    put(product, Product.B, b)
    put(product, Product.LEADING, leading)
    put(product, Product.ACCUMULATE, peek(operands + 88))
    put(product, Product.REGISTERS_AT, peek(operands + 96))
    put(product, Product.GROUP, get(asker, Asker.GROUPS))
    put(product, Product.PLACE, get(asker, Asker.PLACE))
    put(product, Product.SITE, get(asker, Asker.SITE))
    tell(asker, state.ON_PRODUCT, product)
    return 0


@inner
def product_at(asker, number):
    """Return the address of the words of a product, counted from the first that the thread asked for."""
    return asker + 8 * Asker.PRODUCTS + number % state.MAX_PRODUCTS * 8 * Product.WORDS


@inner
def begin_wait(asker):
    """Remember what the thread waits for: operands are the groups left, address of the registers, how many."""
    if _is_alone(asker):
        return state.LONE
    put(asker, Asker.GROUPS_LEFT, get(asker, Asker.OPERANDS))
    put(asker, Asker.ACC, peek(asker + 8 * Asker.OPERANDS + 8))
    put(asker, Asker.ACC_COUNT, peek(asker + 8 * Asker.OPERANDS + 16))
    return 0


@inner
def make_for(first):
    """Make the products that a warp group waits for, given its first thread's words; return 0, or why not."""
    groups = get(first, Asker.GROUPS) - get(first, Asker.GROUPS_LEFT)
    while get(first, Asker.MADE) < get(first, Asker.ASKED):
        product = product_at(first, get(first, Asker.MADE))
        if get(product, Product.GROUP) >= groups:
            break
        for lane in range(state.GROUP):
            asker = first + lane * 8 * Asker.WORDS
            other = product_at(asker, get(asker, Asker.MADE))
            if get(asker, Asker.MADE) == get(asker, Asker.ASKED) or not _alike(product, other):
                return state.DIFFERENT
        _make(first)
        for lane in range(state.GROUP):
            asker = first + lane * 8 * Asker.WORDS
            put(asker, Asker.MADE, get(asker, Asker.MADE) + 1)
    for lane in range(state.GROUP):
        tell(first + lane * 8 * Asker.WORDS, state.ON_PRODUCTS_DONE, groups)
    return 0


@inner
def _alike(product, other):
    """Whether two threads ask for the same: all but addresses of sums, and registers."""
    for word in _ALIKE:
        if get(product, word) != get(other, word):
            return False
    return True


@inner
def _loaded(address, itemsize):
    low = peek_byte(address)
    return low if itemsize == 1 else low | peek_byte(address + 1) << 8


@inner(_nrt=True)
def _make(first):
    """Make the first product that is left of a warp group, given its first thread's words."""
    product = product_at(first, get(first, Asker.MADE))
    code = get(product, Product.CODE)
    width, depth, itemsize, kind = width_of(code), depth_of(code), itemsize_of(code), type_of(code)
    a, b = np.empty((2, 64, depth), np.int64), np.empty((2, width, depth), np.int64)
    if in_registers(code):
        packed = 4 // itemsize
        for thread in range(state.GROUP):
            asker = first + thread * 8 * Asker.WORDS
            registers = product_at(asker, get(asker, Asker.MADE)) + 8 * Product.REGISTERS
            g, t = thread % 32 // 4, thread % 4
            for register in range(4):
                for i in range(packed):
                    row, k = thread // 32 * 16 + register % 2 * 8 + g, packed * (t + register // 2 * 4) + i
                    bits = peek(registers + 8 * register) >> 8 * itemsize * i & (1 << 8 * itemsize) - 1
                    a[0, row, k], a[1, row, k] = factor(bits, kind)
    else:
        for row in range(64):
            for k in range(depth):
                a[0, row, k], a[1, row, k] = factor(_loaded(a_at(product, row, k), itemsize), kind)
    for column in range(width):
        for k in range(depth):
            b[0, column, k], b[1, column, k] = factor(_loaded(b_at(product, k, column), itemsize), kind)
    for thread in range(state.GROUP):
        asker = first + thread * 8 * Asker.WORDS
        sums = get(product_at(asker, get(asker, Asker.MADE)), Product.ACC)
        pairs = np.empty(1, np.int64)
        for i in range(0, width // 2, 2):  # neighbours, two float32
            row = thread // 32 * 16 + thread % 32 // 4 + i % 4 // 2 * 8
            column = i // 4 * 8 + thread % 4 * 2
            pair = words_at(sums + 4 * i, 1)
            pairs[0] = pair[0] if get(product, Product.ACCUMULATE) else 0
            made = np.int64(0)
            for j in range(2):
                c = pairs[0] >> 32 * j & 0xFFFFFFFF
                parts = a[0, row], a[1, row], b[0, column + j], b[1, column + j]
                made |= step(*parts, 2 * tensor.FRACTION_BITS[kind], c, _EXTRA_BITS[kind]) << 32 * j
            pair[0] = made
