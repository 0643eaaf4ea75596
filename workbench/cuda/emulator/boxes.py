"""Copies of boxes from global to shared memory: `cp.async.bulk.tensor`, with the swizzle of 128 bytes.

Rows of a box are made one after the other, and only once a thread waits for the barrier that they complete and can do
nothing else: a kernel that reads too early sees what was there.
"""

from workbench.cuda.emulator import async_state as state
from workbench.cuda.emulator.async_state import Asker, Barrier, Block, Copy
from workbench.cuda.emulator.inner import inner
from workbench.cuda.emulator.intrinsics import copy_bytes, get, peek, poke, put
from workbench.cuda.emulator.mbarriers import barrier_at, number_of, settle, tell


@inner
def swizzled(address):
    """Return where a byte lies: bits 4 to 6 of its address meet bits 7 to 9, the row."""
    return address ^ (address >> 3 & 0x70)


@inner
def ask(asker):
    """Append the copy that the operands ask for; return 0, or why not.

    Operands: the barrier's address; the target's, and where its array begins and ends; rows; address of x; its four
    extents and strides, in bytes; the place's batch, head, row and dim; ...
    """
    operands = asker + 8 * Asker.OPERANDS
    block = get(asker, Asker.BLOCK)
    barrier = barrier_at(block, peek(operands))
    target, rows, source = peek(operands + 8), peek(operands + 32), peek(operands + 40)
    if barrier == 0:
        return state.UNINITIALISED
    put(block, Block.REFUSED_AT, target)
    if (target - get(block, Block.SHARED)) % state.SWIZZLE_BYTES:
        return state.MISPLACED
    if rows <= 0 or target < peek(operands + 16) or target + rows * state.ROW_BYTES > peek(operands + 24):
        return state.OUTSIDE
    extents, strides, place = operands + 48, operands + 80, operands + 112
    itemsize = peek(strides + 24)
    if not 1 <= itemsize <= 2 or source % 16:
        return state.STRIDES
    for axis in range(3):
        if peek(extents + 8 * axis) > 1 and peek(strides + 8 * axis) % 16:
            return state.STRIDES
    number = get(block, Block.COPY_COUNT)
    if number == state.MAX_COPIES:
        return state.MANY_COPIES
    for axis in range(2):
        at = peek(place + 8 * axis)
        if not 0 <= at < peek(extents + 8 * axis):
            source = 0
        if source:
            source += at * peek(strides + 8 * axis)
    copy = block + 8 * Block.COPIES + number * 8 * Copy.WORDS
    put(block, Block.COPY_COUNT, number + 1)
    put(copy, Copy.BARRIER, number_of(block, barrier))
    put(copy, Copy.PHASE, get(barrier, Barrier.PHASE))
    put(copy, Copy.TARGET, target)
    put(copy, Copy.ROWS, rows)
    put(copy, Copy.MADE, 0)
    put(copy, Copy.SOURCE, source)
    put(copy, Copy.FIRST_ROW, peek(place + 16))
    put(copy, Copy.EXTENT, peek(extents + 16))
    put(copy, Copy.ROW_STRIDE, peek(strides + 16))
    put(copy, Copy.FIRST_BYTE, peek(place + 24) * itemsize)
    put(copy, Copy.ROW_EXTENT, peek(extents + 24) * itemsize)
    put(copy, Copy.THREAD, get(asker, Asker.THREAD))
    put(copy, Copy.PLACE, get(asker, Asker.PLACE))
    tell(asker, state.ON_USE, barrier)
    tell(asker, state.ON_COPY, copy)
    return 0


@inner
def row_source(copy, row):
    """Return the address of byte 0 of the row of x that a row of the box has; 0 where it lies outside."""
    at = get(copy, Copy.FIRST_ROW) + row
    inside = get(copy, Copy.SOURCE) and 0 <= at < get(copy, Copy.EXTENT)
    return get(copy, Copy.SOURCE) + at * get(copy, Copy.ROW_STRIDE) if inside else 0


@inner
def make_row(copy):
    """Make the next row of a copy, zeros where it lies outside of x."""
    row = get(copy, Copy.MADE)
    target, source = get(copy, Copy.TARGET) + row * state.ROW_BYTES, row_source(copy, row)
    for first in range(0, state.ROW_BYTES, 16):
        at = swizzled(target + first)
        poke(at, 0)
        poke(at + 8, 0)
        byte = get(copy, Copy.FIRST_BYTE) + first
        low, high = max(0, byte), min(byte + 16, get(copy, Copy.ROW_EXTENT))
        if source and low < high:
            copy_bytes(at + low - byte, source + low, high - low)
    put(copy, Copy.MADE, row + 1)


@inner
def make_for(asker, barrier):
    """Make copies that complete a barrier's bytes until its phase changes; return whether there was any."""
    block = get(asker, Asker.BLOCK)
    number, phase = number_of(block, barrier), get(barrier, Barrier.PHASE)
    made = False
    i = 0
    while i < get(block, Block.COPY_COUNT) and get(barrier, Barrier.PHASE) == phase:
        copy = block + 8 * Block.COPIES + i * 8 * Copy.WORDS
        if get(copy, Copy.BARRIER) != number:
            i += 1
            continue
        made = True
        make_row(copy)
        if get(copy, Copy.MADE) == get(copy, Copy.ROWS):
            left = get(block, Block.COPY_COUNT) - 1
            put(block, Block.COPY_COUNT, left)
            for _ in range(i, left):
                copy_bytes(copy, copy + 8 * Copy.WORDS, 8 * Copy.WORDS)
                copy += 8 * Copy.WORDS
        put(barrier, Barrier.BYTES, get(barrier, Barrier.BYTES) - state.ROW_BYTES)
        settle(asker, barrier)
    return made
