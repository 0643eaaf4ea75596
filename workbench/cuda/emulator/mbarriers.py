"""Barriers that count: in shared memory arrivals and bytes ("PTX ISA 9.0", mbarrier), named ones threads (bar.sync)."""

from workbench.cuda.emulator import async_state as state
from workbench.cuda.emulator import kinds
from workbench.cuda.emulator.async_state import Asker, Barrier, Block, Copy, Named
from workbench.cuda.emulator.inner import inner
from workbench.cuda.emulator.intrinsics import call_entry, get, peek, poke, put

READY = 0  # as in `schedule`
#: what the 8 bytes of a barrier hold, plus its number
MARK = 0x6D62617272000000


@inner
def tell(asker, event, detail):
    """Tell the watcher, if there is one."""
    hook = get(get(asker, Asker.BLOCK), Block.TELL)
    if hook:
        call_entry(hook, asker, event, detail)


@inner
def barrier_at(block, address):
    """Return the address of the words of the barrier at an address; 0 where none was initialised there."""
    if not 0 <= address - get(block, Block.SHARED) < get(block, Block.SHARED_BYTES) - 7:
        return 0
    number = peek(address) - MARK
    if not 0 <= number < get(block, Block.BARRIER_COUNT):
        return 0
    barrier = block + 8 * Block.BARRIERS + number * 8 * Barrier.WORDS
    return barrier if get(barrier, Barrier.ADDRESS) == address else 0


@inner
def number_of(block, barrier):
    """Return which of the block's barriers it is."""
    return (barrier - block - 8 * Block.BARRIERS) // (8 * Barrier.WORDS)


@inner
def asker_of(block, thread):
    """Return the address of the words of a thread."""
    return get(block, Block.ASKERS) + thread * 8 * Asker.WORDS


@inner
def waits_for(block, thread):
    """Return the kind of what a thread waits for; 0 where it does not."""
    site = peek(get(block, Block.STATE) + 8 * thread)
    return peek(get(block, Block.KINDS) + 8 * site) if site > 0 else 0


@inner
def wake(block, thread):
    """End the wait of a thread."""
    poke(get(block, Block.STATE) + 8 * thread, READY)


@inner
def initialise(asker, address, count):
    """Make a barrier; return 0, or why not."""
    block = get(asker, Asker.BLOCK)
    number = get(block, Block.BARRIER_COUNT)
    if barrier_at(block, address):
        return state.SECOND_INIT
    if number == state.MAX_BARRIERS:
        return state.MANY_BARRIERS
    if not 1 <= count <= state.MAX_ARRIVALS:
        return state.BAD_COUNT
    barrier = block + 8 * Block.BARRIERS + number * 8 * Barrier.WORDS
    put(block, Block.BARRIER_COUNT, number + 1)
    put(barrier, Barrier.ADDRESS, address)
    put(barrier, Barrier.COUNT, count)
    put(barrier, Barrier.PENDING, count)
    put(barrier, Barrier.BYTES, 0)
    put(barrier, Barrier.PHASE, 0)
    put(barrier, Barrier.EXPECTED, 0)
    put(barrier, Barrier.EXPECT_PLACE, 0)
    tell(asker, state.ON_INIT, barrier)
    poke(address, MARK + number)
    return 0


@inner
def settle(asker, barrier):
    """Begin the next phase if this one lacks nothing."""
    if get(barrier, Barrier.PENDING) or get(barrier, Barrier.BYTES):
        return
    block = get(asker, Asker.BLOCK)
    number, phase = number_of(block, barrier), get(barrier, Barrier.PHASE)
    for i in range(get(block, Block.COPY_COUNT)):
        copy = block + 8 * Block.COPIES + i * 8 * Copy.WORDS
        if get(copy, Copy.BARRIER) == number and get(copy, Copy.PHASE) == phase:
            tell(asker, state.ON_SHORT, copy)
    tell(asker, state.ON_COMPLETE, barrier)
    put(barrier, Barrier.PHASE, phase + 1)
    put(barrier, Barrier.PENDING, get(barrier, Barrier.COUNT))
    put(barrier, Barrier.EXPECTED, 0)
    for thread in range(get(block, Block.THREADS)):  # at once: a waiting thread sees every phase
        other = asker_of(block, thread)
        if waits_for(block, thread) == kinds.MBARRIER_WAIT and get(other, Asker.BARRIER) == barrier and passes(other):
            tell(other, state.ON_PASS, barrier)
            wake(block, thread)


@inner
def arrive(asker, address, size):
    """Count an arrival, after announcing `size` bytes; return 0, or why not."""
    barrier = barrier_at(get(asker, Asker.BLOCK), address)
    if barrier == 0:
        return state.UNINITIALISED
    if not 0 <= size <= state.MAX_BYTES:
        return state.BAD_BYTES
    tell(asker, state.ON_USE, barrier)
    is_watched = get(get(asker, Asker.BLOCK), Block.TELL)
    if get(barrier, Barrier.PENDING) == 0 and not is_watched:
        return state.MANY_ARRIVALS
    put(barrier, Barrier.BYTES, get(barrier, Barrier.BYTES) + size)
    put(barrier, Barrier.EXPECTED, get(barrier, Barrier.EXPECTED) + size)
    if size:
        put(barrier, Barrier.EXPECT_PLACE, get(asker, Asker.PLACE))
    if get(barrier, Barrier.PENDING) == 0:  # not counted, to see what follows
        tell(asker, state.ON_REFUSAL, state.MANY_ARRIVALS)
        return 0
    tell(asker, state.ON_ARRIVE, barrier)
    put(barrier, Barrier.PENDING, get(barrier, Barrier.PENDING) - 1)
    settle(asker, barrier)
    return 0


@inner
def begin_wait(asker, address, parity):
    """Remember what the thread waits for; return 0, or why not."""
    barrier = barrier_at(get(asker, Asker.BLOCK), address)
    if barrier == 0:
        return state.UNINITIALISED
    if not 0 <= parity <= 1:
        return state.BAD_PARITY
    tell(asker, state.ON_USE, barrier)
    put(asker, Asker.BARRIER, barrier)
    put(asker, Asker.PHASE, parity)
    return 0


@inner
def passes(asker):
    """Whether the phase that a thread waits for is complete: the running one never is, the one before it always."""
    return get(get(asker, Asker.BARRIER), Barrier.PHASE) & 1 != get(asker, Asker.PHASE)


@inner
def come(asker, number, count):
    """Count a thread that has come to a named barrier, where it may then wait; return 0, or why not."""
    if not (1 <= number < state.MAX_NAMED and 0 < count <= 1024 and count % 32 == 0):
        return state.BAD_NAMED
    named = get(asker, Asker.BLOCK) + 8 * Block.NAMED + number * 8 * Named.WORDS
    put(asker, Asker.BARRIER, named)
    put(asker, Asker.PHASE, get(named, Named.GENERATION))
    if get(named, Named.COME) == 0:
        put(named, Named.COUNT, count)
    elif get(named, Named.COUNT) != count:
        return state.BAD_NAMED
    tell(asker, state.ON_NAMED_ARRIVE, number)
    put(named, Named.COME, get(named, Named.COME) + 1)
    if get(named, Named.COME) == count:
        tell(asker, state.ON_NAMED_COMPLETE, number)
        put(named, Named.COME, 0)
        put(named, Named.GENERATION, get(named, Named.GENERATION) + 1)
        block = get(asker, Asker.BLOCK)
        for thread in range(get(block, Block.THREADS)):
            other = asker_of(block, thread)
            if waits_for(block, thread) == kinds.NAMED_BARRIER and get(other, Asker.BARRIER) == named:
                tell(other, state.ON_NAMED_PASS, number)
                wake(block, thread)
    return 0


@inner
def opened(asker):
    """Whether the named barrier that a thread waits at has opened since it came."""
    return get(get(asker, Asker.BARRIER), Named.GENERATION) != get(asker, Asker.PHASE)


@inner
def named_number(asker):
    """Return the number of the named barrier that a thread waits at."""
    return (get(asker, Asker.BARRIER) - get(asker, Asker.BLOCK) - 8 * Block.NAMED) // (8 * Named.WORDS)
