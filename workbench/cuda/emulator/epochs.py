"""Time in a watched run: what every block, every barrier and every meeting of lanes does to the stamps of threads.

The scheduler calls these functions by their addresses; `shadow` compares the stamps. Like `schedule`, this file is
compiled once for all kernels, and only when the first one is watched.
"""

from numba import cfunc
from numba.core import types

from workbench.cuda.emulator import watch_words as words
from workbench.cuda.emulator.inner import inner
from workbench.cuda.emulator.intrinsics import get, peek, poke, put
from workbench.cuda.emulator.shadow import begin, begin_epoch, report, time_of
from workbench.cuda.emulator.watch_words import Common, Watch

int64 = types.int64


_event = cfunc("int64(int64, int64, int64)", cache=True, error_model="numpy", _nrt=False)


@inner
def _forget(watches, threads):
    """Clear the clocks, which tell apart the times of one epoch."""
    if get(get(watches, Watch.COMMON), Common.MEET):
        for thread in range(threads):
            for lane in range(32):
                poke(watches + thread * 8 * Watch.WORDS + 8 * Watch.CLOCKS + 8 * lane, 0)


@_event
def begin_block(watches, threads, block):
    """Begin a block: nothing of its shared and local memory was written. Return 0, as all events do."""
    begin(watches, threads, block)
    _forget(watches, threads)
    return 0


@_event
def pass_barrier(watches, threads, block):
    """All threads of a block have met: what they did so far lies before what they will do."""
    begin_epoch(watches, threads)
    _forget(watches, threads)
    return 0


@_event
def meet_lanes(watches, first, group):
    """The lanes of a group of the warp that starts at thread `first` have met: each knows what any of them knew."""
    for lane in range(32):
        if group >> lane & 1:
            watch = watches + (first + lane) * 8 * Watch.WORDS
            stamp = get(watch, Watch.STAMP)
            poke(watch + 8 * Watch.CLOCKS + 8 * lane, time_of(stamp) + 1)
            if time_of(stamp) < words.MAX_TIMES - 1:  # then until a barrier of the block no race is seen
                put(watch, Watch.STAMP, stamp + (1 << words.TIME_SHIFT))
    for known in range(32):
        latest = int64(0)
        for lane in range(32):
            if group >> lane & 1:
                latest = max(latest, peek(watches + (first + lane) * 8 * Watch.WORDS + 8 * Watch.CLOCKS + 8 * known))
        for lane in range(32):
            if group >> lane & 1:
                poke(watches + (first + lane) * 8 * Watch.WORDS + 8 * Watch.CLOCKS + 8 * known, latest)
    return 0


@_event
def miss_lane(watches, thread, site):
    """A thread asked for the value of a lane that does not take part in its shuffle."""
    report(watches + thread * 8 * Watch.WORDS, words.MISSING_LANES, site, int64(0), int64(0))
    return 0
