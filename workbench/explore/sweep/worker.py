"""A thread's own process that judges: started once, asked again and again, ended where a case breaks a limit."""

import json
import math
import os
import pickle
import re
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from pathlib import Path

from workbench.explore.sweep import child
from workbench.explore.sweep.ask import Answer, Ask, MachineLacks
from workbench.explore.sweep.row import CRASHED, MEMORY, RAISED, TIMEOUT
from workbench.foreign.isolation import LOOK_S, Limits, ask_place, how_it_ended, kill, place, resident_bytes
from workbench.machine import memory_bytes

_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from workbench.explore.sweep.child import main; main()"
)
#: share of the memory that a case may have at which a process that holds on to it is replaced, between two cases
HELD = 0.5
#: processes that may be lost, from outside, to the same few cases: as many as a scheduler of Dask gives them
LIVES = 4
#: characters of what a crashed process printed last
_LAST = 1000
#: a process of a search of causes runs the kernel on fresh cases, too, and has so many times the seconds
SEARCHES = 10


class _Own(threading.local):
    worker: "Worker | None" = None
    stopped = threading.Event()


_own = _Own()


def stops_with(stopped: threading.Event) -> None:
    """Have this thread give up what it is asked as soon as that is set."""
    _own.stopped = stopped


def answered(asks: Sequence[Ask], limits: Limits) -> list[Answer]:
    """What comes of each of some cases, from the process of this thread. MachineLacks where the machine lacks what a
    case needs, CancelledError where nobody waits any longer. The process is replaced, LIVES - 1 times, where it, not a
    case's, was ended from outside.
    """
    for life in range(LIVES):
        worker = _own.worker = _own.worker or Worker()
        try:
            return [worker.answer(ask, limits) for ask in asks]
        except BrokenPipeError:
            _own.worker = None
            worker.close()
            if life == LIVES - 1:
                raise
    raise AssertionError


class Worker:
    """A process that judges."""

    def __init__(self) -> None:
        self.fresh = True  #: whether the process has judged nothing yet
        self.folder = Path(tempfile.mkdtemp(prefix="workbench-sweep-"))
        self.events, writes = os.pipe()
        printed = (self.folder / child.PRINTED).open("ab")
        command = [sys.executable, "-P", "-c", _PROGRAM, json.dumps([*map(str, sys.path)])]
        self.process = subprocess.Popen(
            [*command, str(self.folder), str(writes)],
            stdin=subprocess.PIPE,
            stdout=printed,
            stderr=printed,
            pass_fds=[writes],
            start_new_session=True,
            env={**os.environ, **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")},
        )
        printed.close()
        os.close(writes)
        self.close = weakref.finalize(self, _close, self.process, self.folder, self.events)

    def answer(self, ask: Ask, limits: Limits) -> Answer:
        """What comes of a case; BrokenPipeError where the process that forks was ended."""
        memory_gb = memory_bytes() / 2e9 if limits.memory_gb is None else limits.memory_gb
        event = self._event(None)
        while (later := self._event(0)) or event != child.READY:  # one that ended between two cases is replaced
            event = later or self._event(None)
        fresh, self.fresh = self.fresh, False
        (self.folder / child.REQUEST).write_bytes(pickle.dumps((ask, HELD * 1e9 * memory_gb), protocol=5))
        assert self.process.stdin is not None
        os.write(self.process.stdin.fileno(), b".")
        seconds = math.inf if limits.timeout is None else limits.timeout * (SEARCHES if ask.explain else 1)
        found = self._watched(seconds, memory_gb)
        if found.fields["outcome"] in (RAISED, CRASHED, MEMORY) and not fresh:
            return self.answer(ask, limits)  # alone, since those before it may have left the process in disorder
        if (trace := self.folder / child.TRACE).exists():
            found = replace(found, trace=trace.read_bytes())
            trace.unlink()
        return found

    def _watched(self, seconds: float, memory_gb: float) -> Answer:
        """Wait for the answer, for so many seconds, as long as the process has no more memory."""
        started = time.monotonic()
        pid = int((self.folder / child.PID).read_text())
        outcome, broken = CRASHED, ""
        while True:
            event = self._event(LOOK_S)
            if event == child.ANSWERED and not broken:
                found = pickle.loads((self.folder / child.ANSWER).read_bytes())
                if isinstance(found, MachineLacks):
                    raise found
                took = time.monotonic() - started
                return replace(found, fields={**found.fields, "seconds": took})
            if event == child.ENDED:
                reason = broken or self._crash(pid)
                for name in (child.CRASH, child.STATUS):
                    (self.folder / f"{name}.{pid}").unlink()
                return Answer({"outcome": outcome, "reason": reason, "seconds": time.monotonic() - started})
            if event or broken:
                continue
            if _own.stopped.is_set():
                raise CancelledError
            if resident_bytes(pid) > memory_gb * 1e9:
                outcome, broken = MEMORY, f"took more than {memory_gb:.3g} GB of memory, and was ended"
            elif time.monotonic() > started + seconds:
                outcome, broken = TIMEOUT, f"did not return within {seconds:g} seconds, and was ended"
            if broken:
                broken += self._place(pid)
                kill(pid)

    def _event(self, patience_s: float | None) -> bytes:
        """The next event; empty where none comes in time."""
        if not select.select([self.events], [], [], patience_s)[0]:
            return b""
        if not (event := os.read(self.events, 1)):
            raise BrokenPipeError(f"the judging process ended: {self._printed()}")
        self.fresh = self.fresh or event == child.ENDED
        return event

    def _place(self, pid: int) -> str:
        """Where the threads of the process are, as it tells."""
        crash = self.folder / f"{child.CRASH}.{pid}"
        ask_place(pid, crash, Path(f"/proc/{pid}").exists)  # its parent waits for it, and takes what is left
        return _alike(place(crash, child.FRAMES))

    def _crash(self, pid: int) -> str:
        """How the process ended, where it was, and what it printed last."""
        where = _alike(place(self.folder / f"{child.CRASH}.{pid}", child.FRAMES))
        said = how_it_ended(int((self.folder / f"{child.STATUS}.{pid}").read_text())) + where
        printed = self._printed()
        return f"{said}\nlast output: {printed}" if printed else said

    def _printed(self) -> str:
        path = self.folder / child.PRINTED
        text = path.read_text(errors="replace")[-_LAST:].strip() if path.exists() else ""
        path.write_text("")
        return text


def _alike(where: str) -> str:
    """Where threads were, without their addresses, which no two runs have alike."""
    return re.sub(r"hread 0x[0-9a-f]+", "hread", where)


def _close(process: subprocess.Popen, folder: Path, events: int) -> None:
    """End the process, which ends its fork and removes what both left."""
    process.terminate()
    process.wait()
    assert process.stdin is not None
    process.stdin.close()
    os.close(events)
    shutil.rmtree(folder, ignore_errors=True)  # where the process was ended by force
