"""The compiled scheduler: runs the threads of a block from barrier to barrier and makes the exchanges of a warp.

This file is compiled once for all kernels; a kernel is the address of its entry function.
"""

from numba import njit

from workbench.cuda.emulator import async_state
from workbench.cuda.emulator import kinds as waits
from workbench.cuda.emulator.context import Launch, Record
from workbench.cuda.emulator.inner import inner
from workbench.cuda.emulator.intrinsics import FINISHED, RAISED, call_entry, copy_bytes, words_at

READY = 0  # the state of a thread that can run; a positive state is the site where it waits
FINISHED_BLOCK, STUCK, EXCEPTION = 0, 1, 2

UNDEFINED = 0x7FF8DEAD7FC0DEAD  # what a lane reads that no lane offered: NaN as float32 or float64, else garbage


@inner
def members_of(first, mask, site, state, kinds, records):
    """Return the lanes that wait with this mask at this site, and those that have exited, as masks.

    Lanes may meet at several `syncwarp`, but must execute the same shuffle or vote (CUDA C++ programming guide, warp
    vote and warp shuffle functions).
    """
    waiting = 0
    exited = 0
    for lane in range(min(32, state.size - first)):
        thread = first + lane
        if state[thread] == FINISHED:
            exited |= 1 << lane
        elif state[thread] > 0 and records[thread, Record.MASK] == mask:
            if state[thread] == site or (kinds[site] == waits.SYNCWARP and kinds[state[thread]] == waits.SYNCWARP):
                waiting |= 1 << lane
    return waiting, exited


@inner
def source_lane(kind, lane, operand):
    """Return the lane that a shuffle reads, its own where that would lie outside the warp; 5 bits of operand count."""
    source = operand & 31
    if kind == waits.SHFL_UP:
        source = lane - source
    elif kind == waits.SHFL_DOWN:
        source = lane + source
    elif kind == waits.SHFL_XOR:
        source = lane ^ source
    return source if 0 <= source < 32 else lane


@inner
def lanes_like(first, group, value, records):
    """Return the lanes of the group that offer this value, as a mask."""
    mask = 0
    for lane in range(32):
        if group >> lane & 1 and records[first + lane, Record.VALUE] == value:
            mask |= 1 << lane
    return mask


@inner
def exchange(first, group, kind, state, records, launch):
    """Give each lane of the group the result of its operation."""
    words = words_at(launch, Launch.WORDS)
    watches = words[Launch.WATCH]
    if kind >= waits.FIRST_ALIGNED_KIND:
        call_entry(words[Launch.ALIGNED], words[Launch.RECORDS] + first * 8 * Record.WORDS, kind, launch)
        return
    ballot = 0
    alike = True
    pivot = -1
    for lane in range(32):
        if group >> lane & 1:
            if pivot < 0:
                pivot = first + lane
            if records[first + lane, Record.VALUE] != 0:
                ballot |= 1 << lane
            alike = alike and records[first + lane, Record.VALUE] == records[pivot, Record.VALUE]
    for lane in range(32):
        if group >> lane & 1:
            thread = first + lane
            if waits.SHFL <= kind <= waits.SHFL_XOR:
                source = source_lane(kind, lane, records[thread, Record.OPERAND])
                records[thread, Record.RESULT] = (
                    records[first + source, Record.VALUE] if group >> source & 1 else UNDEFINED
                )
                if watches and not group >> source & 1:
                    call_entry(words[Launch.MISS_LANE], watches, thread, state[thread])
            elif kind == waits.ALL:
                records[thread, Record.RESULT] = ballot == group
            elif kind == waits.ANY:
                records[thread, Record.RESULT] = ballot != 0
            elif kind == waits.EQ:
                records[thread, Record.RESULT] = ballot == 0 or ballot == group  # predicates are truth values
            elif kind == waits.BALLOT:
                records[thread, Record.RESULT] = ballot
            elif kind == waits.ACTIVEMASK:
                records[thread, Record.RESULT] = group
            elif kind == waits.MATCH_ALL:
                records[thread, Record.RESULT] = group if alike else 0
            elif kind == waits.MATCH_ANY:
                records[thread, Record.RESULT] = lanes_like(first, group, records[thread, Record.VALUE], records)


@inner
def meet(first, state, kinds, records, launch):
    """Resolve the operations of one warp whose lanes are all there; return whether any lane may go on.

    Exited lanes may be named by the mask of syncwarp only; lanes that the block does not have may be named by any,
    except where an operation is aligned.
    """
    existing = (1 << min(32, state.size - first)) - 1
    done = 0
    moved = False
    for lane in range(min(32, state.size - first)):
        site = state[first + lane]
        if site <= 0 or done >> lane & 1 or kinds[site] < waits.FIRST_WARP_KIND:
            continue
        kind = kinds[site]
        mask = records[first + lane, Record.MASK]
        waiting, exited = members_of(first, mask, site, state, kinds, records)
        done |= waiting
        missing = mask & ~waiting
        if kind < waits.FIRST_ALIGNED_KIND:
            missing &= existing
        if kind == waits.SYNCWARP:
            missing &= ~exited
        if kind == waits.ACTIVEMASK:  # lanes behind catch up before others ask the same at a later place
            for other in range(min(32, state.size - first)):
                if state[first + other] > 0 and kinds[state[first + other]] == waits.ACTIVEMASK:
                    done |= 1 << other
        elif missing or waiting & ~mask:
            continue
        exchange(first, waiting, kind, state, records, launch)
        words = words_at(launch, Launch.WORDS)
        if words[Launch.WATCH] and kind == waits.SYNCWARP:  # shuffles and votes order no memory
            call_entry(words[Launch.MEET_LANES], words[Launch.WATCH], first, waiting)
        moved = True
        for other in range(32):
            if waiting >> other & 1:
                state[first + other] = READY
    return moved


@inner
def release(state, kinds, records):
    """Open the block barrier if every live thread waits at the same one; return whether it did."""
    site = 0
    total = 0
    live = 0
    for thread in range(state.size):
        if state[thread] != FINISHED:
            site = site or state[thread]
            if state[thread] != site:
                return False
            live += 1
            total += records[thread, Record.VALUE] != 0
    kind = kinds[site]
    if kind >= waits.FIRST_ASYNC_KIND:
        return False
    result = total
    if kind == waits.SYNCTHREADS_AND:
        result = total == live
    elif kind == waits.SYNCTHREADS_OR:
        result = total > 0
    for thread in range(state.size):
        if state[thread] != FINISHED:
            state[thread] = READY
            records[thread, Record.RESULT] = result
    return True


@inner
def run_group(entry, launch, slots, slot_size, threads, state, kinds, records):
    """Run whole warps until each thread waits at a block barrier or cannot go on; return whether one raised."""
    moved = True
    while moved:
        for thread in threads:
            if state[thread] == READY:
                state[thread] = call_entry(entry, slots + thread * slot_size, -1, launch)
                if state[thread] == RAISED:
                    return True
        moved = False
        for thread in threads:
            if thread % 32 == 0 and meet(thread, state, kinds, records, launch):
                moved = True
    return False


@inner
def all_finished(state):
    """Return whether every thread has exited."""
    for thread_state in state:
        if thread_state != FINISHED:
            return False
    return True


@inner
def run_block(entry, launch, block, order, groups, kinds, state, records, slots, slot_size):
    """Run one block from fresh memory; return how it ended."""
    words = words_at(launch, Launch.WORDS)
    watches = words[Launch.WATCH]
    if watches:
        call_entry(words[Launch.BEGIN_BLOCK], watches, state.size, block)
    asynchronous = words[Launch.ADVANCE]
    if asynchronous:
        call_entry(asynchronous, words[Launch.ASYNC], async_state.BEGIN, 0)
    copy_bytes(words[Launch.SHARED], words[Launch.SHARED_POISON], words[Launch.SHARED_SIZE])
    for thread in range(state.size):
        copy_bytes(
            words[Launch.LOCAL] + thread * words[Launch.LOCAL_SIZE],
            words[Launch.LOCAL_POISON],
            words[Launch.LOCAL_SIZE],
        )
        call_entry(entry, slots + thread * slot_size, thread, launch)
        state[thread] = READY
    while True:
        for group in range(groups.size - 1):
            threads = order[groups[group] : groups[group + 1]]
            if run_group(entry, launch, slots, slot_size, threads, state, kinds, records):
                return EXCEPTION
        moved = call_entry(asynchronous, words[Launch.ASYNC], async_state.ADVANCE, 0) if asynchronous else 0
        if moved < 0:
            return EXCEPTION
        if moved:
            continue
        if all_finished(state):
            if asynchronous:
                call_entry(asynchronous, words[Launch.ASYNC], async_state.END, 0)
            return FINISHED_BLOCK
        if not release(state, kinds, records):
            return STUCK
        if watches:
            call_entry(words[Launch.PASS_BARRIER], watches, state.size, block)


@njit(
    "(int64, int64, int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[:, ::1], int64, int64)",
    nogil=True,
    cache=True,
)
def run_blocks(entry, launch, blocks, order, groups, kinds, state, records, slots, slot_size):
    """Run blocks one after the other; return how the last one ended and which it was.

    Parameters
    ----------
    entry : address of the kernel's entry function.
    launch : address of its words (`Launch`).
    blocks : the blocks to run, counted along x, then y, then z, in this order.
    order, groups : the threads in the order in which they run, and where in it the groups start that run on their own
        until the next block barrier.
    kinds : the kind of each site.
    state, records : for each thread, what it waits for and what it trades.
    slots, slot_size : address and size of the suspended threads.
    """
    words = words_at(launch, Launch.WORDS)
    width, height = words[Launch.GRID_DIM], words[Launch.GRID_DIM + 1]
    for block in blocks:
        words[Launch.BLOCK_IDX] = block % width
        words[Launch.BLOCK_IDX + 1] = block // width % height
        words[Launch.BLOCK_IDX + 2] = block // (width * height)
        end = run_block(entry, launch, block, order, groups, kinds, state, records, slots, slot_size)
        if end != FINISHED_BLOCK:
            return end, block
    return FINISHED_BLOCK, 0


@njit("(int64, int64)", cache=True)
def size_of(entry, launch):
    """Return the size in bytes of a suspended thread."""
    return call_entry(entry, 0, 0, launch)
