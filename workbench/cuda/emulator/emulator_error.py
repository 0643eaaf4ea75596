"""The one exception of the emulator."""


class EmulatorError(Exception):
    """A kernel that cannot be emulated, or that breaks a rule of CUDA while it runs.

    The message names the construct, its ``file:line`` and, for errors at run time, the block and the threads.
    """
