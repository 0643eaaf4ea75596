"""What threads ask for and what becomes of it, for kernels with operations of `workbench.cuda.hopper`.

Like `schedule`, this file is compiled once for all kernels, and only when the first one has such an operation.
"""

import numpy as np
from numba import cfunc

from workbench.cuda.emulator import async_state as state
from workbench.cuda.emulator import boxes, kinds, mbarriers, products
from workbench.cuda.emulator.async_state import Asker, Block
from workbench.cuda.emulator.inner import inner
from workbench.cuda.emulator.intrinsics import get, peek, poke, put
from workbench.cuda.emulator.mbarriers import READY, asker_of, tell, waits_for, wake

NOTHING = np.int64(0)
STUCK, MOVED, REFUSED = 0, 1, -1


@inner
def _performed(asker, operation):
    """Do what a thread asks for; return 0, or why not. Operands of a barrier: address, integer, ends of its array."""
    operands = asker + 8 * Asker.OPERANDS
    address = peek(operands)
    if operation <= state.WAIT and not peek(operands + 16) <= address < peek(operands + 24):
        put(get(asker, Asker.BLOCK), Block.REFUSED_AT, address)
        return state.OUTSIDE
    if operation == state.INIT:
        return mbarriers.initialise(asker, address, peek(operands + 8))
    if operation == state.ARRIVE:
        return mbarriers.arrive(asker, address, NOTHING)
    if operation == state.EXPECT:
        return mbarriers.arrive(asker, address, peek(operands + 8))
    if operation == state.WAIT:
        return mbarriers.begin_wait(asker, address, peek(operands + 8))
    if operation == state.COPY:
        return boxes.ask(asker)
    if operation == state.FENCE:
        tell(asker, state.ON_FENCE, NOTHING)
        return 0
    if operation == state.FENCE_REGISTERS:
        tell(asker, state.ON_FENCE_REGISTERS, NOTHING)
        return 0
    if operation == state.PRODUCT:
        return products.ask(asker)
    if operation == state.COMMIT:
        put(asker, Asker.GROUPS, get(asker, Asker.GROUPS) + 1)
        return 0
    if operation == state.WAIT_PRODUCTS:
        return products.begin_wait(asker)
    return mbarriers.come(asker, peek(operands), peek(operands + 8))


@inner
def _refuse(asker, why):
    """Leave why a thread cannot go on."""
    block = get(asker, Asker.BLOCK)
    put(block, Block.REFUSAL, why)
    put(block, Block.REFUSAL_SITE, get(asker, Asker.SITE))
    put(block, Block.REFUSAL_THREAD, get(asker, Asker.THREAD))
    tell(asker, state.ON_REFUSAL, why)


@cfunc("int64(int64, int64, int64)", cache=True)
def operate(asker, operation, unused):
    """Do what a thread asks for, given the address of its words; return 0, or 1 where it is refused."""
    why = _performed(asker, operation)
    if why:
        _refuse(asker, why)
        return 1
    return 0


@inner
def _begin(block):
    """Forget the block before."""
    for word in range(8 * Block.REFUSAL, 8 * Block.BARRIERS, 8):
        poke(block + word, 0)
    for thread in range(get(block, Block.THREADS)):
        asker = get(block, Block.ASKERS) + thread * 8 * Asker.WORDS
        put(asker, Asker.ASKED, 0)
        put(asker, Asker.MADE, 0)
        put(asker, Asker.GROUPS, 0)
        put(asker, Asker.SEEN, 0)


@inner
def _together(block, first):
    """Whether all threads of a warp group are at the same wait."""
    states = get(block, Block.STATE)
    for thread in range(first, first + state.GROUP):
        if peek(states + 8 * thread) != peek(states + 8 * first):
            return False
    return True


@inner
def _advance(block):
    """Wake threads whose waits are over; where no thread can run, make copies that one waits for."""
    moved = STUCK
    for thread in range(get(block, Block.THREADS)):
        asker, kind = asker_of(block, thread), waits_for(block, thread)
        if kind == kinds.MBARRIER_WAIT and mbarriers.passes(asker):
            tell(asker, state.ON_PASS, get(asker, Asker.BARRIER))
        elif kind == kinds.NAMED_BARRIER and mbarriers.opened(asker):
            tell(asker, state.ON_NAMED_PASS, mbarriers.named_number(asker))
        elif kind == kinds.WGMMA_WAIT and thread % state.GROUP == 0 and _together(block, thread):
            why = products.make_for(asker)
            if why:
                _refuse(asker, why)
                return REFUSED
            for other in range(thread + 1, thread + state.GROUP):
                wake(block, other)
        elif peek(get(block, Block.STATE) + 8 * thread) != READY:
            continue
        wake(block, thread)
        moved = MOVED
    if moved == STUCK:
        for thread in range(get(block, Block.THREADS)):
            asker = asker_of(block, thread)
            if waits_for(block, thread) == kinds.MBARRIER_WAIT and not mbarriers.passes(asker):
                if boxes.make_for(asker, get(asker, Asker.BARRIER)):
                    moved = MOVED
    return moved


@cfunc("int64(int64, int64, int64)", cache=True)
def advance(block, phase, unused):
    """Begin a block, end it, or go on where no thread can: return whether one can now, or `REFUSED`."""
    if phase == state.BEGIN:
        _begin(block)
        return STUCK
    if phase == state.END:
        tell(get(block, Block.ASKERS), state.ON_END, NOTHING)
        return STUCK
    return _advance(block)
