"""The decorator of functions that compiled code alone calls.

They lack the wrappers through which Python or C would call them, which saves a fifth of a kernel's compile, and more of
a process's first watched one. A call from Python would crash the process.
"""

from functools import partial

from numba import njit

inner = partial(njit, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)
