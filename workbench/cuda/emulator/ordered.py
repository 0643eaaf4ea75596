"""Shadow memory of a watched block with asynchronous operations: as of `shadow`, but that vector clocks tell what lies
before what (`clocks`), and that copies and products touch memory as somebody else than the thread that asked for them.

An element of shared memory has the stamp of the last write, then for each warp those of two readers since, the first
and the last of those that nothing orders, then for each warp group that of the last product which read it. Elements of
global memory have three stamps. Of local memory see `registers`.
"""

from numba.core import types

from workbench.cuda.emulator.async_state import MAX_BARRIERS
from workbench.cuda.emulator.clocks import (
    common_of,
    conflicts,
    copies_of,
    is_copy,
    is_fenced,
    is_thread,
    own,
    products_of,
    stamped,
    threads_of,
)
from workbench.cuda.emulator.hazards import (
    COPIED_OVER,
    READ_BEFORE_COPY,
    UNFENCED,
    WRITTEN_IN_COPY,
    WRITTEN_IN_PRODUCT,
    WRONG_PHASE,
    detailed,
    found,
)
from workbench.cuda.emulator.inner import inner
from workbench.cuda.emulator.intrinsics import peek, poke
from workbench.cuda.emulator.registers import flags_at, read_register, write_register
from workbench.cuda.emulator.shadow import region_of, report, thread_of, time_of
from workbench.cuda.emulator.watch_words import (
    ATOMIC,
    MAX_PLACES,
    RACE,
    SECOND_WRITE,
    SHADOW_BYTES,
    UNINITIALISED,
    Common,
    Region,
    Watch,
)

int64, uint64 = types.int64, types.uint64

# numba freezes globals, not attributes of classes; positions become offsets in bytes
_STAMP, _LAUNCH_START, _BLOCK_START = 8 * Watch.STAMP, 8 * Watch.LAUNCH_START, 8 * Watch.BLOCK_START
_SHARED, _SHARED_BYTES = 8 * Watch.SHARED, 8 * Watch.SHARED_BYTES
_SHARED_SHADOW, _SHARED_SHIFT = 8 * Watch.SHARED_SHADOW, 8 * Watch.SHARED_SHIFT
_SLOTS, _WAITS = 8 * Common.SLOTS, 8 * Common.WAITS
_START, _SHADOW, _SHIFT, _ONCE = 8 * Region.START, 8 * Region.SHADOW, 8 * Region.SHIFT, 8 * Region.ONCE


@inner
def place_of(stamp):
    """Return the place of a stamp alone: that of an access which no thread made."""
    return stamp & MAX_PLACES - 1


@inner
def wait_at(watch, thread, barrier):
    """Return the address of a thread's last wait at a barrier: its place, and above it the phase after it, plus 1."""
    return peek(common_of(watch) + _WAITS) + 8 * (thread * MAX_BARRIERS + barrier)


@inner
def _passed_before(wait, phase):
    """Whether a wait was over before the first phase, which is this one, was complete: it was for the one before."""
    return phase == 0 and wait >> 32 == 1


@inner
def element_at(watch, address):
    """Return the address of the stamps of an element of shared memory; 0 where an address lies elsewhere."""
    offset = uint64(address - peek(watch + _SHARED))
    if offset >= uint64(peek(watch + _SHARED_BYTES)):
        return int64(0)
    element = int64(offset >> uint64(peek(watch + _SHARED_SHIFT)))
    return peek(watch + _SHARED_SHADOW) + 8 * peek(common_of(watch) + _SLOTS) * element


@inner
def step_of(watch):
    """Return the bytes of an element of shared memory."""
    return 1 << peek(watch + _SHARED_SHIFT)


@inner
def _report_read(watch, written, place, address):
    """Report a read that is not ordered behind a write."""
    actor = thread_of(written)
    if written < peek(watch + _BLOCK_START) or not is_copy(watch, actor):
        report(watch, RACE, place, written, address)
        return
    wait = peek(wait_at(watch, own(watch), actor - copies_of(watch, int64(0))))
    running = (wait >> 32) - 1  # -1: never waited
    if _passed_before(wait, time_of(written)):
        found(watch, WRONG_PHASE, place_of(wait), place, address)
    else:
        detailed(watch, time_of(written), running - 1 if running > 0 else -1)
        found(watch, READ_BEFORE_COPY, place, place_of(written), address)


@inner
def _report_write(watch, stamp, place, address):
    """Report a write in shared memory that is not ordered behind an access."""
    actor = thread_of(stamp)
    if is_thread(watch, actor):
        report(watch, RACE, place, stamp, address)
    else:
        hazard = WRITTEN_IN_COPY if is_copy(watch, actor) else WRITTEN_IN_PRODUCT
        found(watch, hazard, place, place_of(stamp), address)


@inner
def _keep_reader(watch, slot, now, place, start):
    """Keep a thread among the two readers at a slot: in place of the first, if that one is ordered before now."""
    if peek(slot) >= start and conflicts(watch, peek(slot), now, start):
        slot += 8
    poke(slot, now | place)


@inner
def _read_element(watch, element, address, place, now, start, oldest, slot):
    written = peek(element)
    if written < oldest:
        report(watch, UNINITIALISED, place, int64(0), address)
    elif not now & ATOMIC and conflicts(watch, written, now, start):  # of an atomic operation, the write will tell
        _report_read(watch, written, place, address)
    _keep_reader(watch, slot, now, place, start)


@inner
def _conflicting(watch, element, now, start, slots):
    """Return the first stamp of an element that a write conflicts with; 0 where there is none."""
    for i in range(slots):
        stamp = peek(element + 8 * i)
        if conflicts(watch, stamp, now, start):
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
    now, start = peek(watch + _STAMP), peek(watch + _BLOCK_START)
    element = element_at(watch, address)
    if element:
        slot = element + 8 + 16 * (thread_of(now) >> 5)
        _read_element(watch, element, address, place, now, start, start, slot)
        return
    region = region_of(watch, address)
    if region:
        element = peek(region + _SHADOW) + SHADOW_BYTES * (address - peek(region + _START) >> peek(region + _SHIFT))
        _read_element(watch, element, address, place, now, peek(watch + _LAUNCH_START), int64(1), element + 8)
        return
    flags = flags_at(watch, address)
    if flags:
        read_register(watch, flags, address, place)


@inner
def write(watch, address, place):
    """Note a write by the thread."""
    now, start = peek(watch + _STAMP), peek(watch + _BLOCK_START)
    element = element_at(watch, address)
    if element:
        slots = peek(common_of(watch) + _SLOTS)
        stamp = _conflicting(watch, element, now, start, slots)
        if stamp:
            _report_write(watch, stamp, place, address)
        _overwrite(element, now | place, slots)
        return
    region = region_of(watch, address)
    if region:
        element = peek(region + _SHADOW) + SHADOW_BYTES * (address - peek(region + _START) >> peek(region + _SHIFT))
        launch, written = peek(watch + _LAUNCH_START), peek(element)
        stamp = _conflicting(watch, element, now, launch, int64(3))
        if stamp:
            report(watch, RACE, place, stamp, address)
        elif peek(region + _ONCE) and written and not now & ATOMIC:
            # of an earlier launch, only the fact is known: places are numbered for each kernel
            report(watch, SECOND_WRITE, place, written if written >= launch else 0, address)
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
    stamp = peek(watch + _STAMP)
    poke(watch + _STAMP, stamp | ATOMIC)
    read(watch, address, place)
    write(watch, address, place)
    poke(watch + _STAMP, stamp)


@inner
def written_by_copy(watch, address, place, barrier, phase):
    """Note that a copy into an element, which completes a phase of a barrier, is under way from now on."""
    element, slots = element_at(watch, address), peek(common_of(watch) + _SLOTS)
    start, written = peek(watch + _BLOCK_START), peek(element)
    stamp = _conflicting(watch, element, peek(watch + _STAMP), start, slots)
    if stamp == 0:
        _want_fence(watch, written, start, place, address)
    elif is_thread(watch, thread_of(stamp)):
        wait = peek(wait_at(watch, thread_of(stamp), barrier))
        if _passed_before(wait, phase):
            found(watch, WRONG_PHASE, place_of(wait), place_of(stamp), address)
        else:
            found(watch, COPIED_OVER, place, stamp, address)
    else:
        _report_write(watch, stamp, place, address)
    _overwrite(element, stamped(watch, copies_of(watch, barrier), phase, place), slots)


@inner
def read_by_product(watch, address, place, group):
    """Note that a product of a group, counted in commits, reads an element from now on."""
    element = element_at(watch, address)
    if element == 0:
        return
    now, start, written = peek(watch + _STAMP), peek(watch + _BLOCK_START), peek(element)
    if written < start:
        report(watch, UNINITIALISED, place, int64(0), address)
    elif conflicts(watch, written, now, start):
        _report_read(watch, written, place, address)
    else:
        _want_fence(watch, written, start, place, address)
    products = products_of(watch, thread_of(now))
    slot = 1 + 2 * (threads_of(watch) + 31 >> 5) + products - products_of(watch, int64(0))
    poke(element + 8 * slot, stamped(watch, products, group, place))


@inner
def _want_fence(watch, written, start, place, address):
    """Report a write by a thread that the asynchronous proxy may not see."""
    if written >= start and is_thread(watch, thread_of(written)) and not is_fenced(watch, written):
        found(watch, UNFENCED, place, written, address)
