"""Copies of boxes from global to shared memory: `cp.async.bulk.tensor`, with the swizzle of 128 bytes.

Rows of a box are made one after the other, and only once a thread waits for the barrier that they complete and can do
nothing else: a kernel that reads too early sees what was there.
"""

from workbench.cuda.emulator import async_state as state
from workbench.cuda.emulator.async_state import Asker, Barrier, Block, Copy
from workbench.cuda.emulator.inner import inner
from workbench.cuda.emulator.intrinsics import copy_bytes, peek, poke
from workbench.cuda.emulator.mbarriers import barrier_at, number_of, settle, tell

# numba freezes globals, not attributes of classes; positions become offsets in bytes
_BLOCK, _THREAD, _PLACE, _OPERANDS = 8 * Asker.BLOCK, 8 * Asker.THREAD, 8 * Asker.PLACE, 8 * Asker.OPERANDS
_COPY_COUNT, _COPIES, _BARRIERS = 8 * Block.COPY_COUNT, 8 * Block.COPIES, 8 * Block.BARRIERS
_SHARED, _REFUSED_AT = 8 * Block.SHARED, 8 * Block.REFUSED_AT
_PHASE, _BYTES, _BARRIER_BYTES = 8 * Barrier.PHASE, 8 * Barrier.BYTES, 8 * Barrier.WORDS
_BARRIER, _COPY_PHASE, _TARGET, _ROWS = 8 * Copy.BARRIER, 8 * Copy.PHASE, 8 * Copy.TARGET, 8 * Copy.ROWS
_MADE, _SOURCE, _FIRST_ROW, _EXTENT = 8 * Copy.MADE, 8 * Copy.SOURCE, 8 * Copy.FIRST_ROW, 8 * Copy.EXTENT
_ROW_STRIDE, _FIRST_BYTE, _ROW_EXTENT = 8 * Copy.ROW_STRIDE, 8 * Copy.FIRST_BYTE, 8 * Copy.ROW_EXTENT
_COPY_THREAD, _COPY_PLACE, _COPY_BYTES = 8 * Copy.THREAD, 8 * Copy.PLACE, 8 * Copy.WORDS
MAX_COPIES, ROW_BYTES, SWIZZLE_BYTES = state.MAX_COPIES, state.ROW_BYTES, state.SWIZZLE_BYTES
UNINITIALISED, MISPLACED, OUTSIDE = state.UNINITIALISED, state.MISPLACED, state.OUTSIDE
MANY_COPIES, STRIDES = state.MANY_COPIES, state.STRIDES
ON_USE, ON_COPY = state.ON_USE, state.ON_COPY


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
    operands = asker + _OPERANDS
    block = peek(asker + _BLOCK)
    barrier = barrier_at(block, peek(operands))
    target, rows, source = peek(operands + 8), peek(operands + 32), peek(operands + 40)
    if barrier == 0:
        return UNINITIALISED
    poke(block + _REFUSED_AT, target)
    if (target - peek(block + _SHARED)) % SWIZZLE_BYTES:
        return MISPLACED
    if rows <= 0 or target < peek(operands + 16) or target + rows * ROW_BYTES > peek(operands + 24):
        return OUTSIDE
    extents, strides, place = operands + 48, operands + 80, operands + 112
    itemsize = peek(strides + 24)
    if not 1 <= itemsize <= 2 or source % 16:
        return STRIDES
    for axis in range(3):
        if peek(extents + 8 * axis) > 1 and peek(strides + 8 * axis) % 16:
            return STRIDES
    number = peek(block + _COPY_COUNT)
    if number == MAX_COPIES:
        return MANY_COPIES
    for axis in range(2):
        at = peek(place + 8 * axis)
        if not 0 <= at < peek(extents + 8 * axis):
            source = 0
        if source:
            source += at * peek(strides + 8 * axis)
    copy = block + _COPIES + number * _COPY_BYTES
    poke(block + _COPY_COUNT, number + 1)
    poke(copy + _BARRIER, number_of(block, barrier))
    poke(copy + _COPY_PHASE, peek(barrier + _PHASE))
    poke(copy + _TARGET, target)
    poke(copy + _ROWS, rows)
    poke(copy + _MADE, 0)
    poke(copy + _SOURCE, source)
    poke(copy + _FIRST_ROW, peek(place + 16))
    poke(copy + _EXTENT, peek(extents + 16))
    poke(copy + _ROW_STRIDE, peek(strides + 16))
    poke(copy + _FIRST_BYTE, peek(place + 24) * itemsize)
    poke(copy + _ROW_EXTENT, peek(extents + 24) * itemsize)
    poke(copy + _COPY_THREAD, peek(asker + _THREAD))
    poke(copy + _COPY_PLACE, peek(asker + _PLACE))
    tell(asker, ON_USE, barrier)
    tell(asker, ON_COPY, copy)
    return 0


@inner
def row_source(copy, row):
    """Return the address of byte 0 of the row of x that a row of the box has; 0 where it lies outside."""
    at = peek(copy + _FIRST_ROW) + row
    inside = peek(copy + _SOURCE) and 0 <= at < peek(copy + _EXTENT)
    return peek(copy + _SOURCE) + at * peek(copy + _ROW_STRIDE) if inside else 0


@inner
def make_row(copy):
    """Make the next row of a copy, zeros where it lies outside of x."""
    row = peek(copy + _MADE)
    target, source = peek(copy + _TARGET) + row * ROW_BYTES, row_source(copy, row)
    for first in range(0, ROW_BYTES, 16):
        at = swizzled(target + first)
        poke(at, 0)
        poke(at + 8, 0)
        byte = peek(copy + _FIRST_BYTE) + first
        low, high = max(0, byte), min(byte + 16, peek(copy + _ROW_EXTENT))
        if source and low < high:
            copy_bytes(at + low - byte, source + low, high - low)
    poke(copy + _MADE, row + 1)


@inner
def make_for(asker, barrier):
    """Make copies that complete a barrier's bytes until its phase changes; return whether there was any."""
    block = peek(asker + _BLOCK)
    number, phase = number_of(block, barrier), peek(barrier + _PHASE)
    made = False
    i = 0
    while i < peek(block + _COPY_COUNT) and peek(barrier + _PHASE) == phase:
        copy = block + _COPIES + i * _COPY_BYTES
        if peek(copy + _BARRIER) != number:
            i += 1
            continue
        made = True
        make_row(copy)
        if peek(copy + _MADE) == peek(copy + _ROWS):
            left = peek(block + _COPY_COUNT) - 1
            poke(block + _COPY_COUNT, left)
            for _ in range(i, left):
                copy_bytes(copy, copy + _COPY_BYTES, _COPY_BYTES)
                copy += _COPY_BYTES
        poke(barrier + _BYTES, peek(barrier + _BYTES) - ROW_BYTES)
        settle(asker, barrier)
    return made
