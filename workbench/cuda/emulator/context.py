"""Where a thread is, and how it trades values with others: the compiled functions behind the names of `numba.cuda`."""

from enum import IntEnum
from typing import NamedTuple

from numba.core import types

from workbench.cuda.emulator.inner import inner
from workbench.cuda.emulator.intrinsics import bits_of, from_bits, words_at
from workbench.cuda.emulator.watch_words import Watch

int32, int64, uint32 = types.int32, types.int64, types.uint32


class Launch(IntEnum):
    """Positions in the int64 words that describe the running block to its threads, and its memory to the scheduler."""

    ARGUMENTS, RECORDS = 0, 1  # addresses
    SHARED, SHARED_SIZE, SHARED_POISON = 2, 3, 4  # address, bytes, and the address of what fills it before a block
    LOCAL, LOCAL_SIZE, LOCAL_POISON = 5, 6, 7  # the same of the first thread; the size is that of each thread
    BLOCK_IDX, BLOCK_DIM, GRID_DIM = 8, 11, 14  # x, y, z
    DYNAMIC_SIZE = 17  # bytes at the end of shared memory
    WATCH = 18  # address of the words of the first thread's watch, or 0
    ALIGNED = 19  # address of the entry function of `aligned`, where the kernel has such operations
    # addresses of the functions of `clocked`, where the kernel is watched
    BEGIN_BLOCK, PASS_BARRIER, MEET_LANES, MISS_LANE = 20, 21, 22, 23
    ASYNC, ADVANCE = 24, 25  # addresses of the words of `async_state.Block` and of a function of `asynchronous`, or 0
    WORDS = 26


class Record(IntEnum):
    """Positions in the int64 words by which a thread and the scheduler trade values."""

    MASK, VALUE, OPERAND, RESULT = 0, 1, 2, 3
    REGISTERS = 4  # what an aligned operation offers, ten at most, and then what it gives
    ASKER = 14  # address of the words of `async_state.Asker`, where the kernel has such operations
    WORDS = 15


class Context(NamedTuple):
    """A thread's coordinates and the addresses of its memory; the hidden first argument of every rewritten function."""

    thread_x: int
    thread_y: int
    thread_z: int
    block_x: int
    block_y: int
    block_z: int
    block_dim_x: int
    block_dim_y: int
    block_dim_z: int
    grid_dim_x: int
    grid_dim_y: int
    grid_dim_z: int
    lane: int
    shared: int
    local: int
    record: int
    dynamic: int
    dynamic_size: int
    watch: int


@inner(error_model="numpy")
def context_of(launch, thread):
    """Return the `Context` of a thread, counted along x, then y, then z, from the address of the launch words."""
    words = words_at(launch, Launch.WORDS)
    width, height = words[Launch.BLOCK_DIM], words[Launch.BLOCK_DIM + 1]
    return Context(
        int32(thread % width),
        int32(thread // width % height),
        int32(thread // (width * height)),
        int32(words[Launch.BLOCK_IDX]),
        int32(words[Launch.BLOCK_IDX + 1]),
        int32(words[Launch.BLOCK_IDX + 2]),
        int32(width),
        int32(height),
        int32(words[Launch.BLOCK_DIM + 2]),
        int32(words[Launch.GRID_DIM]),
        int32(words[Launch.GRID_DIM + 1]),
        int32(words[Launch.GRID_DIM + 2]),
        int32(thread % 32),
        words[Launch.SHARED],
        words[Launch.LOCAL] + thread * words[Launch.LOCAL_SIZE],
        words[Launch.RECORDS] + thread * 8 * Record.WORDS,
        words[Launch.SHARED] + words[Launch.SHARED_SIZE] - words[Launch.DYNAMIC_SIZE],
        words[Launch.DYNAMIC_SIZE],
        words[Launch.WATCH] + thread * 8 * Watch.WORDS,
    )


@inner
def grid_1(c):
    """Return ``cuda.grid(1)``."""
    return int64(c.block_x) * c.block_dim_x + c.thread_x


@inner
def grid_2(c):
    """Return ``cuda.grid(2)``."""
    return grid_1(c), int64(c.block_y) * c.block_dim_y + c.thread_y


@inner
def grid_3(c):
    """Return ``cuda.grid(3)``."""
    x, y = grid_2(c)
    return x, y, int64(c.block_z) * c.block_dim_z + c.thread_z


@inner
def gridsize_1(c):
    """Return ``cuda.gridsize(1)``."""
    return int64(c.grid_dim_x) * c.block_dim_x


@inner
def gridsize_2(c):
    """Return ``cuda.gridsize(2)``."""
    return gridsize_1(c), int64(c.grid_dim_y) * c.block_dim_y


@inner
def gridsize_3(c):
    """Return ``cuda.gridsize(3)``."""
    x, y = gridsize_2(c)
    return x, y, int64(c.grid_dim_z) * c.block_dim_z


@inner
def lanemask_lt(c):
    """Return ``cuda.lanemask_lt()``: the mask of the lanes before this one, as a uint32."""
    return uint32((1 << c.lane) - 1)


@inner
def offer(c, mask, value, operand):
    """Leave mask, value and operand for the scheduler; return the value, whose type `take` needs."""
    record = words_at(c.record, Record.WORDS)
    record[Record.MASK] = int64(mask) & 0xFFFFFFFF
    record[Record.VALUE] = bits_of(value)
    record[Record.OPERAND] = int64(operand)
    return value


@inner
def take(c, offered, waited):
    """Return what the scheduler left, as the type that was offered; ``waited`` is the barrier in between."""
    return from_bits(words_at(c.record, Record.WORDS)[Record.RESULT], offered)


def _take(kind):
    """Return the compiled function that gives what the scheduler left as one type."""
    return inner(lambda c, offered, waited: kind(words_at(c.record, Record.WORDS)[Record.RESULT]))


take_bool, take_int32, take_uint32 = _take(types.boolean), _take(int32), _take(uint32)


@inner
def take_match(c, offered, waited):
    """Return what the scheduler left, as an int32 mask and whether it names any lane."""
    mask = take_int32(c, offered, waited)
    return mask, mask != 0
