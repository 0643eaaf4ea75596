"""Local variables of a reference as stages: each array that one is assigned, by its name.

Read from the frames while they run, line by line, so that tuples, loops, augmented assignments, closures and decorators
need no rule of their own. Variables of other functions in the same file are `function.name`.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from workbench.reference.graph.recording import Recording


@contextmanager
def naming(run: Recording, code: CodeType | None) -> Iterator[None]:
    """Names what the frames of `code`'s file hold, until the end."""
    if code is None:
        yield
        return
    before = sys.gettrace()
    sys.settrace(_Names(run, code).entered)
    try:
        yield
    finally:
        sys.settrace(before)


class _Names:
    def __init__(self, run: Recording, code: CodeType) -> None:
        self.run, self.code = run, code
        self.seen: dict[FrameType, dict[str, tuple[Any, int, int]]] = {}

    def entered(self, frame: FrameType, event: str, arg: Any) -> Any:
        """Whether a frame is followed; what it was called with is no stage."""
        code = frame.f_code
        if code.co_filename != self.code.co_filename or code.co_name.startswith("<"):
            return None
        self.seen[frame] = dict(_arrays(frame, self.run))
        return self.at_line

    def at_line(self, frame: FrameType, event: str, arg: Any) -> Any:
        """Names what has changed since the last line."""
        if event not in ("line", "return"):
            return self.at_line
        seen, prefix = self.seen[frame], "" if frame.f_code is self.code else f"{frame.f_code.co_name}."
        for name, now in _arrays(frame, self.run):
            before = seen.get(name)
            same = before is not None and before[0] is now[0] and before[1] == now[1]
            if before is None or not same or before[2] != now[2]:
                seen[name] = now
                self.run.name(prefix + name, now[2], again=same)  # a part was written: the array is still that turn
        if event == "return":
            del self.seen[frame]
        return self.at_line


def _arrays(frame: FrameType, run: Recording) -> Iterator[tuple[str, tuple[Any, int, int]]]:
    """Name -> the array, how often all of it was written over, and its node."""
    for name, x in frame.f_locals.items():
        if getattr(x, "run", None) is run and x.is_current:
            yield name, (x, x.assigned, x.node_of_run)
