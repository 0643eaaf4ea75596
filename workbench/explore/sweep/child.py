"""The process that judges cases, one after the other, and the one that it is forked from.

What judges takes a second to import, and a kernel may end its process with every case: so one process imports all and
starts nothing, and a fork of it, which takes milliseconds, judges until it ends. The fork that judges and its parent
write one byte for each event to a pipe, READY, ANSWERED or ENDED; all else lies in files of one folder.
"""

import faulthandler
import os
import pickle
import shutil
import signal
import sys
from pathlib import Path
from typing import NoReturn

from workbench.explore.sweep.ask import Answer, MachineLacks
from workbench.explore.sweep.row import RAISED
from workbench.foreign import isolation
from workbench.foreign.isolation import end_with_parent, kill, resident_bytes
from workbench.machine import keep_heap

READY, ANSWERED, ENDED = b"r", b"a", b"e"
#: files of the folder: what is asked, what came of it, its trace, where threads were, what was printed; the process;
#: and how it ended. Crash and status have the number of the process behind them
REQUEST, ANSWER, TRACE, CRASH, PRINTED = "request", "answer", "trace.safetensors", "crash", "printed"
PID, STATUS = "pid", "status"
#: frames of a crash that are not the kernel's
FRAMES = tuple(Path(__file__).with_name(name) for name in ("child.py", "judging.py"))
FRAMES += (Path(isolation.__file__).with_name("run.py"),)


def main() -> None:
    """Fork a process that judges, and another one whenever it ends, until nobody asks any more. The command line: the
    search path of modules, the folder, the file descriptor of the pipe.
    """
    folder, events = Path(sys.argv[2]), int(sys.argv[3])
    signal.signal(signal.SIGTERM, lambda *_: _leave(folder))
    end_with_parent(signal.SIGTERM)
    keep_heap()  # a worker of a Dask cluster hands down that every free is a system call: cases took 1.7 times as long
    from workbench.explore import warm  # noqa: F401

    while True:
        if (child := os.fork()) == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            _judge(folder, events)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        (folder / f"{STATUS}.{child}").write_text(str(code))
        os.write(events, ENDED)


def _leave(folder: Path) -> NoReturn:
    """End, and leave no file behind."""
    if (pid := folder / PID).exists():
        kill(int(pid.read_text()))
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def _judge(folder: Path, events: int) -> NoReturn:
    """Answer what is asked, until more memory is held than with an answer, as of a long sweep of many builds."""
    from workbench.explore.sweep.judging import answer

    end_with_parent()
    os.setpgid(0, 0)  # with what it starts it is ended alone
    crash = (folder / f"{CRASH}.{os.getpid()}").open("w")  # which the next fork must not empty before it is read
    faulthandler.enable(crash)
    faulthandler.register(signal.SIGUSR1, crash)
    (folder / PID).write_text(str(os.getpid()))
    os.write(events, READY)
    while os.read(0, 1):
        ask, most = pickle.loads((folder / REQUEST).read_bytes())
        try:
            found: object = answer(ask, folder / TRACE)
        except MachineLacks as lacks:
            found = lacks
        (folder / ANSWER).write_bytes(pickle.dumps(found, protocol=5))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        (folder / PRINTED).write_text("")  # of a crash what its own case printed is told
        os.write(events, ANSWERED)
        raised = isinstance(found, Answer) and found.fields["outcome"] == RAISED
        if raised or resident_bytes(os.getpid()) > most:  # a GPU that a kernel broke stays broken for its process
            break
        os.write(events, READY)
    os._exit(0)
