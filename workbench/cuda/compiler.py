"""What compiles kernels, numba.cuda. Its import is tried here before any other: Refusal where that fails, in the place
of a traceback from the middle of it. What judges does without.
"""

from workbench.refusal import Refusal
from workbench.suggested import command

try:
    import numba_cuda  # noqa: F401 - where it lacks, numba has a numba.cuda of its own, which compiles none of ours
    from numba import cuda as cuda
except Exception as error:  # numba checks versions at import and raises what it likes
    raise Refusal(
        "built-in kernels and numba.cuda kernels need numba and numba-cuda, which cannot be imported "
        f"({type(error).__name__}: {error}): `{command('doctor')}` says what to install"
    ) from error
