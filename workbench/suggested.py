"""Commands that reports and messages suggest. All of them are made here, so that a test can run one of each kind."""

import shlex
from collections.abc import Iterable


def command(verb: str, target: str = "", words: Iterable[str] = ()) -> str:
    """The line for a shell that runs a command of the workbench; `target` is quoted here, `words` are already."""
    return " ".join(["workbench", verb, *map(shlex.quote, filter(None, [target])), *words])


def instead(line: str, verb: str) -> str:
    """A line of `command` with another verb."""
    name, _, *words = line.split(" ")
    return " ".join([name, verb, *words])
