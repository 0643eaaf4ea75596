"""The exceptions of the emulator."""


class EmulatorError(Exception):
    """A kernel that cannot be emulated, or that breaks a rule of CUDA while it runs.

    The message names the construct, its ``file:line`` and, for errors at run time, the block and the threads.
    """


class Stuck(EmulatorError):
    """A kernel whose threads wait for ever, of which a watched run tells more."""
