"""A program for one signature: the generated module with its entry function, compiled by numba."""

import re
from dataclasses import dataclass

from numba.core.errors import NumbaError

from workbench.cuda.emulator import cache
from workbench.cuda.emulator.errors import EmulatorError
from workbench.cuda.emulator.program import Program

_IMPORTS = """\
from numba import cfunc as __cfunc, njit as __njit

from workbench.cuda.emulator.context import Launch as __Launch, context_of as __context_of
from workbench.cuda.emulator.intrinsics import argument_at as __argument_at, resume as __resume, start as __start
from workbench.cuda.emulator.intrinsics import words_at as __words_at
"""

_ENTRY = """
@__cfunc("int64(int64, int64, int64)", cache=True, error_model="numpy", _nrt=False)
def entry(slot, thread, launch):
    words = __words_at(launch, 1)[0]
    arguments = ({arguments},)
    if thread >= 0:
        return __start(slot, __kernel(*arguments))
    return __resume(slot, __kernel, arguments)
"""


@dataclass(frozen=True)
class Parameter:
    """The type of an argument: a scalar where ``ndim`` is None."""

    dtype: str
    ndim: int | None = None
    layout: str = "C"
    readonly: bool = False

    @property
    def words(self) -> int:
        """Return how many int64 words hold the argument."""
        if self.ndim is None:
            return 1
        return 1 + self.ndim * (1 if self.layout == "C" else 2)


@dataclass(frozen=True)
class Entry:
    """The compiled entry function ``int64 entry(slot, thread, launch)`` of a kernel.

    With a thread number it creates the thread at ``slot`` and returns its size in bytes (0 as the slot only asks);
    with -1 it runs the thread that is there to its next barrier and returns the site.
    """

    address: int
    function: object  # owns the machine code


def entry_of(program: Program, parameters: tuple[Parameter, ...]) -> Entry:
    """Return the entry function; numba compiles it unless the cache has it.

    Raises `EmulatorError` with numba's message where numba cannot type the kernel.
    """
    makers, calls, position = [], [], 0
    for number, parameter in enumerate(parameters):
        values = (position, parameter.dtype, parameter.ndim, parameter.layout, parameter.readonly)
        makers.append(f"__argument{number} = __argument_at({', '.join(map(repr, values))})")
        calls.append(f"__argument{number}(words)")
        position += parameter.words
    head = "\n".join([_IMPORTS, program.header, *makers, "", ""])
    arguments = ", ".join(["__context_of(launch, thread)", *calls])
    text = head + program.body + _ENTRY.format(arguments=arguments)
    try:
        function = cache.load(program.name, text).entry
    except NumbaError as error:
        raise EmulatorError(_message(error, program, head.count("\n"))) from error
    return Entry(function.address, function)


def _message(error: NumbaError, program: Program, offset: int) -> str:
    """Return numba's message with the kernel's own lines instead of the generated ones."""
    place = program.location
    found = re.findall(r"\.py[\"']?,? (?:line |\()(\d+)", str(error))
    lines = [int(number) - offset - 1 for number in found]
    known = [program.lines[line] for line in lines if 0 <= line < len(program.lines)]
    if known:
        place = known[-1]
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    kept = [line for line in text.splitlines() if line.strip() and "File \"" not in line and "def " not in line]
    return f"{place}: numba cannot compile {program.name} for these arguments\n" + "\n".join(kept)
