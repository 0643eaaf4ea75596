"""Asynchronous copies from global to shared memory: `cp.async`, as a queue of each thread.

A copy is made when its thread waits for it, not before: a kernel that reads too early sees what was there. PTX lets a
copy be made at any time until then, so a thread with more than `CAPACITY` of them makes the oldest early.

A queue is an int64 array of `WORDS`: how many copies were made, asked for and committed (in groups), then for each
(target address, source address, bytes, group).
"""

from workbench.cuda.emulator.inner import inner, inner_overload
from workbench.cuda.emulator.intrinsics import copy_bytes
from workbench.cuda.emulator.places import aligned_address

CAPACITY = 64
MADE, ASKED, GROUPS, FIRST = 0, 1, 2, 3
WORDS = FIRST + 4 * CAPACITY


@inner
def make_oldest(queue):
    """Make the copy that was asked for first of those left."""
    place = FIRST + 4 * (queue[MADE] % CAPACITY)
    copy_bytes(queue[place], queue[place + 1], queue[place + 2])
    queue[MADE] += 1


@inner
def make_older(queue, group):
    """Make the copies of the groups before ``group``, in the order in which they were asked for."""
    while queue[MADE] < queue[ASKED] and queue[FIRST + 4 * (queue[MADE] % CAPACITY) + 3] < group:
        make_oldest(queue)


@inner
def ask(queue, target, source, size):
    """Append a copy to the group that is not committed yet."""
    if queue[ASKED] - queue[MADE] == CAPACITY:
        make_oldest(queue)
    place = FIRST + 4 * (queue[ASKED] % CAPACITY)
    queue[place] = target
    queue[place + 1] = source
    queue[place + 2] = size
    queue[place + 3] = queue[GROUPS]
    queue[ASKED] += 1


def _cp_async(size):
    def cp_async(queue, target, target_index, source, source_index):
        """Append the copy of ``size`` bytes."""

    @inner_overload(cp_async)
    def _cp_async_of(queue, target, target_index, source, source_index):
        return lambda queue, target, target_index, source, source_index: ask(
            queue, aligned_address(target, target_index, size), aligned_address(source, source_index, size), size
        )

    return cp_async


cp_async_4, cp_async_8, cp_async_16 = _cp_async(4), _cp_async(8), _cp_async(16)


@inner
def cp_async_commit(queue):
    """Close the group of the copies asked for since the last commit."""
    queue[GROUPS] += 1


@inner
def cp_async_wait_group(queue, n):
    """Make the copies of all committed groups but the last ``n``."""
    make_older(queue, queue[GROUPS] - n)


@inner
def cp_async_wait_all(queue):
    """Make all copies, committed or not."""
    make_older(queue, queue[GROUPS] + 1)
