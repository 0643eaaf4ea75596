"""Kernels, the builds that are made of them, and the two machines that run them: a GPU and the emulator."""

import numpy as np

if not hasattr(np, "row_stack"):
    # numba-cuda 0.30.4 asks for it where it first compiles a kernel; NumPy 2.5 no longer has it.
    np.row_stack = np.vstack
