"""Vector clocks of a watched block: of threads, which meet at barriers of some of them, and of what is under way.

Everyone who touches memory has a time: threads, the copies of each barrier (a phase), the products of each warp group
(a group). A row says how much of everyone's time lies before now, and how much of it a fence has made known to the
asynchronous proxy, which copies and multiplies ("PTX ISA 9.0", memory consistency model, causality order; the fence may
lie anywhere in between). Every thread has a row, and so has every barrier: what those knew who arrived in this phase,
and in all before it. Who arrives leaves a row, who waits takes one over.
"""

from numba.core import types

from workbench.cuda.emulator.async_state import MAX_BARRIERS, MAX_NAMED
from workbench.cuda.emulator.inner import inner
from workbench.cuda.emulator.intrinsics import get, peek, poke, put, words_at
from workbench.cuda.emulator.shadow import epoch_of, thread_of, time_of
from workbench.cuda.emulator.watch_words import ATOMIC, MAX_THREADS, MAX_TIMES, THREAD_SHIFT, TIME_SHIFT, Common, Watch

int64 = types.int64

_NAMED_ROWS = 2 * MAX_BARRIERS


def rows_of(threads: int) -> int:
    """Return how many rows a block has."""
    return threads + 2 * MAX_BARRIERS + 2 * MAX_NAMED + 1


def actors_of(threads: int, asynchronous: bool) -> int:
    """Return how many have a time: threads, and of asynchronous operations barriers and warp groups."""
    return threads + (MAX_BARRIERS + -(-threads // 128) if asynchronous else 0)


#: threads of a block of such a kernel at most: a stamp has room for so many who have a time
MAX_BLOCK = max(threads for threads in range(MAX_THREADS) if actors_of(threads, True) <= MAX_THREADS)


@inner
def common_of(watch):
    """Return the address of the words that all threads share."""
    return get(watch, Watch.COMMON)


@inner
def threads_of(watch):
    """Return how many threads the block has."""
    return get(common_of(watch), Common.THREADS)


@inner
def copies_of(watch, barrier):
    """Return who makes the copies of a barrier, given its number."""
    return threads_of(watch) + barrier


@inner
def products_of(watch, thread):
    """Return who makes the products of a thread's warp group."""
    return threads_of(watch) + MAX_BARRIERS + thread // 128


@inner
def is_copy(watch, actor):
    """Whether it is the copies of a barrier."""
    return threads_of(watch) <= actor < threads_of(watch) + MAX_BARRIERS


@inner
def is_thread(watch, actor):
    """Whether it is a thread."""
    return actor < threads_of(watch)


@inner
def row(watch, index):
    """Return the address of a row."""
    common = common_of(watch)
    return get(common, Common.ROWS) + 16 * index * get(common, Common.ACTORS)


@inner
def own(watch):
    """Return the number of the watched thread, and of its row."""
    return thread_of(get(watch, Watch.STAMP))


@inner
def arriving(watch, barrier):
    """Return the row of those who arrived in the running phase of a barrier."""
    return threads_of(watch) + 2 * barrier


@inner
def arrived(watch, barrier):
    """Return the row of those who arrived in the phases before."""
    return threads_of(watch) + 2 * barrier + 1


@inner
def coming(watch, named):
    """Return the row of those who have come to a named barrier."""
    return threads_of(watch) + _NAMED_ROWS + 2 * named


@inner
def came(watch, named):
    """Return the row of those with whom it opened."""
    return threads_of(watch) + _NAMED_ROWS + 2 * named + 1


@inner
def meeting(watch):
    """Return the row of those who meet at once; zeros but for that moment."""
    return threads_of(watch) + _NAMED_ROWS + 2 * MAX_NAMED


@inner
def is_asynchronous(watch):
    """Whether the kernel has copies, products or barriers in shared memory."""
    return get(common_of(watch), Common.WAITS) != 0


@inner
def width_of(watch):
    """Return the words of a row."""
    return 2 * get(common_of(watch), Common.ACTORS)


@inner
def clear(watch, index, first, count):
    """Make so many words of a row know nothing."""
    words = words_at(row(watch, index) + 8 * first, count)
    for i in range(count):
        words[i] = 0


@inner
def join_some(watch, index, other, first, count):
    """Make so many words of a row know what those of another one do."""
    words, more = words_at(row(watch, index) + 8 * first, count), words_at(row(watch, other) + 8 * first, count)
    for i in range(count):
        words[i] = max(words[i], more[i])


@inner
def join(watch, index, other):
    """Make a row know what another one does."""
    join_some(watch, index, other, int64(0), width_of(watch))


@inner
def forget(watch, index):
    """Make a row know nothing."""
    clear(watch, index, int64(0), width_of(watch))


@inner
def learn(watch, index, actor, time):
    """Make a row know what lies before a time of someone."""
    at = row(watch, index) + 8 * actor
    poke(at, max(peek(at), time))


@inner
def tick(watch):
    """Begin the thread's next time: what it did so far can be made known."""
    stamp = get(watch, Watch.STAMP)
    learn(watch, own(watch), own(watch), time_of(stamp) + 1)
    if time_of(stamp) < MAX_TIMES - 1:  # from then on, until the block ends, no race of this thread is seen
        put(watch, Watch.STAMP, stamp + (1 << TIME_SHIFT))


@inner
def fence(watch):
    """Make what the thread knows known to the asynchronous proxy."""
    tick(watch)
    actors = get(common_of(watch), Common.ACTORS)
    words = words_at(row(watch, own(watch)), 2 * actors)
    for actor in range(actors):
        words[actors + actor] = max(words[actors + actor], words[actor])


@inner
def is_fenced(watch, stamp):
    """Whether a fence lies between an access of a thread and now."""
    actors = get(common_of(watch), Common.ACTORS)
    return peek(row(watch, own(watch)) + 8 * (actors + thread_of(stamp))) > time_of(stamp)


@inner
def conflicts(watch, stamp, now, start):
    """Whether an access is another's, not ordered before now, and not atomic like this one.

    Stamps from before `start` belong to an earlier launch, or in shared memory to an earlier block, and to nobody.
    """
    if stamp < start or stamp & now & ATOMIC:
        return False
    if stamp < get(watch, Watch.BLOCK_START):
        return True  # another block
    if stamp < get(common_of(watch), Common.MET):
        return False
    actor = thread_of(stamp)
    return actor != thread_of(now) and peek(row(watch, thread_of(now)) + 8 * actor) <= time_of(stamp)


@inner
def stamped(watch, actor, time, place):
    """Return the stamp of an access that someone else than the thread makes."""
    time = min(time, MAX_TIMES - 1)
    return epoch_of(get(watch, Watch.STAMP)) | actor << THREAD_SHIFT | time << TIME_SHIFT | place
