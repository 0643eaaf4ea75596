"""Time in a watched run: what every block, every barrier and every meeting of lanes does to the stamps of threads.

The scheduler calls these functions by their addresses; `shadow` compares the stamps. Like `schedule`, this file is
compiled once for all kernels, and only when the first one is watched.
"""

from numba import cfunc
from numba.core import types

from workbench.cuda.emulator.inner import inner
from workbench.cuda.emulator.intrinsics import peek, poke, poke_byte
from workbench.cuda.emulator.shadow import report, time_of
from workbench.cuda.emulator.watch_words import (
    EPOCH_SHIFT,
    MAX_TIMES,
    MISSING_LANES,
    THREAD_SHIFT,
    TIME_SHIFT,
    Common,
    Watch,
)

int64 = types.int64

# numba freezes globals, not attributes of classes; positions become offsets in bytes
_STAMP, _BLOCK_START, _BLOCK = 8 * Watch.STAMP, 8 * Watch.BLOCK_START, 8 * Watch.BLOCK
_LOCAL_BYTES, _LOCAL_SHADOW, _LOCAL_SHIFT = 8 * Watch.LOCAL_BYTES, 8 * Watch.LOCAL_SHADOW, 8 * Watch.LOCAL_SHIFT
_STEPS, _COMMON, _CLOCKS, _WATCH_BYTES = 8 * Watch.STEPS, 8 * Watch.COMMON, 8 * Watch.CLOCKS, 8 * Watch.WORDS
_EPOCH, _MEET, _ALL_STEPS = 8 * Common.EPOCH, 8 * Common.MEET, 8 * Common.STEPS

_event = cfunc("int64(int64, int64, int64)", cache=True, error_model="numpy", _nrt=False)


@inner
def _forget(watches, threads):
    """Clear the clocks, which tell apart the times of one epoch."""
    if peek(peek(watches + _COMMON) + _MEET):
        for thread in range(threads):
            for lane in range(32):
                poke(watches + thread * _WATCH_BYTES + _CLOCKS + 8 * lane, 0)


@_event
def begin_block(watches, threads, block):
    """Begin a block: nothing of its shared and local memory was written. Return 0, as all events do."""
    common = peek(watches + _COMMON)
    epoch = peek(common + _EPOCH) + 1
    poke(common + _EPOCH, epoch)
    for thread in range(threads):
        watch = watches + thread * _WATCH_BYTES
        poke(watch + _BLOCK_START, epoch << EPOCH_SHIFT)
        poke(watch + _STAMP, (epoch << EPOCH_SHIFT) + (thread << THREAD_SHIFT))
        poke(watch + _BLOCK, block)
        poke(watch + _STEPS, peek(common + _ALL_STEPS))
        for byte in range(peek(watch + _LOCAL_BYTES) >> peek(watch + _LOCAL_SHIFT)):
            poke_byte(peek(watch + _LOCAL_SHADOW) + byte, 0)
    _forget(watches, threads)
    return 0


@_event
def pass_barrier(watches, threads, block):
    """All threads of a block have met: what they did so far lies before what they will do."""
    common = peek(watches + _COMMON)
    epoch = peek(common + _EPOCH) + 1
    poke(common + _EPOCH, epoch)
    for thread in range(threads):
        poke(watches + thread * _WATCH_BYTES + _STAMP, (epoch << EPOCH_SHIFT) + (thread << THREAD_SHIFT))
    _forget(watches, threads)
    return 0


@_event
def meet_lanes(watches, first, group):
    """The lanes of a group of the warp that starts at thread `first` have met: each knows what any of them knew."""
    for lane in range(32):
        if group >> lane & 1:
            watch = watches + (first + lane) * _WATCH_BYTES
            stamp = peek(watch + _STAMP)
            poke(watch + _CLOCKS + 8 * lane, time_of(stamp) + 1)
            if (
                time_of(stamp) < MAX_TIMES - 1
            ):  # from then on, until a barrier of the block, no race is seen in the warp
                poke(watch + _STAMP, stamp + (1 << TIME_SHIFT))
    for known in range(32):
        latest = int64(0)
        for lane in range(32):
            if group >> lane & 1:
                latest = max(latest, peek(watches + (first + lane) * _WATCH_BYTES + _CLOCKS + 8 * known))
        for lane in range(32):
            if group >> lane & 1:
                poke(watches + (first + lane) * _WATCH_BYTES + _CLOCKS + 8 * known, latest)
    return 0


@_event
def miss_lane(watches, thread, site):
    """A thread asked for the value of a lane that does not take part in its shuffle."""
    report(watches + thread * _WATCH_BYTES, MISSING_LANES, site, int64(0), int64(0))
    return 0
