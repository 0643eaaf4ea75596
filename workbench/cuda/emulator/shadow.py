"""Happens-before shadow memory: the compiled functions that a watched thread calls at every access.

Every element of shared and global memory has three words, each the stamp of an access: the last write, and two readers
since. A stamp holds a time (a block's barriers passed, the thread, the warp barriers it passed since) and the place in
the source. An access is a race where another thread's stamp is not ordered before it: by the end of a launch, by a
barrier of the block, or within a warp by `syncwarp`, for which every thread keeps a vector clock of its warp. Shuffles
order nothing, as on a GPU. An element that nobody wrote has no stamp. An element of local memory has a byte: written or
not.

Of more than two readers since the last write, two of different warps are kept where there are any, so that a write
without a barrier of the block in between conflicts with one of them. Among lanes of one warp, the two last ones are
kept: a write may miss an earlier reader that only a barrier of some of the warp's lanes leaves unordered.
"""

from numba.core import types

from workbench.cuda.emulator.inner import inner
from workbench.cuda.emulator.intrinsics import call_entry, peek, peek_byte, poke, poke_byte
from workbench.cuda.emulator.watch_words import (
    ATOMIC,
    AWAIT,
    EPOCH,
    LOCKED,
    MAX_PLACES,
    MAX_THREADS,
    MAX_TIMES,
    OUT_OF_BOUNDS,
    RACE,
    READ,
    RUNAWAY,
    SECOND_WRITE,
    SHADOW_BYTES,
    THREAD_SHIFT,
    TIME_SHIFT,
    UNINITIALISED,
    WARP_SHIFT,
    WRITE,
    Common,
    Found,
    Region,
    Watch,
)

int64, uint64 = types.int64, types.uint64

# numba freezes globals, not attributes of classes; positions become offsets in bytes
_STAMP, _LAUNCH_START, _BLOCK_START = 8 * Watch.STAMP, 8 * Watch.LAUNCH_START, 8 * Watch.BLOCK_START
_SHARED, _SHARED_BYTES = 8 * Watch.SHARED, 8 * Watch.SHARED_BYTES
_SHARED_SHADOW, _SHARED_SHIFT = 8 * Watch.SHARED_SHADOW, 8 * Watch.SHARED_SHIFT
_LOCAL, _LOCAL_BYTES = 8 * Watch.LOCAL, 8 * Watch.LOCAL_BYTES
_LOCAL_SHADOW, _LOCAL_SHIFT = 8 * Watch.LOCAL_SHADOW, 8 * Watch.LOCAL_SHIFT
_STEPS, _BLOCK, _COMMON = 8 * Watch.STEPS, 8 * Watch.BLOCK, 8 * Watch.COMMON
_NDIM, _CLOCKS, _NOTE = 8 * Watch.NDIM, 8 * Watch.CLOCKS, 8 * Watch.NOTE
_REGIONS, _REGION_COUNT = 8 * Common.REGIONS, 8 * Common.REGION_COUNT
_ARRAY_COUNT = 8 * Common.ARRAY_COUNT
_FINDINGS, _COUNT, _LIMIT = 8 * Common.FINDINGS, 8 * Common.FINDING_COUNT, 8 * Common.FINDING_LIMIT
_START, _END, _SHADOW = 8 * Region.START, 8 * Region.END, 8 * Region.SHADOW
_SHIFT, _ONCE, _REGION_BYTES = 8 * Region.SHIFT, 8 * Region.ONCE, 8 * Region.WORDS
_F_KIND, _F_PLACE, _F_OTHER, _F_ARRAY = 8 * Found.KIND, 8 * Found.PLACE, 8 * Found.OTHER, 8 * Found.ARRAY
_F_COUNT, _F_ADDRESS, _F_BLOCK = 8 * Found.COUNT, 8 * Found.ADDRESS, 8 * Found.BLOCK
_F_THREAD, _F_OTHER_THREAD = 8 * Found.THREAD, 8 * Found.OTHER_THREAD
_F_NDIM, _FOUND_BYTES = 8 * Found.NDIM, 8 * Found.WORDS

_watched = inner(error_model="numpy")
# what every access does; left to itself, LLVM inlines less of it, and watched runs take a fifth longer
_inlined = inner(error_model="numpy", forceinline=True)


@_watched
def thread_of(stamp):
    """Return the thread of a stamp."""
    return stamp >> THREAD_SHIFT & MAX_THREADS - 1


@_watched
def epoch_of(stamp):
    """Return the first stamp of the epoch of a stamp."""
    return stamp & -EPOCH


@_watched
def time_of(stamp):
    """Return how many warp barriers the thread of a stamp had passed."""
    return stamp >> TIME_SHIFT & MAX_TIMES - 1


@_watched
def region_of(watch, address):
    """Return the address of the record of the global array that holds an address; 0 where none does."""
    common = peek(watch + _COMMON)
    return _holding(peek(common + _REGIONS), peek(common + _REGION_COUNT), address)


@_watched
def _holding(record, count, address):
    """Return which of so many records holds an address; 0 where none does."""
    for _ in range(count):
        if peek(record + _START) <= address < peek(record + _END):
            return record
        record += _REGION_BYTES
    return int64(0)


@_watched
def _array_of(watch, address):
    """As `region_of`, of the array in any memory; what a function reads at one place may be several arrays."""
    common = peek(watch + _COMMON)
    place = address - peek(watch + _LOCAL) if _is_local(watch, address) else address
    return _holding(peek(common + _REGIONS), peek(common + _ARRAY_COUNT), place)


@_watched
def _is_local(watch, address):
    """Whether an address lies in the thread's local memory."""
    return uint64(address - peek(watch + _LOCAL)) < uint64(peek(watch + _LOCAL_BYTES))


@_watched
def report(watch, kind, place, other, address):
    """Note a finding at a place; `other` is the stamp of the access that it conflicts with, 0 where there is none."""
    common = peek(watch + _COMMON)
    array = _array_of(watch, address)
    count = peek(common + _COUNT)
    found = peek(common + _FINDINGS)
    other_place = other & MAX_PLACES - 1
    for _ in range(count):
        if peek(found + _F_KIND) == kind and peek(found + _F_PLACE) == place:
            if peek(found + _F_OTHER) == other_place and peek(found + _F_ARRAY) == array:
                poke(found + _F_COUNT, peek(found + _F_COUNT) + 1)
                return
        found += _FOUND_BYTES
    if count == peek(common + _LIMIT):
        return
    poke(common + _COUNT, count + 1)
    poke(found + _F_KIND, kind)
    poke(found + _F_PLACE, place)
    poke(found + _F_OTHER, other_place)
    poke(found + _F_ARRAY, array)
    poke(found + _F_COUNT, 1)
    poke(found + _F_ADDRESS, address)
    poke(found + _F_BLOCK, peek(watch + _BLOCK))
    poke(found + _F_THREAD, thread_of(peek(watch + _STAMP)))
    poke(found + _F_OTHER_THREAD, thread_of(other) if other >= EPOCH else -1)
    for word in range(7):
        has_more = kind == OUT_OF_BOUNDS or kind > SECOND_WRITE
        poke(found + _F_NDIM + 8 * word, peek(watch + _NDIM + 8 * word) if has_more else 0)


@_watched
def _conflicts(watch, stamp, now, start):
    """Whether an access is another thread's, not ordered before now, and not atomic like this one.

    Stamps from before `start` belong to an earlier launch, or in shared memory to an earlier block, and to nobody.
    """
    if stamp < start or stamp & now & ATOMIC:
        return False
    if stamp < peek(watch + _BLOCK_START):
        return True  # another block
    if stamp < epoch_of(now) or thread_of(stamp) == thread_of(now):
        return False
    if stamp >> WARP_SHIFT != now >> WARP_SHIFT:
        return True
    return peek(watch + _CLOCKS + 8 * (thread_of(stamp) & 31)) <= time_of(stamp)


@_watched
def _alive(watch, stamp, now, start):
    """Whether a reader may still conflict with a later write: of this epoch, or of another block of this launch."""
    return stamp >= epoch_of(now) or start <= stamp < peek(watch + _BLOCK_START)


@_watched
def _keep_reader(watch, shadow, now, place, start):
    """Keep this thread among the two readers of an element."""
    first, second = peek(shadow + 8), peek(shadow + 16)
    if first >> THREAD_SHIFT == now >> THREAD_SHIFT or not _alive(watch, first, now, start):
        poke(shadow + 8, now | place)
    elif second >> THREAD_SHIFT == now >> THREAD_SHIFT or not _alive(watch, second, now, start):
        poke(shadow + 16, now | place)
    elif first >> WARP_SHIFT == second >> WARP_SHIFT:
        if first >> WARP_SHIFT == now >> WARP_SHIFT:
            poke(shadow + 8, second)
        poke(shadow + 16, now | place)


@_inlined
def _read_at(watch, shadow, address, place, now, start, oldest):
    """Note the read of an element; stamps from before `oldest` are none."""
    written = peek(shadow)
    epoch = epoch_of(now)
    if written < oldest:
        report(watch, UNINITIALISED, place, int64(0), address)
    elif not now & ATOMIC and _conflicts(watch, written, now, start):  # of an atomic operation, the write will tell
        report(watch, RACE, place, written, address)
    first, second = peek(shadow + 8), peek(shadow + 16)
    # two readers of different warps since the last barrier are enough: the usual case, and the fast one
    if first < epoch or second < epoch or first >> WARP_SHIFT == second >> WARP_SHIFT:
        _keep_reader(watch, shadow, now, place, start)


@_inlined
def _write_at(watch, shadow, address, place, now, start, once):
    """Note the write of an element, which may be the only one where `once` is set."""
    written, first, second = peek(shadow), peek(shadow + 8), peek(shadow + 16)
    if _conflicts(watch, written, now, start):
        report(watch, RACE, place, written, address)
    elif _conflicts(watch, first, now, start):
        report(watch, RACE, place, first, address)
    elif _conflicts(watch, second, now, start):
        report(watch, RACE, place, second, address)
    elif once and written and not now & ATOMIC:
        # of an earlier launch, only the fact is known: places are numbered for each kernel
        report(watch, SECOND_WRITE, place, written if written >= peek(watch + _LAUNCH_START) else 0, address)
    poke(shadow, now | place)
    poke(shadow + 8, 0)
    poke(shadow + 16, 0)


@_inlined
def _stamps(watch, address):
    """Return what there is to know of an element of shared or global memory; zeros for any other address.

    Address of its stamps; the stamp from which on one may conflict, and the one from which on a write counts as one;
    whether it may be written once only.
    """
    offset = uint64(address - peek(watch + _SHARED))
    if offset < uint64(peek(watch + _SHARED_BYTES)):
        element = int64(offset >> uint64(peek(watch + _SHARED_SHIFT)))
        start = peek(watch + _BLOCK_START)
        return peek(watch + _SHARED_SHADOW) + SHADOW_BYTES * element, start, start, int64(0)
    region = region_of(watch, address)
    if region:
        element = (address - peek(region + _START)) >> peek(region + _SHIFT)
        shadow = peek(region + _SHADOW) + SHADOW_BYTES * element
        return shadow, peek(watch + _LAUNCH_START), int64(1), peek(region + _ONCE)
    return int64(0), int64(0), int64(0), int64(0)


@_watched
def _elsewhere(watch, access, address, place):
    """Whether `clocked` notes an access, as in kernels with asynchronous operations."""
    note = peek(watch + _NOTE)
    if note:
        call_entry(note, watch, address, place | access)
    return note != 0


@_watched
def read(watch, address, place):
    """Note a read."""
    if _elsewhere(watch, READ, address, place):
        return
    shadow, start, oldest, _ = _stamps(watch, address)
    if shadow:
        _read_at(watch, shadow, address, place, peek(watch + _STAMP), start, oldest)
    elif _is_local(watch, address):
        read_local(watch, address, place)


@_watched
def write(watch, address, place):
    """Note a write."""
    if _elsewhere(watch, WRITE, address, place):
        return
    shadow, start, _, once = _stamps(watch, address)
    if shadow:
        _write_at(watch, shadow, address, place, peek(watch + _STAMP), start, once)
    elif _is_local(watch, address):
        write_local(watch, address, place)


@_watched
def await_copy(watch, address, place):
    """Note the start of an asynchronous write of shared memory; until it arrives, the element counts as unwritten."""
    if _elsewhere(watch, AWAIT, address, place):
        return
    write(watch, address, place)
    poke(_stamps(watch, address)[0], 0)


@_watched
def atomic(watch, address, place):
    """Note an atomic read and write: one that only plain accesses conflict with."""
    if _elsewhere(watch, LOCKED, address, place):
        return
    stamp = peek(watch + _STAMP)
    poke(watch + _STAMP, stamp | ATOMIC)
    read(watch, address, place)
    write(watch, address, place)
    poke(watch + _STAMP, stamp)


@_watched
def read_local(watch, address, place):
    """Note a read of the thread's local memory."""
    if _elsewhere(watch, READ, address, place):
        return
    element = (address - peek(watch + _LOCAL)) >> peek(watch + _LOCAL_SHIFT)
    if not peek_byte(peek(watch + _LOCAL_SHADOW) + element):
        report(watch, UNINITIALISED, place, int64(0), address)


@_watched
def write_local(watch, address, place):
    """Note a write of the thread's local memory."""
    if _elsewhere(watch, WRITE, address, place):
        return
    element = (address - peek(watch + _LOCAL)) >> peek(watch + _LOCAL_SHIFT)
    poke_byte(peek(watch + _LOCAL_SHADOW) + element, 1)


@_watched
def spent(watch, place):
    """Count a turn of a loop; return whether the thread has taken as many as it may."""
    steps = peek(watch + _STEPS) - 1
    poke(watch + _STEPS, steps)
    if steps == 0:
        report(watch, RUNAWAY, place, int64(0), int64(0))
    return steps <= 0
