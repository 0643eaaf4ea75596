"""What a watcher is told: accesses, barriers, copies, products, and what is left at the end.

The kernel, the scheduler and `asynchronous` call these functions by their addresses. Like `schedule`, this file is
compiled once for all kernels, and only when the first one is watched.
"""

from numba import cfunc
from numba.core import types

from workbench.cuda.emulator import async_state as state
from workbench.cuda.emulator import clocks, hazards, ordered, products, registers
from workbench.cuda.emulator import watch_words as words
from workbench.cuda.emulator.async_state import Asker, Barrier, Block, Copy, Product
from workbench.cuda.emulator.boxes import row_source
from workbench.cuda.emulator.inner import inner
from workbench.cuda.emulator.intrinsics import get, poke, put
from workbench.cuda.emulator.mbarriers import number_of
from workbench.cuda.emulator.shadow import begin, report
from workbench.cuda.emulator.watch_words import Common, Watch

int64 = types.int64


_event = cfunc("int64(int64, int64, int64)", cache=True, error_model="numpy", _nrt=False)


@_event
def note(watch, address, access):
    """Note an access at a place, which what is done is added to."""
    place = access & words.MAX_PLACES - 1
    what = access - place
    if what == words.READ:
        ordered.read(watch, address, place)
    elif what == words.WRITE:
        ordered.write(watch, address, place)
    elif what == words.AWAIT:
        ordered.await_copy(watch, address, place)
    else:
        ordered.atomic(watch, address, place)
    return 0


# ---- threads that meet


@inner
def _warp_of(watches, thread):
    """Return the first thread of a warp and how many it has: of whom its rows know, where barriers of the block begin
    an epoch and `syncwarp` is all that orders others.
    """
    first = thread // 32 * 32
    return first, min(32, clocks.threads_of(watches) - first)


@_event
def begin_block(watches, threads, block):
    """Begin a block: nothing of its shared and local memory was written. Return 0, as all events do."""
    begin(watches, threads, block)
    common = get(watches, Watch.COMMON)
    put(common, Common.MET, 0)
    if clocks.is_asynchronous(watches):
        for index in range(clocks.meeting(watches) + 1):
            clocks.forget(watches, index)
        for word in range(threads * state.MAX_BARRIERS):
            poke(get(common, Common.WAITS) + 8 * word, 0)
    else:
        for thread in range(threads):
            first, count = _warp_of(watches, thread)
            clocks.clear(watches, thread, first, count)
    return 0


@inner
def _meet(watches, first, threads, group):
    """Threads from `first` on, those in the mask of a group or, of mask -1, all, have met: each knows what any knew."""
    room = clocks.meeting(watches)
    start, count = int64(0), clocks.width_of(watches)
    if not clocks.is_asynchronous(watches):
        start, count = _warp_of(watches, first)
    clocks.clear(watches, room, start, count)
    for i in range(threads):
        if group >> i & 1 or group == -1:
            clocks.tick(watches + (first + i) * 8 * Watch.WORDS)
            clocks.join_some(watches, room, first + i, start, count)
    for i in range(threads):
        if group >> i & 1 or group == -1:
            clocks.join_some(watches, first + i, room, start, count)


@_event
def pass_barrier(watches, threads, block):
    """All threads of a block have met. Where nothing is asynchronous an epoch begins, and all that was lies before."""
    if clocks.is_asynchronous(watches):
        _meet(watches, int64(0), threads, int64(-1))
        return 0
    common = get(watches, Watch.COMMON)
    put(common, Common.EPOCH, get(common, Common.EPOCH) + 1)
    put(common, Common.MET, get(common, Common.EPOCH) << words.EPOCH_SHIFT)
    for thread in range(threads):
        watch = watches + thread * 8 * Watch.WORDS
        put(watch, Watch.STAMP, get(watch, Watch.STAMP) + words.EPOCH)
    return 0


@_event
def meet_lanes(watches, first, group):
    """The lanes of a group of the warp that starts at thread `first` have met."""
    _meet(watches, first, int64(32), group)
    return 0


@_event
def miss_lane(watches, thread, site):
    """A thread asked for the value of a lane that does not take part in its shuffle."""
    report(watches + thread * 8 * Watch.WORDS, words.MISSING_LANES, site, int64(0), int64(0))
    return 0


# ---- what is under way


@inner
def _watch_of(asker, thread):
    """Return the watch of any thread of the block."""
    return get(get(get(asker, Asker.BLOCK), Block.ASKERS) + thread * 8 * Asker.WORDS, Asker.WATCH)


@inner
def _initialised(asker, watch, barrier):
    for offset in range(0, 8, ordered.step_of(watch)):
        ordered.write(watch, get(barrier, Barrier.ADDRESS) + offset, get(asker, Asker.PLACE))
    put(barrier, Barrier.INIT, get(watch, Watch.STAMP) | get(asker, Asker.PLACE))
    number = number_of(get(asker, Asker.BLOCK), barrier)
    clocks.forget(watch, clocks.arriving(watch, number))
    clocks.forget(watch, clocks.arrived(watch, number))


@inner
def _used(asker, watch, barrier):
    stamp = get(barrier, Barrier.INIT)
    if clocks.conflicts(watch, stamp, get(watch, Watch.STAMP), get(watch, Watch.BLOCK_START)):
        hazards.found(watch, hazards.NO_BARRIER, get(asker, Asker.PLACE), stamp, get(barrier, Barrier.ADDRESS))


@inner
def _completed(asker, watch, barrier):
    number = number_of(get(asker, Asker.BLOCK), barrier)
    before = clocks.arrived(watch, number)
    clocks.join(watch, before, clocks.arriving(watch, number))
    clocks.forget(watch, clocks.arriving(watch, number))
    clocks.learn(watch, before, clocks.copies_of(watch, number), get(barrier, Barrier.PHASE) + 1)


@inner
def _passed(asker, watch, barrier):
    number = number_of(get(asker, Asker.BLOCK), barrier)
    clocks.join(watch, clocks.own(watch), clocks.arrived(watch, number))
    wait = get(barrier, Barrier.PHASE) + 1 << 32 | get(asker, Asker.PLACE)
    poke(ordered.wait_at(watch, clocks.own(watch), number), wait)


@inner
def _asked_copy(asker, watch, copy):
    place, number = get(copy, Copy.PLACE), get(copy, Copy.BARRIER)
    barrier = get(asker, Asker.BLOCK) + 8 * Block.BARRIERS + number * 8 * Barrier.WORDS
    if not clocks.is_fenced(watch, get(barrier, Barrier.INIT)):
        hazards.found(watch, hazards.UNFENCED_BARRIER, place, get(barrier, Barrier.INIT), get(barrier, Barrier.ADDRESS))
    first, extent = get(copy, Copy.FIRST_BYTE), get(copy, Copy.ROW_EXTENT)
    for row in range(get(copy, Copy.ROWS)):
        source = row_source(copy, row)
        if source:
            for byte in range(max(first, 0), min(first + state.ROW_BYTES, extent)):
                ordered.read(watch, source + byte, place)
        target = get(copy, Copy.TARGET) + row * state.ROW_BYTES
        for byte in range(0, state.ROW_BYTES, ordered.step_of(watch)):
            ordered.written_by_copy(watch, target + byte, place, number, get(copy, Copy.PHASE))


@inner
def _short(asker, copy):
    """A phase completes while a copy for it is under way."""
    number = get(copy, Copy.BARRIER)
    barrier = get(asker, Asker.BLOCK) + 8 * Block.BARRIERS + number * 8 * Barrier.WORDS
    watch, announced = _watch_of(asker, get(copy, Copy.THREAD)), get(barrier, Barrier.EXPECT_PLACE)
    hazards.detailed(watch, get(barrier, Barrier.PHASE), get(barrier, Barrier.EXPECTED))
    place, other = get(copy, Copy.PLACE), int64(0)
    if announced:
        place, other = announced, place
    hazards.found(watch, hazards.BYTE_COUNT, place, other, get(barrier, Barrier.ADDRESS))


@inner
def _asked_product(asker, watch, product):
    code, place, group = get(product, Product.CODE), get(product, Product.PLACE), get(product, Product.GROUP)
    registers.take(watch, product)
    thread = get(asker, Asker.THREAD)
    if thread % 32:
        return  # the first lane tells what the warp reads
    step, itemsize = ordered.step_of(watch), products.itemsize_of(code)
    for k in range(products.depth_of(code)):
        for byte in range(0, itemsize, step):
            if not products.in_registers(code):
                for row in range(thread % 128 // 2, thread % 128 // 2 + 16):
                    ordered.read_by_product(watch, products.a_at(product, row, k) + byte, place, group)
            for column in range(products.width_of(code)):
                ordered.read_by_product(watch, products.b_at(product, k, column) + byte, place, group)


@inner
def _refused(asker, watch, why):
    """Report why a thread cannot go on, where that is a finding; other refusals are errors."""
    kind, address = int64(0), get(asker, Asker.OPERANDS)
    if why == state.UNINITIALISED:
        kind = hazards.NO_BARRIER
    elif why == state.SECOND_INIT:
        kind = hazards.SECOND_INIT
    elif why == state.MANY_ARRIVALS:
        kind = hazards.ARRIVAL_COUNT
    elif why == state.MISPLACED or why == state.OUTSIDE:
        kind = hazards.TILE_MISPLACED if why == state.MISPLACED else hazards.TILE_OUTSIDE
        address = get(get(asker, Asker.BLOCK), Block.REFUSED_AT)
    if kind:
        hazards.found(watch, kind, get(asker, Asker.PLACE), int64(0), address)


@inner
def _ended(asker):
    """Report what is under way when a block ends."""
    block = get(asker, Asker.BLOCK)
    for i in range(get(block, Block.COPY_COUNT)):
        copy = block + 8 * Block.COPIES + i * 8 * Copy.WORDS
        watch = _watch_of(asker, get(copy, Copy.THREAD))
        hazards.found(watch, hazards.UNFINISHED, get(copy, Copy.PLACE), int64(0), get(copy, Copy.TARGET))
    for thread in range(get(block, Block.THREADS)):
        other = get(block, Block.ASKERS) + thread * 8 * Asker.WORDS
        watch = get(other, Asker.WATCH)
        for number in range(get(other, Asker.MADE), get(other, Asker.ASKED)):
            product = products.product_at(other, number)
            hazards.found(watch, hazards.UNFINISHED, get(product, Product.PLACE), int64(0), get(product, Product.ACC))


@_event
def tell(asker, event, detail):
    """Take in an event of a thread: of a barrier, a copy or a product the detail is the address of its words."""
    watch = get(asker, Asker.WATCH)
    if event == state.ON_INIT:
        _initialised(asker, watch, detail)
    elif event == state.ON_USE:
        _used(asker, watch, detail)
    elif event == state.ON_ARRIVE:
        clocks.tick(watch)
        clocks.join(watch, clocks.arriving(watch, number_of(get(asker, Asker.BLOCK), detail)), clocks.own(watch))
    elif event == state.ON_COMPLETE:
        _completed(asker, watch, detail)
    elif event == state.ON_PASS:
        _passed(asker, watch, detail)
    elif event == state.ON_COPY:
        _asked_copy(asker, watch, detail)
    elif event == state.ON_SHORT:
        _short(asker, detail)
    elif event == state.ON_FENCE:
        clocks.fence(watch)
    elif event == state.ON_FENCE_REGISTERS:
        registers.fence(watch)
    elif event == state.ON_PRODUCT:
        _asked_product(asker, watch, detail)
    elif event == state.ON_PRODUCTS_DONE:
        clocks.learn(watch, clocks.own(watch), clocks.products_of(watch, clocks.own(watch)), detail)
        registers.give_back(watch, asker)
    elif event == state.ON_REFUSAL:
        _refused(asker, watch, detail)
    elif event == state.ON_END:
        _ended(asker)
    elif event == state.ON_NAMED_ARRIVE:
        clocks.tick(watch)
        clocks.join(watch, clocks.coming(watch, detail), clocks.own(watch))
    elif event == state.ON_NAMED_COMPLETE:
        clocks.join(watch, clocks.came(watch, detail), clocks.coming(watch, detail))
        clocks.forget(watch, clocks.coming(watch, detail))
    else:
        clocks.join(watch, clocks.own(watch), clocks.came(watch, detail))
    return 0
