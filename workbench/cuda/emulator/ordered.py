"""Happens-before shadow memory: vector clocks tell what lies before what (`clocks`), and asynchronous copies and
products touch memory as somebody else than the thread that asked for them.

An element of shared memory has the stamp of the last write, then for each warp those of two readers since, the first
and the last of those that nothing orders, then for each warp group that of the last product which read it. Elements of
global memory have three stamps, of the last write and of two readers: a write may miss a third one. Of local memory see
`registers`.
"""

from numba.core import types

from workbench.cuda.emulator import clocks, hazards
from workbench.cuda.emulator import watch_words as words
from workbench.cuda.emulator.async_state import MAX_BARRIERS
from workbench.cuda.emulator.inner import inner
from workbench.cuda.emulator.intrinsics import get, peek, poke, put
from workbench.cuda.emulator.registers import flags_at, read_register, write_register
from workbench.cuda.emulator.shadow import region_of, report, thread_of, time_of
from workbench.cuda.emulator.watch_words import Common, Region, Watch

int64, uint64 = types.int64, types.uint64


@inner
def place_of(stamp):
    """Return the place of a stamp alone: that of an access which no thread made."""
    return stamp & words.MAX_PLACES - 1


@inner
def wait_at(watch, thread, barrier):
    """Return the address of a thread's last wait at a barrier: its place, and above it the phase after it, plus 1."""
    return get(clocks.common_of(watch), Common.WAITS) + 8 * (thread * MAX_BARRIERS + barrier)


@inner
def _passed_before(wait, phase):
    """Whether a wait was over before the first phase, which is this one, was complete: it was for the one before."""
    return phase == 0 and wait >> 32 == 1


@inner
def element_at(watch, address):
    """Return the address of the stamps of an element of shared memory; 0 where an address lies elsewhere."""
    offset = uint64(address - get(watch, Watch.SHARED))
    if offset >= uint64(get(watch, Watch.SHARED_BYTES)):
        return int64(0)
    element = int64(offset >> uint64(get(watch, Watch.SHARED_SHIFT)))
    return get(watch, Watch.SHARED_SHADOW) + 8 * get(clocks.common_of(watch), Common.SLOTS) * element


@inner
def global_element_at(region, address):
    """Return the address of the stamps of an element of a global array, given its record."""
    number = address - get(region, Region.START) >> get(region, Region.SHIFT)
    return get(region, Region.SHADOW) + words.SHADOW_BYTES * number


@inner
def step_of(watch):
    """Return the bytes of an element of shared memory."""
    return 1 << get(watch, Watch.SHARED_SHIFT)


@inner
def _report_read(watch, written, place, address):
    """Report a read that is not ordered behind a write."""
    actor = thread_of(written)
    if written < get(watch, Watch.BLOCK_START) or not clocks.is_copy(watch, actor):
        report(watch, words.RACE, place, written, address)
        return
    wait = peek(wait_at(watch, clocks.own(watch), actor - clocks.copies_of(watch, int64(0))))
    running = (wait >> 32) - 1  # -1: never waited
    if _passed_before(wait, time_of(written)):
        hazards.found(watch, hazards.WRONG_PHASE, place_of(wait), place, address)
    else:
        hazards.detailed(watch, time_of(written), running - 1 if running > 0 else -1)
        hazards.found(watch, hazards.READ_BEFORE_COPY, place, place_of(written), address)


@inner
def _report_write(watch, stamp, place, address):
    """Report a write in shared memory that is not ordered behind an access."""
    actor = thread_of(stamp)
    if clocks.is_thread(watch, actor):
        report(watch, words.RACE, place, stamp, address)
    else:
        hazard = hazards.WRITTEN_IN_COPY if clocks.is_copy(watch, actor) else hazards.WRITTEN_IN_PRODUCT
        hazards.found(watch, hazard, place, place_of(stamp), address)


@inner
def _keep_reader(watch, slot, now, place, start):
    """Keep a thread among the two readers at a slot: in place of the first, if that one is ordered before now."""
    if peek(slot) >= start and clocks.conflicts(watch, peek(slot), now, start):
        slot += 8
    poke(slot, now | place)


@inner
def _read_element(watch, element, address, place, now, start, oldest, slot):
    written = peek(element)
    if written < oldest:
        report(watch, words.UNINITIALISED, place, int64(0), address)
    elif not now & words.ATOMIC and clocks.conflicts(
        watch, written, now, start
    ):  # of an atomic operation, the write will tell
        _report_read(watch, written, place, address)
    _keep_reader(watch, slot, now, place, start)


@inner
def _conflicting(watch, element, now, start, slots):
    """Return the first stamp of an element that a write clocks.conflicts with; 0 where there is none."""
    for i in range(slots):
        stamp = peek(element + 8 * i)
        if clocks.conflicts(watch, stamp, now, start):
            return stamp
    return int64(0)


@inner
def _overwrite(element, stamp, slots):
    """Leave the stamp of a write, since which nobody has read."""
    poke(element, stamp)
    for i in range(1, slots):
        poke(element + 8 * i, 0)


@inner
def read(watch, address, place):
    """Note a read by the thread."""
    now, start = get(watch, Watch.STAMP), get(watch, Watch.BLOCK_START)
    element = element_at(watch, address)
    if element:
        slot = element + 8 + 16 * (thread_of(now) >> 5)
        _read_element(watch, element, address, place, now, start, start, slot)
        return
    region = region_of(watch, address)
    if region:
        element = global_element_at(region, address)
        _read_element(watch, element, address, place, now, get(watch, Watch.LAUNCH_START), int64(1), element + 8)
        return
    flags = flags_at(watch, address)
    if flags:
        read_register(watch, flags, address, place)


@inner
def write(watch, address, place):
    """Note a write by the thread."""
    now, start = get(watch, Watch.STAMP), get(watch, Watch.BLOCK_START)
    element = element_at(watch, address)
    if element:
        slots = get(clocks.common_of(watch), Common.SLOTS)
        stamp = _conflicting(watch, element, now, start, slots)
        if stamp:
            _report_write(watch, stamp, place, address)
        _overwrite(element, now | place, slots)
        return
    region = region_of(watch, address)
    if region:
        element = global_element_at(region, address)
        launch, written = get(watch, Watch.LAUNCH_START), peek(element)
        stamp = _conflicting(watch, element, now, launch, int64(3))
        if stamp:
            report(watch, words.RACE, place, stamp, address)
        elif get(region, Region.ONCE) and written and not now & words.ATOMIC:
            # of an earlier launch, only the fact is known: places are numbered for each kernel
            report(watch, words.SECOND_WRITE, place, written if written >= launch else 0, address)
        _overwrite(element, now | place, int64(3))
        return
    flags = flags_at(watch, address)
    if flags:
        write_register(watch, flags, address, place)


@inner
def await_copy(watch, address, place):
    """Note the start of a copy that a thread waits for by itself; until it arrives, the element counts as unwritten."""
    write(watch, address, place)
    element = element_at(watch, address)
    if element:
        poke(element, 0)


@inner
def atomic(watch, address, place):
    """Note an atomic read and write: one that only plain accesses conflict with."""
    stamp = get(watch, Watch.STAMP)
    put(watch, Watch.STAMP, stamp | words.ATOMIC)
    read(watch, address, place)
    write(watch, address, place)
    put(watch, Watch.STAMP, stamp)


@inner
def written_by_copy(watch, address, place, barrier, phase):
    """Note that a copy into an element, which completes a phase of a barrier, is under way from now on."""
    element, slots = element_at(watch, address), get(clocks.common_of(watch), Common.SLOTS)
    start, written = get(watch, Watch.BLOCK_START), peek(element)
    stamp = _conflicting(watch, element, get(watch, Watch.STAMP), start, slots)
    if stamp == 0:
        _want_fence(watch, written, start, place, address)
    elif clocks.is_thread(watch, thread_of(stamp)):
        wait = peek(wait_at(watch, thread_of(stamp), barrier))
        if _passed_before(wait, phase):
            hazards.found(watch, hazards.WRONG_PHASE, place_of(wait), place_of(stamp), address)
        else:
            hazards.found(watch, hazards.COPIED_OVER, place, stamp, address)
    else:
        _report_write(watch, stamp, place, address)
    _overwrite(element, clocks.stamped(watch, clocks.copies_of(watch, barrier), phase, place), slots)


@inner
def read_by_product(watch, address, place, group):
    """Note that a product of a group, counted in commits, reads an element from now on."""
    element = element_at(watch, address)
    if element == 0:
        return
    now, start, written = get(watch, Watch.STAMP), get(watch, Watch.BLOCK_START), peek(element)
    if written < start:
        report(watch, words.UNINITIALISED, place, int64(0), address)
    elif clocks.conflicts(watch, written, now, start):
        _report_read(watch, written, place, address)
    else:
        _want_fence(watch, written, start, place, address)
    products = clocks.products_of(watch, thread_of(now))
    slot = 1 + 2 * (clocks.threads_of(watch) + 31 >> 5) + products - clocks.products_of(watch, int64(0))
    poke(element + 8 * slot, clocks.stamped(watch, products, group, place))


@inner
def _want_fence(watch, written, start, place, address):
    """Report a write by a thread that the asynchronous proxy may not see."""
    if written >= start and clocks.is_thread(watch, thread_of(written)) and not clocks.is_fenced(watch, written):
        hazards.found(watch, hazards.UNFENCED, place, written, address)
