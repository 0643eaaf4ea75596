"""Barriers that count: in shared memory arrivals and bytes ("PTX ISA 9.0", mbarrier), named ones threads (bar.sync)."""

from workbench.cuda.emulator import async_state as state
from workbench.cuda.emulator import kinds
from workbench.cuda.emulator.async_state import Asker, Barrier, Block, Copy, Named
from workbench.cuda.emulator.inner import inner
from workbench.cuda.emulator.intrinsics import call_entry, peek, poke

# numba freezes globals, not attributes of classes; positions become offsets in bytes
_BLOCK, _OPERANDS, _PLACE = 8 * Asker.BLOCK, 8 * Asker.OPERANDS, 8 * Asker.PLACE
_WAITED, _WAITED_PHASE = 8 * Asker.BARRIER, 8 * Asker.PHASE
_TELL, _BARRIER_COUNT, _BARRIERS = 8 * Block.TELL, 8 * Block.BARRIER_COUNT, 8 * Block.BARRIERS
_COPY_COUNT, _COPIES, _NAMED = 8 * Block.COPY_COUNT, 8 * Block.COPIES, 8 * Block.NAMED
_THREADS, _STATE, _KINDS, _ASKERS = 8 * Block.THREADS, 8 * Block.STATE, 8 * Block.KINDS, 8 * Block.ASKERS
_SHARED, _SHARED_BYTES, _ASKER_BYTES = 8 * Block.SHARED, 8 * Block.SHARED_BYTES, 8 * Asker.WORDS
_ADDRESS, _COUNT, _PENDING = 8 * Barrier.ADDRESS, 8 * Barrier.COUNT, 8 * Barrier.PENDING
_BYTES, _PHASE, _EXPECTED = 8 * Barrier.BYTES, 8 * Barrier.PHASE, 8 * Barrier.EXPECTED
_EXPECT_PLACE, _BARRIER_BYTES = 8 * Barrier.EXPECT_PLACE, 8 * Barrier.WORDS
_COPY_BARRIER, _COPY_PHASE, _COPY_BYTES = 8 * Copy.BARRIER, 8 * Copy.PHASE, 8 * Copy.WORDS
_NAMED_COUNT, _COME, _GENERATION, _NAMED_BYTES = 8 * Named.COUNT, 8 * Named.COME, 8 * Named.GENERATION, 8 * Named.WORDS
MAX_BARRIERS, MAX_NAMED, MAX_ARRIVALS = state.MAX_BARRIERS, state.MAX_NAMED, state.MAX_ARRIVALS
MAX_BYTES = state.MAX_BYTES
UNINITIALISED, SECOND_INIT, MANY_BARRIERS = state.UNINITIALISED, state.SECOND_INIT, state.MANY_BARRIERS
BAD_COUNT, BAD_BYTES, BAD_PARITY = state.BAD_COUNT, state.BAD_BYTES, state.BAD_PARITY
MANY_ARRIVALS, BAD_NAMED = state.MANY_ARRIVALS, state.BAD_NAMED
ON_INIT, ON_USE, ON_ARRIVE, ON_COMPLETE, ON_SHORT = (
    *(state.ON_INIT, state.ON_USE, state.ON_ARRIVE, state.ON_COMPLETE),
    state.ON_SHORT,
)
ON_NAMED_ARRIVE, ON_NAMED_COMPLETE = state.ON_NAMED_ARRIVE, state.ON_NAMED_COMPLETE
ON_PASS, ON_NAMED_PASS, ON_REFUSAL = state.ON_PASS, state.ON_NAMED_PASS, state.ON_REFUSAL
MBARRIER_WAIT, NAMED_BARRIER = kinds.MBARRIER_WAIT, kinds.NAMED_BARRIER
READY = 0  # as in `schedule`
#: what the 8 bytes of a barrier hold, plus its number
MARK = 0x6D62617272000000


@inner
def tell(asker, event, detail):
    """Tell the watcher, if there is one."""
    hook = peek(peek(asker + _BLOCK) + _TELL)
    if hook:
        call_entry(hook, asker, event, detail)


@inner
def barrier_at(block, address):
    """Return the address of the words of the barrier at an address; 0 where none was initialised there."""
    if not 0 <= address - peek(block + _SHARED) < peek(block + _SHARED_BYTES) - 7:
        return 0
    number = peek(address) - MARK
    if not 0 <= number < peek(block + _BARRIER_COUNT):
        return 0
    barrier = block + _BARRIERS + number * _BARRIER_BYTES
    return barrier if peek(barrier + _ADDRESS) == address else 0


@inner
def number_of(block, barrier):
    """Return which of the block's barriers it is."""
    return (barrier - block - _BARRIERS) // _BARRIER_BYTES


@inner
def asker_of(block, thread):
    """Return the address of the words of a thread."""
    return peek(block + _ASKERS) + thread * _ASKER_BYTES


@inner
def waits_for(block, thread):
    """Return the kind of what a thread waits for; 0 where it does not."""
    site = peek(peek(block + _STATE) + 8 * thread)
    return peek(peek(block + _KINDS) + 8 * site) if site > 0 else 0


@inner
def wake(block, thread):
    """End the wait of a thread."""
    poke(peek(block + _STATE) + 8 * thread, READY)


@inner
def initialise(asker, address, count):
    """Make a barrier; return 0, or why not."""
    block = peek(asker + _BLOCK)
    number = peek(block + _BARRIER_COUNT)
    if barrier_at(block, address):
        return SECOND_INIT
    if number == MAX_BARRIERS:
        return MANY_BARRIERS
    if not 1 <= count <= MAX_ARRIVALS:
        return BAD_COUNT
    barrier = block + _BARRIERS + number * _BARRIER_BYTES
    poke(block + _BARRIER_COUNT, number + 1)
    poke(barrier + _ADDRESS, address)
    poke(barrier + _COUNT, count)
    poke(barrier + _PENDING, count)
    poke(barrier + _BYTES, 0)
    poke(barrier + _PHASE, 0)
    poke(barrier + _EXPECTED, 0)
    poke(barrier + _EXPECT_PLACE, 0)
    tell(asker, ON_INIT, barrier)
    poke(address, MARK + number)
    return 0


@inner
def settle(asker, barrier):
    """Begin the next phase if this one lacks nothing."""
    if peek(barrier + _PENDING) or peek(barrier + _BYTES):
        return
    block = peek(asker + _BLOCK)
    number, phase = number_of(block, barrier), peek(barrier + _PHASE)
    for i in range(peek(block + _COPY_COUNT)):
        copy = block + _COPIES + i * _COPY_BYTES
        if peek(copy + _COPY_BARRIER) == number and peek(copy + _COPY_PHASE) == phase:
            tell(asker, ON_SHORT, copy)
    tell(asker, ON_COMPLETE, barrier)
    poke(barrier + _PHASE, phase + 1)
    poke(barrier + _PENDING, peek(barrier + _COUNT))
    poke(barrier + _EXPECTED, 0)
    for thread in range(peek(block + _THREADS)):  # at once: a waiting thread sees every phase
        other = asker_of(block, thread)
        if waits_for(block, thread) == MBARRIER_WAIT and peek(other + _WAITED) == barrier and passes(other):
            tell(other, ON_PASS, barrier)
            wake(block, thread)


@inner
def arrive(asker, address, size):
    """Count an arrival, after announcing `size` bytes; return 0, or why not."""
    barrier = barrier_at(peek(asker + _BLOCK), address)
    if barrier == 0:
        return UNINITIALISED
    if not 0 <= size <= MAX_BYTES:
        return BAD_BYTES
    tell(asker, ON_USE, barrier)
    is_watched = peek(peek(asker + _BLOCK) + _TELL)
    if peek(barrier + _PENDING) == 0 and not is_watched:
        return MANY_ARRIVALS
    poke(barrier + _BYTES, peek(barrier + _BYTES) + size)
    poke(barrier + _EXPECTED, peek(barrier + _EXPECTED) + size)
    if size:
        poke(barrier + _EXPECT_PLACE, peek(asker + _PLACE))
    if peek(barrier + _PENDING) == 0:  # not counted, to see what follows
        tell(asker, ON_REFUSAL, MANY_ARRIVALS)
        return 0
    tell(asker, ON_ARRIVE, barrier)
    poke(barrier + _PENDING, peek(barrier + _PENDING) - 1)
    settle(asker, barrier)
    return 0


@inner
def begin_wait(asker, address, parity):
    """Remember what the thread waits for; return 0, or why not."""
    barrier = barrier_at(peek(asker + _BLOCK), address)
    if barrier == 0:
        return UNINITIALISED
    if not 0 <= parity <= 1:
        return BAD_PARITY
    tell(asker, ON_USE, barrier)
    poke(asker + _WAITED, barrier)
    poke(asker + _WAITED_PHASE, parity)
    return 0


@inner
def passes(asker):
    """Whether the phase that a thread waits for is complete: the running one never is, the one before it always."""
    return peek(peek(asker + _WAITED) + _PHASE) & 1 != peek(asker + _WAITED_PHASE)


@inner
def come(asker, number, count):
    """Count a thread that has come to a named barrier, where it may then wait; return 0, or why not."""
    if not (1 <= number < MAX_NAMED and 0 < count <= 1024 and count % 32 == 0):
        return BAD_NAMED
    named = peek(asker + _BLOCK) + _NAMED + number * _NAMED_BYTES
    poke(asker + _WAITED, named)
    poke(asker + _WAITED_PHASE, peek(named + _GENERATION))
    if peek(named + _COME) == 0:
        poke(named + _NAMED_COUNT, count)
    elif peek(named + _NAMED_COUNT) != count:
        return BAD_NAMED
    tell(asker, ON_NAMED_ARRIVE, number)
    poke(named + _COME, peek(named + _COME) + 1)
    if peek(named + _COME) == count:
        tell(asker, ON_NAMED_COMPLETE, number)
        poke(named + _COME, 0)
        poke(named + _GENERATION, peek(named + _GENERATION) + 1)
        block = peek(asker + _BLOCK)
        for thread in range(peek(block + _THREADS)):
            other = asker_of(block, thread)
            if waits_for(block, thread) == NAMED_BARRIER and peek(other + _WAITED) == named:
                tell(other, ON_NAMED_PASS, number)
                wake(block, thread)
    return 0


@inner
def opened(asker):
    """Whether the named barrier that a thread waits at has opened since it came."""
    return peek(peek(asker + _WAITED) + _GENERATION) != peek(asker + _WAITED_PHASE)


@inner
def named_number(asker):
    """Return the number of the named barrier that a thread waits at."""
    return (peek(asker + _WAITED) - peek(asker + _BLOCK) - _NAMED) // _NAMED_BYTES
