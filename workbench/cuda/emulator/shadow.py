"""What a watched thread calls at every access, and what was found: a stamp says who touched an element, when and where.

A stamp holds a time (the block, the thread, the barriers it passed since) and the place in the source. `ordered` keeps
those of the elements of shared and global memory, `clocks` tells which of them lie before now, and `registers` has what
is known of local memory. An access that another thread's stamp does not lie before is a race: a barrier of the block
orders its threads, `syncwarp` those of a warp, and the end of a launch all. Shuffles order nothing, as on a GPU. An
element that nobody wrote has no stamp.
"""

from numba.core import types

from workbench.cuda.emulator import watch_words as words
from workbench.cuda.emulator.inner import inner
from workbench.cuda.emulator.intrinsics import call_entry, get, peek, poke, poke_byte, put
from workbench.cuda.emulator.watch_words import Common, Found, Region, Watch

int64, uint64 = types.int64, types.uint64

_watched = inner(error_model="numpy")


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
    """Return how many barriers the thread of a stamp had passed."""
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


def _noted(what):
    """Return the compiled function that has `clocked` note an access of this kind."""

    @_watched
    def note(watch, address, place):
        call_entry(get(watch, Watch.NOTE), watch, address, place | what)

    return note


read, write, await_copy, atomic = (_noted(what) for what in (words.READ, words.WRITE, words.AWAIT, words.LOCKED))


@_watched
def begin(watches, threads, block):
    """Begin a block, and an epoch: nothing of its shared and local memory was written."""
    common = get(watches, Watch.COMMON)
    epoch, steps = get(common, Common.EPOCH) + 1, get(common, Common.STEPS)
    put(common, Common.EPOCH, epoch)
    for thread in range(threads):
        watch = watches + thread * 8 * Watch.WORDS
        put(watch, Watch.BLOCK_START, epoch << words.EPOCH_SHIFT)
        put(watch, Watch.STAMP, (epoch << words.EPOCH_SHIFT) + (thread << words.THREAD_SHIFT))
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
