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

from workbench.cuda.emulator import watch_words as words
from workbench.cuda.emulator.inner import inner
from workbench.cuda.emulator.intrinsics import call_entry, get, peek, peek_byte, poke, poke_byte, put
from workbench.cuda.emulator.watch_words import Common, Found, Region, Watch

int64, uint64 = types.int64, types.uint64


_watched = inner(error_model="numpy")
# what every access does; left to itself, LLVM inlines less of it, and watched runs take a fifth longer
_inlined = inner(error_model="numpy", forceinline=True)


@_watched
def thread_of(stamp):
    """Return the thread of a stamp."""
    return stamp >> words.THREAD_SHIFT & words.MAX_THREADS - 1


@_watched
def epoch_of(stamp):
    """Return the first stamp of the epoch of a stamp."""
    return stamp & -words.EPOCH


@_watched
def time_of(stamp):
    """Return how many warp barriers the thread of a stamp had passed."""
    return stamp >> words.TIME_SHIFT & words.MAX_TIMES - 1


@_watched
def region_of(watch, address):
    """Return the address of the record of the global array that holds an address; 0 where none does."""
    common = get(watch, Watch.COMMON)
    return _holding(get(common, Common.REGIONS), get(common, Common.REGION_COUNT), address)


@_watched
def _holding(record, count, address):
    """Return which of so many records holds an address; 0 where none does."""
    for _ in range(count):
        if get(record, Region.START) <= address < get(record, Region.END):
            return record
        record += 8 * Region.WORDS
    return int64(0)


@_watched
def _array_of(watch, address):
    """As `region_of`, of the array in any memory; what a function reads at one place may be several arrays."""
    common = get(watch, Watch.COMMON)
    place = address - get(watch, Watch.LOCAL) if _is_local(watch, address) else address
    return _holding(get(common, Common.REGIONS), get(common, Common.ARRAY_COUNT), place)


@_watched
def _is_local(watch, address):
    """Whether an address lies in the thread's local memory."""
    return uint64(address - get(watch, Watch.LOCAL)) < uint64(get(watch, Watch.LOCAL_BYTES))


@_watched
def report(watch, kind, place, other, address):
    """Note a finding at a place; `other` is the stamp of the access that it conflicts with, 0 where there is none."""
    common = get(watch, Watch.COMMON)
    array = _array_of(watch, address)
    count = get(common, Common.FINDING_COUNT)
    found = get(common, Common.FINDINGS)
    other_place = other & words.MAX_PLACES - 1
    for _ in range(count):
        if get(found, Found.KIND) == kind and get(found, Found.PLACE) == place:
            if get(found, Found.OTHER) == other_place and get(found, Found.ARRAY) == array:
                put(found, Found.COUNT, get(found, Found.COUNT) + 1)
                return
        found += 8 * Found.WORDS
    if count == get(common, Common.FINDING_LIMIT):
        return
    put(common, Common.FINDING_COUNT, count + 1)
    put(found, Found.KIND, kind)
    put(found, Found.PLACE, place)
    put(found, Found.OTHER, other_place)
    put(found, Found.ARRAY, array)
    put(found, Found.COUNT, 1)
    put(found, Found.ADDRESS, address)
    put(found, Found.BLOCK, get(watch, Watch.BLOCK))
    put(found, Found.THREAD, thread_of(get(watch, Watch.STAMP)))
    put(found, Found.OTHER_THREAD, thread_of(other) if other >= words.EPOCH else -1)
    for word in range(7):
        has_more = kind == words.OUT_OF_BOUNDS or kind > words.SECOND_WRITE
        poke(found + 8 * Found.NDIM + 8 * word, peek(watch + 8 * Watch.NDIM + 8 * word) if has_more else 0)


@_watched
def _conflicts(watch, stamp, now, start):
    """Whether an access is another thread's, not ordered before now, and not atomic like this one.

    Stamps from before `start` belong to an earlier launch, or in shared memory to an earlier block, and to nobody.
    """
    if stamp < start or stamp & now & words.ATOMIC:
        return False
    if stamp < get(watch, Watch.BLOCK_START):
        return True  # another block
    if stamp < epoch_of(now) or thread_of(stamp) == thread_of(now):
        return False
    if stamp >> words.WARP_SHIFT != now >> words.WARP_SHIFT:
        return True
    return peek(watch + 8 * Watch.CLOCKS + 8 * (thread_of(stamp) & 31)) <= time_of(stamp)


@_watched
def _alive(watch, stamp, now, start):
    """Whether a reader may still conflict with a later write: of this epoch, or of another block of this launch."""
    return stamp >= epoch_of(now) or start <= stamp < get(watch, Watch.BLOCK_START)


@_watched
def _keep_reader(watch, shadow, now, place, start):
    """Keep this thread among the two readers of an element."""
    first, second = peek(shadow + 8), peek(shadow + 16)
    if first >> words.THREAD_SHIFT == now >> words.THREAD_SHIFT or not _alive(watch, first, now, start):
        poke(shadow + 8, now | place)
    elif second >> words.THREAD_SHIFT == now >> words.THREAD_SHIFT or not _alive(watch, second, now, start):
        poke(shadow + 16, now | place)
    elif first >> words.WARP_SHIFT == second >> words.WARP_SHIFT:
        if first >> words.WARP_SHIFT == now >> words.WARP_SHIFT:
            poke(shadow + 8, second)
        poke(shadow + 16, now | place)


@_inlined
def _read_at(watch, shadow, address, place, now, start, oldest):
    """Note the read of an element; stamps from before `oldest` are none."""
    written = peek(shadow)
    epoch = epoch_of(now)
    if written < oldest:
        report(watch, words.UNINITIALISED, place, int64(0), address)
    elif not now & words.ATOMIC and _conflicts(
        watch, written, now, start
    ):  # of an atomic operation, the write will tell
        report(watch, words.RACE, place, written, address)
    first, second = peek(shadow + 8), peek(shadow + 16)
    # two readers of different warps since the last barrier are enough: the usual case, and the fast one
    if first < epoch or second < epoch or first >> words.WARP_SHIFT == second >> words.WARP_SHIFT:
        _keep_reader(watch, shadow, now, place, start)


@_inlined
def _write_at(watch, shadow, address, place, now, start, once):
    """Note the write of an element, which may be the only one where `once` is set."""
    written, first, second = peek(shadow), peek(shadow + 8), peek(shadow + 16)
    if _conflicts(watch, written, now, start):
        report(watch, words.RACE, place, written, address)
    elif _conflicts(watch, first, now, start):
        report(watch, words.RACE, place, first, address)
    elif _conflicts(watch, second, now, start):
        report(watch, words.RACE, place, second, address)
    elif once and written and not now & words.ATOMIC:
        # of an earlier launch, only the fact is known: places are numbered for each kernel
        report(watch, words.SECOND_WRITE, place, written if written >= get(watch, Watch.LAUNCH_START) else 0, address)
    poke(shadow, now | place)
    poke(shadow + 8, 0)
    poke(shadow + 16, 0)


@_inlined
def _stamps(watch, address):
    """Return what there is to know of an element of shared or global memory; zeros for any other address.

    Address of its stamps; the stamp from which on one may conflict, and the one from which on a write counts as one;
    whether it may be written once only.
    """
    offset = uint64(address - get(watch, Watch.SHARED))
    if offset < uint64(get(watch, Watch.SHARED_BYTES)):
        element = int64(offset >> uint64(get(watch, Watch.SHARED_SHIFT)))
        start = get(watch, Watch.BLOCK_START)
        return get(watch, Watch.SHARED_SHADOW) + words.SHADOW_BYTES * element, start, start, int64(0)
    region = region_of(watch, address)
    if region:
        element = (address - get(region, Region.START)) >> get(region, Region.SHIFT)
        shadow = get(region, Region.SHADOW) + words.SHADOW_BYTES * element
        return shadow, get(watch, Watch.LAUNCH_START), int64(1), get(region, Region.ONCE)
    return int64(0), int64(0), int64(0), int64(0)


@_watched
def _elsewhere(watch, access, address, place):
    """Whether `clocked` notes an access, as in kernels with asynchronous operations."""
    note = get(watch, Watch.NOTE)
    if note:
        call_entry(note, watch, address, place | access)
    return note != 0


@_watched
def read(watch, address, place):
    """Note a read."""
    if _elsewhere(watch, words.READ, address, place):
        return
    shadow, start, oldest, _ = _stamps(watch, address)
    if shadow:
        _read_at(watch, shadow, address, place, get(watch, Watch.STAMP), start, oldest)
    elif _is_local(watch, address):
        read_local(watch, address, place)


@_watched
def write(watch, address, place):
    """Note a write."""
    if _elsewhere(watch, words.WRITE, address, place):
        return
    shadow, start, _, once = _stamps(watch, address)
    if shadow:
        _write_at(watch, shadow, address, place, get(watch, Watch.STAMP), start, once)
    elif _is_local(watch, address):
        write_local(watch, address, place)


@_watched
def await_copy(watch, address, place):
    """Note the start of an asynchronous write of shared memory; until it arrives, the element counts as unwritten."""
    if _elsewhere(watch, words.AWAIT, address, place):
        return
    write(watch, address, place)
    poke(_stamps(watch, address)[0], 0)


@_watched
def atomic(watch, address, place):
    """Note an atomic read and write: one that only plain accesses conflict with."""
    if _elsewhere(watch, words.LOCKED, address, place):
        return
    stamp = get(watch, Watch.STAMP)
    put(watch, Watch.STAMP, stamp | words.ATOMIC)
    read(watch, address, place)
    write(watch, address, place)
    put(watch, Watch.STAMP, stamp)


@_watched
def read_local(watch, address, place):
    """Note a read of the thread's local memory."""
    if _elsewhere(watch, words.READ, address, place):
        return
    element = (address - get(watch, Watch.LOCAL)) >> get(watch, Watch.LOCAL_SHIFT)
    if not peek_byte(get(watch, Watch.LOCAL_SHADOW) + element):
        report(watch, words.UNINITIALISED, place, int64(0), address)


@_watched
def write_local(watch, address, place):
    """Note a write of the thread's local memory."""
    if _elsewhere(watch, words.WRITE, address, place):
        return
    element = (address - get(watch, Watch.LOCAL)) >> get(watch, Watch.LOCAL_SHIFT)
    poke_byte(get(watch, Watch.LOCAL_SHADOW) + element, 1)


@_watched
def begin_epoch(watches, threads):
    """Order all accesses so far before those that follow; return the first stamp of these."""
    common = get(watches, Watch.COMMON)
    epoch = get(common, Common.EPOCH) + 1
    put(common, Common.EPOCH, epoch)
    for thread in range(threads):
        stamp = (epoch << words.EPOCH_SHIFT) + (thread << words.THREAD_SHIFT)
        put(watches + thread * 8 * Watch.WORDS, Watch.STAMP, stamp)
    return epoch << words.EPOCH_SHIFT


@_watched
def begin(watches, threads, block):
    """Begin a block: nothing of its shared and local memory was written."""
    start, steps = begin_epoch(watches, threads), get(get(watches, Watch.COMMON), Common.STEPS)
    for thread in range(threads):
        watch = watches + thread * 8 * Watch.WORDS
        put(watch, Watch.BLOCK_START, start)
        put(watch, Watch.BLOCK, block)
        put(watch, Watch.STEPS, steps)
        for byte in range(get(watch, Watch.LOCAL_BYTES) >> get(watch, Watch.LOCAL_SHIFT)):
            poke_byte(get(watch, Watch.LOCAL_SHADOW) + byte, 0)


@_watched
def spent(watch, place):
    """Count a turn of a loop; return whether the thread has taken as many as it may."""
    steps = get(watch, Watch.STEPS) - 1
    put(watch, Watch.STEPS, steps)
    if steps == 0:
        report(watch, words.RUNAWAY, place, int64(0), int64(0))
    return steps <= 0
