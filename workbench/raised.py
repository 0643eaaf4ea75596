"""What a function under test raised, as its author reads it."""

import traceback
from pathlib import Path

_OWN = str(Path(__file__).parent)
#: of Python's import, between a file and whoever loads it
_IMPORT = "<frozen importlib"


def as_raised(error: BaseException) -> str:
    """The traceback of an error from the first line on that is not ours; of one without such a line the error alone."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith((_OWN, _IMPORT)):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))
