"""What can go wrong with barriers in shared memory, copies and products: kinds of findings, and their words."""

from collections.abc import Mapping, Sequence

import numpy as np

from workbench.cuda.emulator.async_state import SWIZZLE_BYTES
from workbench.cuda.emulator.inner import inner
from workbench.cuda.emulator.intrinsics import poke, put
from workbench.cuda.emulator.shadow import report
from workbench.cuda.emulator.watch_words import SECOND_WRITE, Watch

READ_BEFORE_COPY, READ_BEFORE_PRODUCT, WRONG_PHASE = SECOND_WRITE + np.arange(1, 4)
WRITTEN_IN_COPY, WRITTEN_IN_PRODUCT, REGISTER_WRITTEN, COPIED_OVER = SECOND_WRITE + np.arange(4, 8)
UNFENCED, UNFENCED_BARRIER, UNFENCED_REGISTER = SECOND_WRITE + np.arange(8, 11)
BYTE_COUNT, ARRIVAL_COUNT, NO_BARRIER, SECOND_INIT = SECOND_WRITE + np.arange(11, 15)
UNFINISHED, TILE_OUTSIDE, TILE_MISPLACED = SECOND_WRITE + np.arange(15, 18)

#: number -> kind of finding, and its words
HAZARDS: Mapping[int, tuple[str, str]] = {
    READ_BEFORE_COPY: (
        "early-read",
        "{element} is read before its copy has arrived: the copy completes phase {phase} of a barrier; this thread "
        "has waited for {last}",
    ),
    READ_BEFORE_PRODUCT: (
        "early-read",
        "{element} is read before a wgmma_wait that names it: the product may not be done",
    ),
    WRONG_PHASE: (
        "wrong-phase",
        "{element} is read before its copy has arrived: the wait returns at once because the phase before the first "
        "counts as complete",
    ),
    WRITTEN_IN_COPY: ("early-write", "{element} is written while a copy into it is in flight"),
    WRITTEN_IN_PRODUCT: ("early-write", "{element} is written while a product that reads it is in flight"),
    REGISTER_WRITTEN: ("early-write", "{element} is written while a product that uses it is in flight"),
    COPIED_OVER: ("early-write", "{element} is overwritten by a copy while a thread may still use it"),
    UNFENCED: ("missing-fence", "{element} was written by a thread; fence_async_shared is missing before {operation}"),
    UNFENCED_BARRIER: (
        "missing-fence",
        "{element} was initialised; fence_barrier_init is missing before the copy whose bytes it counts",
    ),
    UNFENCED_REGISTER: ("missing-fence", "{element} was accessed after the last wgmma_fence; {operation} uses it"),
    BYTE_COUNT: (
        "byte-count",
        "phase {phase} of {element} completes while its copies are in flight: {bytes} bytes were announced, the "
        "copies transfer more",
    ),
    ARRIVAL_COUNT: ("arrival-count", "{element} gets more arrivals than its phase expects"),
    NO_BARRIER: ("uninitialised-barrier", "{element} is used before its initialisation is visible"),
    SECOND_INIT: ("reinitialised-barrier", "{element} is initialised twice"),
    UNFINISHED: ("unfinished", "{operation} is in flight when the block ends: no thread has waited for it"),
    TILE_OUTSIDE: ("out-of-bounds", "the tile or barrier at {element} extends past its array"),
    TILE_MISPLACED: (
        "misaligned",
        "{element} is misaligned: a tile must start at a multiple of " + f"{SWIZZLE_BYTES} bytes in shared memory",
    ),
}


@inner
def found(watch, hazard, place, other, address):
    """Report a hazard."""
    put(watch, Watch.NDIM, 0)
    report(watch, hazard, place, other, address)


@inner
def detailed(watch, phase, detail):
    """Leave what the words of the next hazard tell: a phase, and another one or bytes."""
    put(watch, Watch.INDEX, phase)
    poke(watch + 8 * Watch.INDEX + 8, detail)


def details(left: Sequence[int]) -> dict[str, object]:
    """Return what `detailed` left with a hazard, by the names that its words have for it."""
    phase, detail = left[:2]
    return {"phase": phase, "bytes": detail, "last": f"phase {detail}" if detail >= 0 else "no phase"}
