"""A program for one signature: the generated module with its entry function, compiled by numba."""

import re
from dataclasses import dataclass

from numba.core.errors import NumbaError

from workbench.cuda.emulator import cache
from workbench.cuda.emulator.arguments import Parameter
from workbench.cuda.emulator.emulator_error import EmulatorError
from workbench.cuda.emulator.program import Program

_IMPORTS = """\
from numba import cfunc as __cfunc

from workbench.cuda.emulator.context import context_of as __context_of
from workbench.cuda.emulator.inner import inner as __inner
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

#: where numba's messages name a line of a generated module (`cache.load`)
_PLACE = r"_[0-9a-f]{24}\.py\", line (\d+):\n"


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
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    numbers = [int(number) - offset - 1 for number in re.findall(_PLACE, text)]
    places = [program.lines[number] for number in numbers if 0 <= number < len(program.lines)]
    place = places[0] if places else program.location  # numba tells the innermost line first
    reason = text.split("\nDuring: ")[0].removeprefix("Failed in nopython mode pipeline (step: nopython frontend)\n")
    return f"{place}: numba cannot compile {program.name} for these arguments\n{reason}"
