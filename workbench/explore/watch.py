"""The inner loop of who writes a kernel: on each save of its source, the case that failed last is judged again."""

import hashlib
import os
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from workbench.case.case import Case
from workbench.case.stages import OUT
from workbench.explore.sweep.row import CRASHED, DEFECT, RAISED, REFUSED
from workbench.foreign.isolation import end_with_parent, how_it_ended
from workbench.foreign.run import run
from workbench.foreign.target import target_of
from workbench.judge.diff import diff
from workbench.judge.explain.explain import explain
from workbench.judge.fails import failing, outcome
from workbench.refusal import Raised, Refusal, Unavailable
from workbench.work import Work

#: seconds between two looks at the files
LOOK_S = 0.05
#: trials of the search for a cause: half of those of a report, since somebody waits
SEARCH = 2000.0
#: module that the process imports from which those are forked that judge: 1.5 s for each run otherwise
_LOADED = "workbench.explore.warm"

Signature = tuple[tuple[int, int] | None, ...]


@dataclass(frozen=True)
class Seen:
    """What a run came to."""

    outcome: str  #: a verdict, "gate", or, as in a sweep, what came in its place
    case: Case
    origin: str | None = None
    cause: str = ""  #: what reproduces the errors of the origin, in words, where SEARCH is enough to find it
    reason: str = ""  #: of what is no verdict, in one line
    out_bits: str = ""  #: a hash of out
    files: tuple[str, ...] = ()  #: what the function is made of: sources, and shared objects that were loaded
    seconds: float = 0.0  #: from the save to the verdict
    at: datetime = datetime.min  #: local time of the verdict

    @property
    def fails(self) -> bool:
        """Whether it is wrong, or no verdict."""
        return self.outcome in {*failing(), CRASHED, DEFECT, RAISED, REFUSED}


def watch(target: str, cases: Sequence[Case], **given: Any) -> Iterator[Seen]:
    """What each run of the function `target` (FILE.py:NAME) comes to: one at once, one after each save of a file that
    it is made of, without end. A run judges the case that failed last, and then the others until one fails; each case
    in a process of its own, which a save ends. `given` are options of `workbench.run`.

    Refusal for a target that is no function in a file; what it refuses later on is `Seen`.
    """
    found = target_of(target)
    if found.kernel is not None or ":" not in target or not Path(target.rpartition(":")[0]).is_file():
        raise Refusal(f"a function in a file is watched, FILE.py:NAME; got {target!r}")
    context = get_context("forkserver")  # no thread of this process, and nothing that a run imported, is in a fork
    context.set_forkserver_preload([_LOADED])
    files: tuple[str, ...] = (str(Path(target.rpartition(":")[0]).resolve()),)
    order = list(cases)
    while True:
        before, started = _signature(files), time.monotonic()
        for case in order:
            seen = _judged(context, target, case, given, files, before)
            if seen is None or seen.fails:
                break
        if seen is not None:
            if more := tuple(file for file in seen.files if file not in files):
                files, before = files + more, before + _signature(more)
            order.sort(key=lambda case: case != seen.case or not seen.fails)
            yield replace(seen, seconds=time.monotonic() - started, at=datetime.now())
        _wait(files, before)


def _judged(
    context: Any, target: str, case: Case, given: dict[str, Any], files: tuple[str, ...], before: Signature
) -> Seen | None:
    """What a case comes to, in a process of its own; None where a file is saved meanwhile."""
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_judge, args=(theirs, target, case, given), daemon=True)
    process.start()
    theirs.close()
    try:
        while not ours.poll(LOOK_S):
            if _signature(files) != before:
                return None
        try:
            answer: Seen = ours.recv()
        except EOFError:
            process.join()
            return Seen(CRASHED, case, reason=how_it_ended(process.exitcode or 0))
        return answer
    finally:
        process.kill()
        process.join()
        ours.close()


def _judge(answer: Connection, target: str, case: Case, given: dict[str, Any]) -> None:
    """Run, judge, and send what it comes to."""
    end_with_parent()
    try:
        judged = diff(run(target, case, **given))
    except Raised as raised:  # whose text ends with the error
        found = Seen(RAISED, case, reason=str(raised).strip().splitlines()[-1])
    except (Refusal, Unavailable) as refusal:
        found = Seen(REFUSED, case, reason=_line(str(refusal)))
    except Exception:
        found = Seen(DEFECT, case, reason=traceback.format_exc())  # of the workbench: all of it is told
    else:
        causes = explain(judged.run, judged.stages, work=Work(SEARCH), alone=True).causes
        named = [one.text for one in causes if judged.origin in one.fit.stages and not one.rivals]
        came = judged.trace.provenance
        found = Seen(
            outcome(judged),
            case,
            judged.origin,
            named[0] if named else "",
            "; ".join(map(str, judged.trace.gates)),
            _hash(judged.trace.stages.get(OUT)),
            () if came is None else tuple(file.path for file in came.files),
        )
    answer.send(found)


def _line(text: str) -> str:
    """What is said, in one line."""
    return " ".join(line.strip() for line in text.strip().splitlines())


def _hash(out: np.ndarray | None) -> str:
    return "" if out is None else hashlib.sha256(np.ascontiguousarray(out).tobytes()).hexdigest()


def _signature(files: Sequence[str]) -> Signature:
    """When files were last written, and their sizes; None for one that is not there, as while an editor replaces it."""
    found: list[tuple[int, int] | None] = []
    for file in files:
        try:
            status = os.stat(file)
        except OSError:
            found.append(None)
        else:
            found.append((status.st_mtime_ns, status.st_size))
    return tuple(found)


def _wait(files: Sequence[str], before: Signature) -> None:
    """Until the files are others, and stay so between two looks: a save may be several writes."""
    while (now := _signature(files)) == before:
        time.sleep(LOOK_S)
    while None in now or (later := _signature(files)) != now:
        time.sleep(LOOK_S)
        now = later if None not in now else _signature(files)
