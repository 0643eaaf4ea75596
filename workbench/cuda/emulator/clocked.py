"""What a watcher of asynchronous operations is told: accesses, barriers, copies, products, and what is left at the end.

The kernel, the scheduler and `asynchronous` call these functions by their addresses. Like `epochs`, in whose place it
is, this file is compiled once for all kernels, and only when the first one of this kind is watched.
"""

from numba import cfunc
from numba.core import types

from workbench.cuda.emulator import async_state as state
from workbench.cuda.emulator import clocks, ordered, registers
from workbench.cuda.emulator.async_state import Asker, Barrier, Block, Copy, Product
from workbench.cuda.emulator.boxes import row_source
from workbench.cuda.emulator.hazards import (
    ARRIVAL_COUNT,
    BYTE_COUNT,
    NO_BARRIER,
    SECOND_INIT,
    TILE_MISPLACED,
    TILE_OUTSIDE,
    UNFENCED_BARRIER,
    UNFINISHED,
    detailed,
    found,
)
from workbench.cuda.emulator.inner import inner
from workbench.cuda.emulator.intrinsics import peek, poke, poke_byte
from workbench.cuda.emulator.products import (
    a_at,
    b_at,
    depth_of,
    in_registers,
    itemsize_of,
    product_at,
    width_of,
)
from workbench.cuda.emulator.shadow import report
from workbench.cuda.emulator.watch_words import (
    AWAIT,
    EPOCH_SHIFT,
    MAX_PLACES,
    MISSING_LANES,
    READ,
    THREAD_SHIFT,
    WRITE,
    Common,
    Watch,
)

int64 = types.int64

# numba freezes globals, not attributes of classes and modules; positions become offsets in bytes
_STAMP, _BLOCK_START, _BLOCK = 8 * Watch.STAMP, 8 * Watch.BLOCK_START, 8 * Watch.BLOCK
_LOCAL_BYTES, _LOCAL_SHADOW, _LOCAL_SHIFT = 8 * Watch.LOCAL_BYTES, 8 * Watch.LOCAL_SHADOW, 8 * Watch.LOCAL_SHIFT
_SHARED_SHIFT, _NDIM, _INDEX = 8 * Watch.SHARED_SHIFT, 8 * Watch.NDIM, 8 * Watch.INDEX
_STEPS, _COMMON, _WATCH_BYTES = 8 * Watch.STEPS, 8 * Watch.COMMON, 8 * Watch.WORDS
_EPOCH, _ALL_STEPS, _WAITS = 8 * Common.EPOCH, 8 * Common.STEPS, 8 * Common.WAITS
_ASKER_BLOCK, _THREAD, _WATCH = 8 * Asker.BLOCK, 8 * Asker.THREAD, 8 * Asker.WATCH
_PLACE, _OPERANDS, _ASKED, _MADE = 8 * Asker.PLACE, 8 * Asker.OPERANDS, 8 * Asker.ASKED, 8 * Asker.MADE
_ASKER_BYTES, _REFUSED_AT = 8 * Asker.WORDS, 8 * Block.REFUSED_AT
_THREADS, _ASKERS, _BARRIERS = 8 * Block.THREADS, 8 * Block.ASKERS, 8 * Block.BARRIERS
_COPY_COUNT, _COPIES = 8 * Block.COPY_COUNT, 8 * Block.COPIES
_ADDRESS, _PHASE, _EXPECTED = 8 * Barrier.ADDRESS, 8 * Barrier.PHASE, 8 * Barrier.EXPECTED
_EXPECT_PLACE, _INIT, _BARRIER_BYTES = 8 * Barrier.EXPECT_PLACE, 8 * Barrier.INIT, 8 * Barrier.WORDS
_COPY_BARRIER, _COPY_PHASE, _TARGET, _ROWS = 8 * Copy.BARRIER, 8 * Copy.PHASE, 8 * Copy.TARGET, 8 * Copy.ROWS
_COPY_THREAD, _COPY_PLACE, _COPY_BYTES = 8 * Copy.THREAD, 8 * Copy.PLACE, 8 * Copy.WORDS
_FIRST_BYTE, _ROW_EXTENT = 8 * Copy.FIRST_BYTE, 8 * Copy.ROW_EXTENT
_SUMS, _CODE, _GROUP = 8 * Product.ACC, 8 * Product.CODE, 8 * Product.GROUP
_PRODUCT_PLACE = 8 * Product.PLACE
ON_INIT, ON_USE, ON_ARRIVE, ON_COMPLETE = state.ON_INIT, state.ON_USE, state.ON_ARRIVE, state.ON_COMPLETE
ON_PASS, ON_COPY, ON_SHORT, ON_FENCE = state.ON_PASS, state.ON_COPY, state.ON_SHORT, state.ON_FENCE
ON_FENCE_REGISTERS, ON_PRODUCT = state.ON_FENCE_REGISTERS, state.ON_PRODUCT
ON_PRODUCTS_DONE, ON_REFUSAL, ON_END = state.ON_PRODUCTS_DONE, state.ON_REFUSAL, state.ON_END
ON_NAMED_ARRIVE, ON_NAMED_COMPLETE = state.ON_NAMED_ARRIVE, state.ON_NAMED_COMPLETE
ROW_BYTES, MAX_BARRIERS = state.ROW_BYTES, state.MAX_BARRIERS
REFUSED_UNINITIALISED, REFUSED_INIT = state.UNINITIALISED, state.SECOND_INIT
REFUSED_ARRIVALS, REFUSED_PLACE, REFUSED_END = state.MANY_ARRIVALS, state.MISPLACED, state.OUTSIDE

_event = cfunc("int64(int64, int64, int64)", cache=True, error_model="numpy", _nrt=False)


@_event
def note(watch, address, access):
    """Note an access at a place, which what is done is added to."""
    place = access & MAX_PLACES - 1
    what = access - place
    if what == READ:
        ordered.read(watch, address, place)
    elif what == WRITE:
        ordered.write(watch, address, place)
    elif what == AWAIT:
        ordered.await_copy(watch, address, place)
    else:
        ordered.atomic(watch, address, place)
    return 0


# ---- threads that meet


@_event
def begin_block(watches, threads, block):
    """Begin a block: nothing of its shared and local memory was written. Return 0, as all events do."""
    common = peek(watches + _COMMON)
    epoch = peek(common + _EPOCH) + 1
    poke(common + _EPOCH, epoch)
    for index in range(clocks.meeting(watches) + 1):
        clocks.clear(watches, index)
    for word in range(threads * MAX_BARRIERS):
        poke(peek(common + _WAITS) + 8 * word, 0)
    for thread in range(threads):
        watch = watches + thread * _WATCH_BYTES
        poke(watch + _BLOCK_START, epoch << EPOCH_SHIFT)
        poke(watch + _STAMP, (epoch << EPOCH_SHIFT) + (thread << THREAD_SHIFT))
        poke(watch + _BLOCK, block)
        poke(watch + _STEPS, peek(common + _ALL_STEPS))
        for byte in range(peek(watch + _LOCAL_BYTES) >> peek(watch + _LOCAL_SHIFT)):
            poke_byte(peek(watch + _LOCAL_SHADOW) + byte, 0)
    return 0


@inner
def _meet(watches, first, threads, group):
    """Threads from `first` on, those in the mask of a group or, of mask -1, all, have met: each knows what any knew."""
    room = clocks.meeting(watches)
    clocks.clear(watches, room)
    for i in range(threads):
        if group >> i & 1 or group == -1:
            watch = watches + (first + i) * _WATCH_BYTES
            clocks.tick(watch)
            clocks.join(watches, room, first + i)
    for i in range(threads):
        if group >> i & 1 or group == -1:
            clocks.join(watches, first + i, room)


@_event
def pass_barrier(watches, threads, block):
    """All threads of a block have met."""
    _meet(watches, int64(0), threads, int64(-1))
    return 0


@_event
def meet_lanes(watches, first, group):
    """The lanes of a group of the warp that starts at thread `first` have met."""
    _meet(watches, first, int64(32), group)
    return 0


@_event
def miss_lane(watches, thread, site):
    """A thread asked for the value of a lane that does not take part in its shuffle."""
    report(watches + thread * _WATCH_BYTES, MISSING_LANES, site, int64(0), int64(0))
    return 0


# ---- what is under way


@inner
def _number(asker, barrier):
    return (barrier - peek(asker + _ASKER_BLOCK) - _BARRIERS) // _BARRIER_BYTES


@inner
def _watch_of(asker, thread):
    """Return the watch of any thread of the block."""
    return peek(peek(peek(asker + _ASKER_BLOCK) + _ASKERS) + thread * _ASKER_BYTES + _WATCH)


@inner
def _initialised(asker, watch, barrier):
    for offset in range(0, 8, ordered.step_of(watch)):
        ordered.write(watch, peek(barrier + _ADDRESS) + offset, peek(asker + _PLACE))
    poke(barrier + _INIT, peek(watch + _STAMP) | peek(asker + _PLACE))
    number = _number(asker, barrier)
    clocks.clear(watch, clocks.arriving(watch, number))
    clocks.clear(watch, clocks.arrived(watch, number))


@inner
def _used(asker, watch, barrier):
    stamp = peek(barrier + _INIT)
    if clocks.conflicts(watch, stamp, peek(watch + _STAMP), peek(watch + _BLOCK_START)):
        found(watch, NO_BARRIER, peek(asker + _PLACE), stamp, peek(barrier + _ADDRESS))


@inner
def _completed(asker, watch, barrier):
    number = _number(asker, barrier)
    before = clocks.arrived(watch, number)
    clocks.join(watch, before, clocks.arriving(watch, number))
    clocks.clear(watch, clocks.arriving(watch, number))
    clocks.learn(watch, before, clocks.copies_of(watch, number), peek(barrier + _PHASE) + 1)


@inner
def _passed(asker, watch, barrier):
    number = _number(asker, barrier)
    clocks.join(watch, clocks.own(watch), clocks.arrived(watch, number))
    poke(ordered.wait_at(watch, clocks.own(watch), number), peek(barrier + _PHASE) + 1 << 32 | peek(asker + _PLACE))


@inner
def _asked_copy(asker, watch, copy):
    place, number = peek(copy + _COPY_PLACE), peek(copy + _COPY_BARRIER)
    barrier = peek(asker + _ASKER_BLOCK) + _BARRIERS + number * _BARRIER_BYTES
    if not clocks.is_fenced(watch, peek(barrier + _INIT)):
        found(watch, UNFENCED_BARRIER, place, peek(barrier + _INIT), peek(barrier + _ADDRESS))
    first, extent = peek(copy + _FIRST_BYTE), peek(copy + _ROW_EXTENT)
    for row in range(peek(copy + _ROWS)):
        source = row_source(copy, row)
        if source:
            for byte in range(max(first, 0), min(first + ROW_BYTES, extent)):
                ordered.read(watch, source + byte, place)
        target = peek(copy + _TARGET) + row * ROW_BYTES
        for byte in range(0, ROW_BYTES, ordered.step_of(watch)):
            ordered.written_by_copy(watch, target + byte, place, number, peek(copy + _COPY_PHASE))


@inner
def _short(asker, copy):
    """A phase completes while a copy for it is under way."""
    number = peek(copy + _COPY_BARRIER)
    barrier = peek(asker + _ASKER_BLOCK) + _BARRIERS + number * _BARRIER_BYTES
    watch, announced = _watch_of(asker, peek(copy + _COPY_THREAD)), peek(barrier + _EXPECT_PLACE)
    detailed(watch, peek(barrier + _PHASE), peek(barrier + _EXPECTED))
    place, other = peek(copy + _COPY_PLACE), int64(0)
    if announced:
        place, other = announced, place
    found(watch, BYTE_COUNT, place, other, peek(barrier + _ADDRESS))


@inner
def _asked_product(asker, watch, product):
    code, place, group = peek(product + _CODE), peek(product + _PRODUCT_PLACE), peek(product + _GROUP)
    registers.take(watch, product)
    thread = peek(asker + _THREAD)
    if thread % 32:
        return  # the first lane tells what the warp reads
    step, itemsize = ordered.step_of(watch), itemsize_of(code)
    for k in range(depth_of(code)):
        for byte in range(0, itemsize, step):
            if not in_registers(code):
                for row in range(thread % 128 // 2, thread % 128 // 2 + 16):
                    ordered.read_by_product(watch, a_at(product, row, k) + byte, place, group)
            for column in range(width_of(code)):
                ordered.read_by_product(watch, b_at(product, k, column) + byte, place, group)


@inner
def _refused(asker, watch, why):
    """Report why a thread cannot go on, where that is a finding; other refusals are errors."""
    kind, address = int64(0), peek(asker + _OPERANDS)
    if why == REFUSED_UNINITIALISED:
        kind = NO_BARRIER
    elif why == REFUSED_INIT:
        kind = SECOND_INIT
    elif why == REFUSED_ARRIVALS:
        kind = ARRIVAL_COUNT
    elif why == REFUSED_PLACE or why == REFUSED_END:
        kind = TILE_MISPLACED if why == REFUSED_PLACE else TILE_OUTSIDE
        address = peek(peek(asker + _ASKER_BLOCK) + _REFUSED_AT)
    if kind:
        found(watch, kind, peek(asker + _PLACE), int64(0), address)


@inner
def _ended(asker):
    """Report what is under way when a block ends."""
    block = peek(asker + _ASKER_BLOCK)
    for i in range(peek(block + _COPY_COUNT)):
        copy = block + _COPIES + i * _COPY_BYTES
        watch = _watch_of(asker, peek(copy + _COPY_THREAD))
        found(watch, UNFINISHED, peek(copy + _COPY_PLACE), int64(0), peek(copy + _TARGET))
    for thread in range(peek(block + _THREADS)):
        other = peek(block + _ASKERS) + thread * _ASKER_BYTES
        watch = peek(other + _WATCH)
        for number in range(peek(other + _MADE), peek(other + _ASKED)):
            product = product_at(other, number)
            found(watch, UNFINISHED, peek(product + _PRODUCT_PLACE), int64(0), peek(product + _SUMS))


@_event
def tell(asker, event, detail):
    """Take in an event of a thread: of a barrier, a copy or a product the detail is the address of its words."""
    watch = peek(asker + _WATCH)
    if event == ON_INIT:
        _initialised(asker, watch, detail)
    elif event == ON_USE:
        _used(asker, watch, detail)
    elif event == ON_ARRIVE:
        clocks.tick(watch)
        clocks.join(watch, clocks.arriving(watch, _number(asker, detail)), clocks.own(watch))
    elif event == ON_COMPLETE:
        _completed(asker, watch, detail)
    elif event == ON_PASS:
        _passed(asker, watch, detail)
    elif event == ON_COPY:
        _asked_copy(asker, watch, detail)
    elif event == ON_SHORT:
        _short(asker, detail)
    elif event == ON_FENCE:
        clocks.fence(watch)
    elif event == ON_FENCE_REGISTERS:
        registers.fence(watch)
    elif event == ON_PRODUCT:
        _asked_product(asker, watch, detail)
    elif event == ON_PRODUCTS_DONE:
        clocks.learn(watch, clocks.own(watch), clocks.products_of(watch, clocks.own(watch)), detail)
        registers.give_back(watch, asker)
    elif event == ON_REFUSAL:
        _refused(asker, watch, detail)
    elif event == ON_END:
        _ended(asker)
    elif event == ON_NAMED_ARRIVE:
        clocks.tick(watch)
        clocks.join(watch, clocks.coming(watch, detail), clocks.own(watch))
    elif event == ON_NAMED_COMPLETE:
        clocks.join(watch, clocks.came(watch, detail), clocks.coming(watch, detail))
        clocks.clear(watch, clocks.coming(watch, detail))
    else:
        clocks.join(watch, clocks.own(watch), clocks.came(watch, detail))
    return 0
