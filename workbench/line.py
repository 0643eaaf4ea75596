"""A line of source, as a reader is sent to it."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

#: in the place of a stage: what puts -inf into scores where a query does not see a key
MASK = "mask"
#: characters of a line's text that are shown
SHOWN = 100


@dataclass(frozen=True)
class Line:
    """A line of a file."""

    path: str
    line: int  #: counted from 1
    text: str  #: without what stands around it, at most SHOWN characters

    def __str__(self) -> str:
        return f"{near(self.path)}:{self.line}: {self.text}"


def line_of(path: str, lines: Sequence[str], number: int) -> Line:
    """Line `number` of a file with these lines."""
    return Line(path, number, lines[number - 1].strip()[:SHOWN].rstrip())


def near(path: str) -> str:
    """A path as seen from the current folder where it leads into that, and from the package's where it leads into that;
    else as it is.
    """
    for folder in (os.curdir, Path(__file__).parent.parent):
        relative = os.path.relpath(path, folder)
        if not relative.startswith(".."):
            return relative
    return path
