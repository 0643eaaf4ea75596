"""What compiles kernels, numba.cuda. Its import is tried here before any other: Unavailable where that fails, in the
place of a traceback from the middle of it. What judges does without.
"""

from workbench.extras import needed

with needed("built-in kernels and numba.cuda kernels need", "numba"):
    import numba_cuda  # noqa: F401 - where it lacks, numba has a numba.cuda of its own, which compiles none of ours
    from numba import cuda as cuda
