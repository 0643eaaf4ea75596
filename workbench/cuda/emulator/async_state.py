"""What is under way in a block beside its threads: positions in int64 words that threads, scheduler and watcher share.

A block has barriers in shared memory, named barriers and copies; each thread, what it asks for and its products.
"""

from enum import IntEnum

import numpy as np

#: how many of each a block, and of products a thread, may have at a time
MAX_BARRIERS, MAX_NAMED, MAX_COPIES, MAX_PRODUCTS = 64, 16, 256, 64
#: bounds of an arrival count and of the bytes of a phase ("PTX ISA 9.0", mbarrier objects)
MAX_ARRIVALS, MAX_BYTES = (1 << 20) - 1, (1 << 20) - 1
GROUP = 128  #: threads of a warp group
ROW_BYTES, SWIZZLE_BYTES = 128, 1024  #: a row of a tile in shared memory, and the rows after which its pattern repeats

# np.int64: numba compiles a function anew for every literal int that it is called with

# what a thread asks for
INIT, ARRIVE, EXPECT, WAIT, COPY, FENCE, FENCE_REGISTERS, PRODUCT, COMMIT, WAIT_PRODUCTS, COME = np.arange(11)

# why something is refused
(UNINITIALISED, SECOND_INIT, MANY_BARRIERS, BAD_COUNT, BAD_BYTES, BAD_PARITY, MANY_ARRIVALS) = np.arange(1, 8)
(MISPLACED, OUTSIDE, MANY_COPIES, STRIDES, MANY_PRODUCTS, LONE, DIFFERENT, BAD_NAMED) = np.arange(8, 16)

# what a watcher is told: an event, the thread's words and a detail
(ON_INIT, ON_USE, ON_ARRIVE, ON_COMPLETE, ON_PASS, ON_COPY, ON_SHORT) = np.arange(7)
(ON_FENCE, ON_FENCE_REGISTERS, ON_PRODUCT, ON_PRODUCTS_DONE, ON_REFUSAL, ON_END) = np.arange(7, 13)
(ON_NAMED_ARRIVE, ON_NAMED_COMPLETE, ON_NAMED_PASS) = np.arange(13, 16)

# why the scheduler calls
BEGIN, ADVANCE, END = np.arange(3)


class Product(IntEnum):
    """Positions in the words of a product that a thread has asked for."""

    ACC, CODE, A, REGISTERS, B = 0, 1, 2, 3, 7  #: addresses; A is 0 where it lies in four registers; CODE: `coded`
    LEADING, ACCUMULATE, GROUP, PLACE, SITE = 8, 9, 10, 11, 12
    REGISTERS_AT = 13  #: where the registers of A lie in local memory
    WORDS = 14


class Asker(IntEnum):
    """Positions in the words of a thread."""

    BLOCK, THREAD, WATCH = 0, 1, 2  #: address of the words of `Block`; number; address of its watch, or 0
    SITE, PLACE = 3, 4  #: of what it asks for; the place is 0 where nobody watches
    BARRIER, PHASE = 5, 6  #: the barrier that it waits at, and the parity, or the generation of a named barrier
    ACC, ACC_COUNT, GROUPS_LEFT = 7, 8, 9  #: registers that a wait for products names; groups that it leaves
    ASKED, MADE, GROUPS = 10, 11, 12  #: products asked for and made, and committed groups
    SEEN = 13  #: products of which the watcher knows that they are made
    OPERANDS = 14
    PRODUCTS = OPERANDS + 18
    WORDS = PRODUCTS + MAX_PRODUCTS * Product.WORDS


class Barrier(IntEnum):
    """Positions in the words of a barrier in shared memory."""

    ADDRESS, COUNT, PENDING, BYTES, PHASE = 0, 1, 2, 3, 4  #: arrivals and bytes that the phase still lacks
    EXPECTED, EXPECT_PLACE = 5, 6  #: bytes that were announced in this phase, and where last
    INIT = 7  #: the watched thread's stamp and place
    WORDS = 8


class Named(IntEnum):
    """Positions in the words of a named barrier."""

    COUNT, COME, GENERATION = 0, 1, 2  #: threads that it takes, those that have come, how often it has opened
    WORDS = 3


class Copy(IntEnum):
    """Positions in the words of a copy of a box; what is left of it."""

    BARRIER, PHASE, TARGET, ROWS, MADE = 0, 1, 2, 3, 4  #: MADE: rows of it
    SOURCE, FIRST_ROW, EXTENT, ROW_STRIDE = 5, 6, 7, 8  #: address of row 0, dim 0; 0 where batch or head lie outside
    FIRST_BYTE, ROW_EXTENT = 9, 10  #: of a row: the byte where the box begins, and its bytes
    THREAD, PLACE = 11, 12
    WORDS = 13


class Block(IntEnum):
    """Positions in the words of a block."""

    THREADS, STATE, KINDS, ASKERS = 0, 1, 2, 3  #: threads of the block, and addresses
    SHARED, SHARED_BYTES = 4, 5  #: address and size of shared memory
    OPERATE, TELL = 6, 7  #: addresses of compiled functions; TELL 0 where nobody watches
    REFUSAL, REFUSAL_SITE, REFUSAL_THREAD, REFUSED_AT = 8, 9, 10, 11  #: REFUSED_AT: where what was named begins
    BARRIER_COUNT, COPY_COUNT = 12, 13
    NAMED = 14
    BARRIERS = NAMED + MAX_NAMED * Named.WORDS
    COPIES = BARRIERS + MAX_BARRIERS * Barrier.WORDS
    WORDS = COPIES + MAX_COPIES * Copy.WORDS


def coded(width: int, code: int, in_registers: bool, transposed: bool) -> int:
    """Return the word for a product: columns of B, type of the factors (`tensor.CODES`), where A is, how B lies."""
    return width | code << 12 | in_registers << 16 | transposed << 17
