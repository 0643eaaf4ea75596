"""What changed of a foreign function's code since an earlier trace of it.

A verdict is about the code that ran. An extension that was not rebuilt after its source changed is found by holding the
files of two runs beside each other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from workbench.files import SOURCES
from workbench.refusal import Refusal
from workbench.trace.file import load
from workbench.trace.provenance import File, Provenance, is_object
from workbench.trace.trace import Trace


def since(now: Provenance, before: Provenance, previous: str, *, moved: bool) -> tuple[tuple[str, ...], str]:
    """What stands above the verdict of a run `now`, and a remark, of what changed since the run `before`, whose trace
    is `previous`. `moved`: whether the two gave other numbers on the same inputs, so that other code ran; but for an
    extension that has the name of a source, which may give other numbers each time.
    """
    by_path = {file.path: file.sha256 for file in before.files}
    by_name = {file.name: file.sha256 for file in before.files}
    changed = [file.name for file in now.files if by_path.get(file.path, by_name.get(file.name)) != file.sha256]
    compiled = [name for name in changed if Path(name).suffix in SOURCES]
    kept = [file for file in now.files if file.is_object and file.name not in changed]
    remark = f"since {previous}: {'changed: ' + ', '.join(changed) if changed else 'no file changed'}"
    other = moved or any(is_object(name) for name in changed)
    stale = [file for file in kept if not other or _built_from(file, compiled)]
    if not compiled or not stale:
        return (), remark
    ran = ", ".join(f"{file.name} (sha256 {file.sha256[:8]}, of {file.modified})" for file in stale)
    return (
        f"stale: {', '.join(compiled)} changed since {previous}, but the compiled code is unchanged: {ran}. The old "
        "code was judged: rebuild it",
    ), remark


def held_to(trace: Trace, previous: str | Path) -> Trace:
    """A trace with what changed of its code since that in the file `previous`, among its gates and notes. Refusal where
    one of them is of no foreign function.
    """
    before = load(previous)
    if before.provenance is None:
        raise Refusal(f"{previous} has no provenance: it is not a run of your function by the workbench")
    if trace.provenance is None:
        raise Refusal(
            f"--against since=FILE needs a function whose code is recorded; the code of {trace.target} is not"
        )
    alike = trace.case_run == before.case_run and _same(trace.inputs, before.inputs)
    moved = alike and not _same(trace.stages, before.stages)
    gates, remark = since(trace.provenance, before.provenance, str(previous), moved=moved)
    said = replace(trace.called_with, against_trace=str(previous))
    return replace(trace, gates=(*trace.gates, *gates), notes=(*trace.notes, remark), called_with=said)


def _same(arrays: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray]) -> bool:
    """Whether the arrays that both have are the same bits."""
    return all(
        x.dtype == others[name].dtype and x.tobytes() == others[name].tobytes()
        for name, x in arrays.items()
        if name in others
    )


def _built_from(file: File, sources: Sequence[str]) -> bool:
    """Whether a shared object has the name of one of the sources."""
    return file.name.split(".")[0].lstrip("_") in {Path(source).stem for source in sources}
