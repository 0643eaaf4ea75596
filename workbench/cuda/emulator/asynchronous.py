"""What threads ask for and what becomes of it, for kernels with operations of `workbench.cuda.hopper`.

Like `schedule`, this file is compiled once for all kernels, and only when the first one has such an operation.
"""

import numpy as np
from numba import cfunc

from workbench.cuda.emulator import async_state as state
from workbench.cuda.emulator import boxes, kinds, mbarriers, products
from workbench.cuda.emulator.async_state import Asker, Block
from workbench.cuda.emulator.inner import inner
from workbench.cuda.emulator.intrinsics import peek, poke
from workbench.cuda.emulator.mbarriers import READY, asker_of, tell, waits_for, wake

# numba freezes globals, not attributes of classes and modules; positions become offsets in bytes
_BLOCK, _OPERANDS, _SITE, _THREAD = 8 * Asker.BLOCK, 8 * Asker.OPERANDS, 8 * Asker.SITE, 8 * Asker.THREAD
_BARRIER, _ASKER_BYTES = 8 * Asker.BARRIER, 8 * Asker.WORDS
_ASKED, _MADE, _GROUPS, _SEEN = 8 * Asker.ASKED, 8 * Asker.MADE, 8 * Asker.GROUPS, 8 * Asker.SEEN
_THREADS, _STATE, _KINDS, _ASKERS = 8 * Block.THREADS, 8 * Block.STATE, 8 * Block.KINDS, 8 * Block.ASKERS
_REFUSAL, _REFUSAL_SITE, _REFUSAL_THREAD = 8 * Block.REFUSAL, 8 * Block.REFUSAL_SITE, 8 * Block.REFUSAL_THREAD
_REFUSED_AT, OUTSIDE = 8 * Block.REFUSED_AT, state.OUTSIDE
_BARRIER_COUNT, _COPY_COUNT, _NAMED = 8 * Block.BARRIER_COUNT, 8 * Block.COPY_COUNT, 8 * Block.NAMED
_NAMED_END = 8 * Block.BARRIERS
INIT, ARRIVE, EXPECT, WAIT, COPY = state.INIT, state.ARRIVE, state.EXPECT, state.WAIT, state.COPY
FENCE, FENCE_REGISTERS, PRODUCT, COMMIT = state.FENCE, state.FENCE_REGISTERS, state.PRODUCT, state.COMMIT
WAIT_PRODUCTS = state.WAIT_PRODUCTS
ON_PASS, ON_FENCE, ON_FENCE_REGISTERS = state.ON_PASS, state.ON_FENCE, state.ON_FENCE_REGISTERS
ON_REFUSAL, ON_END, ON_NAMED_PASS = state.ON_REFUSAL, state.ON_END, state.ON_NAMED_PASS
BEGIN, END, GROUP = state.BEGIN, state.END, state.GROUP
MBARRIER_WAIT, NAMED_BARRIER, WGMMA_WAIT = kinds.MBARRIER_WAIT, kinds.NAMED_BARRIER, kinds.WGMMA_WAIT
NOTHING = np.int64(0)
STUCK, MOVED, REFUSED = 0, 1, -1


@inner
def _performed(asker, operation):
    """Do what a thread asks for; return 0, or why not. Operands of a barrier: address, integer, ends of its array."""
    operands = asker + _OPERANDS
    address = peek(operands)
    if operation <= WAIT and not peek(operands + 16) <= address < peek(operands + 24):
        poke(peek(asker + _BLOCK) + _REFUSED_AT, address)
        return OUTSIDE
    if operation == INIT:
        return mbarriers.initialise(asker, address, peek(operands + 8))
    if operation == ARRIVE:
        return mbarriers.arrive(asker, address, NOTHING)
    if operation == EXPECT:
        return mbarriers.arrive(asker, address, peek(operands + 8))
    if operation == WAIT:
        return mbarriers.begin_wait(asker, address, peek(operands + 8))
    if operation == COPY:
        return boxes.ask(asker)
    if operation == FENCE:
        tell(asker, ON_FENCE, NOTHING)
        return 0
    if operation == FENCE_REGISTERS:
        tell(asker, ON_FENCE_REGISTERS, NOTHING)
        return 0
    if operation == PRODUCT:
        return products.ask(asker)
    if operation == COMMIT:
        poke(asker + _GROUPS, peek(asker + _GROUPS) + 1)
        return 0
    if operation == WAIT_PRODUCTS:
        return products.begin_wait(asker)
    return mbarriers.come(asker, peek(operands), peek(operands + 8))


@inner
def _refuse(asker, why):
    """Leave why a thread cannot go on."""
    block = peek(asker + _BLOCK)
    poke(block + _REFUSAL, why)
    poke(block + _REFUSAL_SITE, peek(asker + _SITE))
    poke(block + _REFUSAL_THREAD, peek(asker + _THREAD))
    tell(asker, ON_REFUSAL, why)


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
    for word in range(_REFUSAL, _NAMED_END, 8):
        poke(block + word, 0)
    for thread in range(peek(block + _THREADS)):
        asker = peek(block + _ASKERS) + thread * _ASKER_BYTES
        poke(asker + _ASKED, 0)
        poke(asker + _MADE, 0)
        poke(asker + _GROUPS, 0)
        poke(asker + _SEEN, 0)


@inner
def _together(block, first):
    """Whether all threads of a warp group are at the same wait."""
    states = peek(block + _STATE)
    for thread in range(first, first + GROUP):
        if peek(states + 8 * thread) != peek(states + 8 * first):
            return False
    return True


@inner
def _advance(block):
    """Wake threads whose waits are over; where no thread can run, make copies that one waits for."""
    moved = STUCK
    for thread in range(peek(block + _THREADS)):
        asker, kind = asker_of(block, thread), waits_for(block, thread)
        if kind == MBARRIER_WAIT and mbarriers.passes(asker):
            tell(asker, ON_PASS, peek(asker + _BARRIER))
        elif kind == NAMED_BARRIER and mbarriers.opened(asker):
            tell(asker, ON_NAMED_PASS, mbarriers.named_number(asker))
        elif kind == WGMMA_WAIT and thread % GROUP == 0 and _together(block, thread):
            why = products.make_for(asker)
            if why:
                _refuse(asker, why)
                return REFUSED
            for other in range(thread + 1, thread + GROUP):
                wake(block, other)
        elif peek(peek(block + _STATE) + 8 * thread) != READY:
            continue
        wake(block, thread)
        moved = MOVED
    if moved == STUCK:
        for thread in range(peek(block + _THREADS)):
            asker = asker_of(block, thread)
            if waits_for(block, thread) == MBARRIER_WAIT and not mbarriers.passes(asker):
                if boxes.make_for(asker, peek(asker + _BARRIER)):
                    moved = MOVED
    return moved


@cfunc("int64(int64, int64, int64)", cache=True)
def advance(block, phase, unused):
    """Begin a block, end it, or go on where no thread can: return whether one can now, or `REFUSED`."""
    if phase == BEGIN:
        _begin(block)
        return STUCK
    if phase == END:
        tell(peek(block + _ASKERS), ON_END, NOTHING)
        return STUCK
    return _advance(block)
