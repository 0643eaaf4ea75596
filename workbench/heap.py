"""Memory that large arrays come from."""

import ctypes
import platform
from functools import cache

#: parameters of glibc's mallopt (malloc.h), and the largest threshold for mappings of their own that it takes
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX, _LARGEST = -1, -3, -8, 2**25


@cache
def keep() -> None:
    """Let the process keep the memory of arrays of up to 32 MB that it frees, for the next ones; on other C libraries
    than glibc nothing.

    glibc hands it back to the system, which then has to clear its pages again, one fault each, behind one lock for all
    threads: a temporary of 8 MB took 1.7 to 3 times as long as what was computed in it, and two threads were no faster
    than one (a virtual machine; 470 000 faults a minute, 9 000 with this). One arena, since those of other threads are
    unmapped as soon as they are empty.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    mallopt = ctypes.CDLL(None).mallopt
    for parameter, value in ((_MMAP_THRESHOLD, _LARGEST), (_TRIM_THRESHOLD, 2**30), (_ARENA_MAX, 1)):
        mallopt(parameter, value)
