"""The words of what is under way in a block, as the host prepares them and reads them when a block cannot go on."""

from dataclasses import dataclass

import numpy as np

from workbench.cuda.emulator import async_state as state
from workbench.cuda.emulator.async_state import Asker, Barrier, Block, Named
from workbench.cuda.emulator.context import Record
from workbench.cuda.emulator.kinds import MBARRIER_WAIT, NAMED_BARRIER, WGMMA_WAIT
from workbench.cuda.emulator.program import Program
from workbench.cuda.emulator.watch_words import Watch

_REFUSALS = {
    state.UNINITIALISED: "the barrier is not initialised",
    state.SECOND_INIT: "the barrier is initialised twice",
    state.MANY_BARRIERS: f"a block has at most {state.MAX_BARRIERS} barriers on the emulator",
    state.BAD_COUNT: f"a barrier's arrival count must be 1 to {state.MAX_ARRIVALS}",
    state.BAD_BYTES: f"a barrier's byte count must be 0 to {state.MAX_BYTES}",
    state.BAD_PARITY: "parity must be 0 or 1",
    state.MANY_ARRIVALS: "more arrivals than the phase expects",
    state.MISPLACED: f"a tile must start at a multiple of {state.SWIZZLE_BYTES} bytes in shared memory",
    state.OUTSIDE: "a barrier, a tile or registers extend past their array",
    state.MANY_COPIES: f"a block has at most {state.MAX_COPIES} copies in flight on the emulator",
    state.STRIDES: "rows of a tensor map must start at multiples of 16 bytes; its last axis must be contiguous",
    state.MANY_PRODUCTS: f"a thread has at most {state.MAX_PRODUCTS} products in flight on the emulator",
    state.LONE: f"a warpgroup needs {state.GROUP} threads",
    state.DIFFERENT: "the threads of a warpgroup ask for different products",
    state.BAD_NAMED: "a named barrier needs a number from 1 to 15 and one thread count, a multiple of 32",
}


@dataclass(frozen=True)
class Area:
    """The words of a block and of its threads."""

    block: np.ndarray
    askers: np.ndarray
    shared: np.ndarray
    keep: tuple[np.ndarray, ...]  #: to which the words point

    def watch(self, watches: np.ndarray, tell: int) -> None:
        """Have threads watched, given their words, by the function of `clocked` at this address."""
        self.block[Block.TELL] = tell
        self.askers[:, Asker.WATCH] = watches.ctypes.data + 8 * Watch.WORDS * np.arange(len(watches))
        watches[:, Watch.ASKER] = self.askers.ctypes.data + 8 * Asker.WORDS * np.arange(len(watches))

    def refusal(self, program: Program) -> str | None:
        """Return where and why a thread was refused; None where none was."""
        if not self.block[Block.REFUSAL]:
            return None
        site = program.sites[self.block[Block.REFUSAL_SITE] - 1]
        why = _REFUSALS[int(self.block[Block.REFUSAL])]
        return f"{site.location}: {site.construct}: {why}; thread {self.block[Block.REFUSAL_THREAD]}"

    def lacking(self, program: Program, thread: int, site: int) -> str:
        """Return what a thread that waits at a site of this module's kinds lacks; "" at any other site."""
        asker = self.askers[thread]
        match program.kinds[site]:
            case kind if kind == MBARRIER_WAIT:
                words = self._words(asker[Asker.BARRIER], Barrier.WORDS)
                parity = int(asker[Asker.PHASE])
                offset = int(words[Barrier.ADDRESS]) - self.shared.ctypes.data
                name = f"phase {words[Barrier.PHASE]} of {_element(program, offset)}"
                lacks = f"{words[Barrier.PENDING]} of {words[Barrier.COUNT]} arrivals"
                if words[Barrier.BYTES] or words[Barrier.EXPECTED]:
                    lacks += f" and {words[Barrier.BYTES]} of {words[Barrier.EXPECTED]} bytes"
                return f"for parity {parity}; {name} lacks {lacks}"
            case kind if kind == NAMED_BARRIER:
                words = self._words(asker[Asker.BARRIER], Named.WORDS)
                return f"where {words[Named.COME]} of {words[Named.COUNT]} threads have arrived"
            case kind if kind == WGMMA_WAIT:
                return "without all threads of a warpgroup"
        return ""

    def _words(self, address: int, count: int) -> np.ndarray:
        start = (int(address) - self.block.ctypes.data) // 8
        return self.block[start : start + count]


def area_of(state: np.ndarray, kinds: np.ndarray, records: np.ndarray, shared: np.ndarray) -> Area:
    """Prepare the words of a block; threads find theirs through their records."""
    threads = len(state)
    block, askers = np.zeros(Block.WORDS, np.int64), np.zeros((threads, Asker.WORDS), np.int64)
    block[Block.THREADS] = threads
    block[[Block.STATE, Block.KINDS, Block.ASKERS]] = state.ctypes.data, kinds.ctypes.data, askers.ctypes.data
    block[[Block.SHARED, Block.SHARED_BYTES]] = shared.ctypes.data, len(shared)
    askers[:, Asker.BLOCK] = block.ctypes.data
    askers[:, Asker.THREAD] = np.arange(threads)
    records[:, Record.ASKER] = askers.ctypes.data + 8 * Asker.WORDS * np.arange(threads)
    return Area(block, askers, shared, (state, kinds))


def _element(program: Program, offset: int) -> str:
    """Return the name of a shared array's element, given its bytes from the beginning of shared memory."""
    for array, start in program.arrays.values():
        start = len(program.shared) if array.shape == (0,) else start
        size = 8 * int(np.prod(array.shape))
        if array.memory == "shared" and array.dtype == "uint64" and (size == 0 or start <= offset < start + size):
            index = (offset - start) // 8
            several = np.unravel_index(index, array.shape) if size else (index,)
            return f"{array.name or 'the barriers'}[{', '.join(str(int(i)) for i in several)}]"
    return "a barrier"
