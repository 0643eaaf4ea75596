"""What a watched run keeps: stamps, kinds of findings, positions in the int64 words of threads, arrays and findings."""

from enum import IntEnum

import numpy as np

# a stamp, from its low bits: place, whether the access was atomic, barriers passed, thread, epoch
MAX_PLACES, MAX_TIMES, MAX_THREADS, MAX_EPOCHS = 1 << 11, 1 << 15, 1 << 10, 1 << 26
ATOMIC = 1 << 11
TIME_SHIFT, THREAD_SHIFT, EPOCH_SHIFT = 12, 27, 37
EPOCH = 1 << EPOCH_SHIFT
#: stamp of what was in memory before the first launch
HOST = EPOCH
#: bytes of an element's three words
SHADOW_BYTES = 24

# np.int64: numba compiles a function anew for every literal int that it is called with
UNINITIALISED, RACE, OUT_OF_BOUNDS, MISALIGNED, RUNAWAY, MISSING_LANES, SECOND_WRITE = np.arange(1, 8)


class Watch(IntEnum):
    """Positions in the int64 words of a watched thread."""

    STAMP, LAUNCH_START, BLOCK_START = 0, 1, 2  #: now; when this launch and this block started
    #: address, bytes, stamps, log2 of an element's bytes
    SHARED, SHARED_BYTES, SHARED_SHADOW, SHARED_SHIFT = 3, 4, 5, 6
    LOCAL, LOCAL_BYTES, LOCAL_SHADOW, LOCAL_SHIFT = 7, 8, 9, 10
    STEPS = 11  #: turns of loops that the thread may still take
    BLOCK = 12  #: number of the block
    COMMON = 13  #: address of the words of `Common`
    NDIM, INDEX = 14, 15  #: what an index out of bounds was
    NOTE = 21  #: address of the function of `clocked` that notes accesses
    ASKER = 22  #: address of the words of `async_state.Asker`, or 0
    WORDS = 24


class Common(IntEnum):
    """Positions in the int64 words that all threads share."""

    #: number of the running epoch: every block begins one, and every barrier of one where nothing is asynchronous
    EPOCH = 0
    REGIONS, REGION_COUNT = 1, 2  #: address and number of the global arrays' records
    FINDINGS, FINDING_COUNT, FINDING_LIMIT = 3, 4, 5  #: address and number of findings, and how many there is room for
    STEPS = 6  #: turns of loops that every thread may take
    ARRAY_COUNT = 7  #: number of all arrays' records: after the global ones those of shared and local arrays
    ROWS, ACTORS, THREADS = 8, 9, 10  #: of `clocks`: address of the rows, how many have a time, threads of a block
    SLOTS, WAITS = 11, 12  #: stamps of an element of shared memory; address of the last waits at barriers there, or 0
    MET = 13  #: stamps of the block below this one lie before now
    WORDS = 14


class Region(IntEnum):
    """Positions in the int64 words of an array; one in local memory starts and ends at bytes of its thread's."""

    START, END, SHADOW, SHIFT, ONCE = 0, 1, 2, 3, 4  #: ONCE: whether an element may be written once only
    WORDS = 5


class Found(IntEnum):
    """Positions in the int64 words of a finding; the same kind at the same places of the same array is counted."""

    KIND, PLACE, OTHER, ARRAY, COUNT, ADDRESS, BLOCK, THREAD, OTHER_THREAD, NDIM, INDEX = range(11)
    WORDS = INDEX + 6


#: what `clocked` is told to note, beside the place
READ, WRITE, AWAIT, LOCKED = np.arange(4) * MAX_PLACES
