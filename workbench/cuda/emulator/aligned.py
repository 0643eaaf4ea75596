"""The entry function of the aligned operations of a warp, mma and ldmatrix, for the scheduler.

Like `schedule`, this file is compiled once for all kernels, and only when the first one has such an operation: it takes
longer than the scheduler itself.
"""

from numba import cfunc

from workbench.cuda.emulator.context import Record
from workbench.cuda.emulator.fragments import exchange_fragments
from workbench.cuda.emulator.intrinsics import words_at

WORDS = int(Record.WORDS)  # numba takes no member of an enum as a shape


@cfunc("int64(int64, int64, int64)", cache=True)
def entry(records, kind, launch):
    """Perform an operation of this kind on the records of a warp, which begin at an address; return 0."""
    exchange_fragments(words_at(records, 32 * WORDS).reshape(32, WORDS), kind)
    return 0
