"""Whatever can be judged at rest, read by one function: a trace, its parts, what ranks left, a dump, printed values."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.case.case import Case
from workbench.refusal import Refusal
from workbench.trace.dumped import load_dump
from workbench.trace.join import is_trace, load_all
from workbench.trace.printed import load_log
from workbench.trace.trace import Trace


def load(path: str | Path, case: Case | None = None, mapping: str | Path | Mapping[str, Any] | None = None) -> Trace:
    """The trace of what lies at `path`.

    A trace that `save` wrote, or any program (docs/trace-format.md): a file, several separated by commas, a pattern of
    them or a folder, of which each holds a part of one run, or what one rank left. With a `mapping`, a TOML file or
    what one holds, a dump of another program: a folder, or its file of records. With the `case` whose inputs the kernel
    had, a log of the values that it printed; `printed.load_log` takes its contract and other inputs, too.

    Refusal for what is none of these, is damaged, or does not fit the case; for a mapping or a case where the file says
    itself what it holds; and for a dump of several calls, which `dumped.load_dump` gives by their numbers.
    """
    target = str(path)
    if mapping is not None:
        if case is not None:
            raise Refusal(f"{target}: the mapping says what the case is, in its [case]; got case={case!r}")
        calls = load_dump(path, mapping)
        if len(calls) > 1:
            raise Refusal(
                f"{target} holds {len(calls)} calls, and a trace is of one: "
                "workbench.trace.dumped.load_dump gives them by their numbers"
            )
        return next(iter(calls.values()))
    if is_trace(target):
        if case is not None:
            raise Refusal(f"{target}: a trace brings its own case; got case={case!r}")
        return load_all(target)
    if case is None:
        found = "no trace; values that a kernel printed need their case, as in" if Path(target).is_file() else ""
        raise Refusal(f"{target}: {f'{found} load({target!r}, case=Case(...))' if found else 'no such file'}")
    return load_log(target, case)
