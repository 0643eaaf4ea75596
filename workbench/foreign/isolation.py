"""Foreign functions in a process of their own: a crash, an exit, a hang, or too much memory, is told in a sentence."""

import faulthandler
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from workbench.case.box import parse
from workbench.case.case import Case
from workbench.case.inputs import anew
from workbench.case.options import Options
from workbench.refusal import Raised, Refusal, Unavailable
from workbench.trace.narrow import narrowed
from workbench.trace.trace import Trace

#: seconds between two looks at the process, in which it may take a few GB more
LOOK_S = 0.05
#: seconds that a process may take to tell where its threads are, which takes no time where another leaves it the cores
_PLACE_S = 10.0
#: runs in the process; what it may import is what this one may
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from workbench.foreign.isolation import main; main()"
)
_REQUEST, _ANSWER, _CRASH = "request", "answer", "crash"
_FRAMES = ("isolation.py", "merge.py", "call.py", "user_code.py")  # which call a function
_PR_SET_PDEATHSIG = 1  # of linux/prctl.h


@dataclass(frozen=True)
class Limits:
    """What a process may take; None is no limit."""

    timeout: float | None = None  #: seconds from its start, imports and compilation among them
    memory_gb: float | None = None  #: resident memory, in 1e9 bytes, with the libraries that it imports


def limits_of(options: Options, name: str) -> Limits | None:
    """The limits among the options; None where nothing asks for a process of its own. Either limit asks for one.
    Refusal for a limit that is no number above 0; `name` is the function's.
    """
    limits = Limits(options.timeout, options.memory_gb)
    given = {option: value for option, value in vars(limits).items() if value is not None}
    for option, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise Refusal(f"{name}: {option} must be a number above 0; got {value!r}")
    return limits if options.isolate or given else None


def run_isolated(target: str, case: Case, options: Options, *, limits: Limits) -> Trace:
    """As `merge.run_function` of the function that `find.find` finds as `target`, which is loaded and run in a new
    process within `limits`, as often as it is run again on another case.

    Refusal, too, where that process ends without a trace or breaks a limit, with the place where it was.
    """
    request = {"target": target, "case": case, "options": replace(options, where=None)}
    trace, repeats = _answer(request, limits)

    def again(case: Case, inputs: Mapping[str, np.ndarray] | None = None) -> Trace:
        if inputs is None:
            case, inputs = anew(case, options.inputs)
        return run_isolated(target, case, replace(options, inputs=inputs), limits=limits)

    trace = replace(trace, called_with=options.printable(), rerun=again if repeats else None)
    return trace if options.where is None else narrowed(trace, parse(options.where, trace.case), rerun=trace.rerun)


def _answer(request: Mapping[str, Any], limits: Limits) -> tuple[Trace, bool]:
    """The trace that a process makes of a request, and whether the function can be run again on another case."""
    name = request["target"]
    with tempfile.TemporaryDirectory(prefix="workbench-") as folder:
        Path(folder, _REQUEST).write_bytes(pickle.dumps(request, protocol=5))
        with _started(folder) as process:
            broken = _watched(process, limits, Path(folder, _CRASH))
        answer = Path(folder, _ANSWER)
        if not answer.exists():
            raise Refusal(f"{name} {broken or how_it_ended(process.returncode)}{place(Path(folder, _CRASH))}")
        kind, *found = pickle.loads(answer.read_bytes())
    if kind == "trace":
        return found[0], found[1]
    if kind == "defect":
        raise RuntimeError(f"in the process of {name}:\n{found[0]}")
    raise {one.__name__: one for one in (Refusal, Raised, Unavailable)}[kind](found[0])


@contextmanager
def _started(folder: str) -> Iterator[subprocess.Popen]:
    """The process, in a session of its own, all of which ends with the block; it prints to stderr."""
    command = [sys.executable, "-P", "-c", _PROGRAM, json.dumps([*map(str, sys.path)]), folder]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, start_new_session=True)
    try:
        yield process
    finally:
        end(process)


def kill(pid: int) -> None:
    """End a process and those of its group."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def end(process: subprocess.Popen) -> None:
    """End a process that began a session of its own, and all that it started."""
    kill(process.pid)
    process.wait()


def _watched(process: subprocess.Popen, limits: Limits, crash: Path) -> str:
    """Wait for the process; what it broke of the limits, empty where it ended by itself."""
    end = None if limits.timeout is None else time.monotonic() + limits.timeout
    while True:
        try:
            process.wait(LOOK_S)
            return ""
        except subprocess.TimeoutExpired:
            pass
        held = 0.0 if limits.memory_gb is None else resident_bytes(process.pid)
        if limits.memory_gb is not None and held > limits.memory_gb * 1e9:
            what = f"took {held / 1e9:.3g} GB of memory, more than memory_gb={limits.memory_gb:g}, and was ended"
        elif end is not None and time.monotonic() > end:
            what = f"did not return within timeout={limits.timeout:g} seconds, and was ended"
        else:
            continue
        if crash.exists():  # the process can tell where it is
            ask_place(process.pid, crash, lambda: process.poll() is None)
        return what


def ask_place(pid: int, crash: Path, runs: Callable[[], bool]) -> None:
    """Have a process write to `crash` where its threads are, and wait until it has, or runs no more."""
    size = before = crash.stat().st_size
    until = time.monotonic() + _PLACE_S
    try:
        os.kill(pid, signal.SIGUSR1)
    except ProcessLookupError:
        return
    while runs() and time.monotonic() < until:
        time.sleep(LOOK_S)
        last, size = size, crash.stat().st_size
        if size == last != before:  # all of it: frames are written one after the other
            return


def resident_bytes(pid: int) -> float:
    """Bytes of a process's memory that are not swapped out; 0 of one that has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0.0


def how_it_ended(code: int) -> str:
    """How a process ended that left no answer."""
    if code >= 0:
        return f"ended its process with exit code {code} before it returned"
    try:
        what = f"{signal.Signals(-code).name}, {signal.strsignal(-code)}"
    except ValueError:
        what = "unknown here"
    memory = ", which Linux also sends when memory runs out" if -code == signal.SIGKILL else ""
    return f"was ended by signal {-code} ({what}{memory}) before it returned"


def place(crash: Path, besides: Sequence[Path] = ()) -> str:
    """Where the threads of a process were, as faulthandler writes it, without what the workbench called the function
    by; `besides`: more such files.
    """
    lines = crash.read_text(errors="replace").splitlines() if crash.exists() else []
    called_by = [*(Path(__file__).with_name(name) for name in _FRAMES), *besides]
    ours = "|".join(re.escape(str(path)) for path in called_by)
    frame = re.compile(rf'  File "(?:{ours}|<string>|<frozen importlib.*|.*/contextlib\.py)"')
    shown = [line for line in lines if line and not line.startswith("Extension modules:") and not frame.match(line)]
    return ":\n" + "\n".join(shown) if shown else ""


def main() -> None:
    """Run the request in the folder that the command line names, and leave the answer there."""
    folder = Path(sys.argv[2])
    end_with_parent()
    crash = (folder / f"{_CRASH}.part").open("w")
    faulthandler.enable(crash)
    faulthandler.register(signal.SIGUSR1, crash)
    (folder / f"{_CRASH}.part").rename(folder / _CRASH)  # from now on it can be asked where it is
    answer = _outcome(pickle.loads((folder / _REQUEST).read_bytes()))
    part = folder / f"{_ANSWER}.part"
    try:
        with part.open("wb") as file:
            pickle.dump(answer, file, protocol=5)
    except BaseException:  # threads of the function would keep this process alive, and its parent waiting
        traceback.print_exc()
        os._exit(1)
    part.rename(folder / _ANSWER)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)  # what the function left behind, such as threads, is not waited for


def end_with_parent(by: signal.Signals = signal.SIGKILL) -> None:
    """Have Linux end this process, with a signal, where the thread that started it ends."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by)


def _outcome(request: Mapping[str, Any]) -> tuple[Any, ...]:
    """What crosses back: a trace and whether it can be run again, or what came in its place."""
    from workbench.foreign.find import find
    from workbench.foreign.merge import run_function

    target = request["target"]
    try:
        trace = run_function(find(target), request["case"], request["options"], name=target)
    except (Refusal, Unavailable) as error:
        return type(error).__name__, str(error)
    except BaseException:
        return "defect", traceback.format_exc()
    plain = replace(trace, rerun=None, resident=None, find_lines=partial(dict, trace.lines))
    return "trace", plain, trace.rerun is not None
