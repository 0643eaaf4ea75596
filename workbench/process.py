"""The process of a command line: its stdout is for results alone, and Ctrl-C ends it within a second."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

STOPPED = 128 + signal.SIGINT  #: exit code, as shells have it
#: seconds for Python code to end by itself; compiled code does not look whether it should
GRACE_S = 0.5

_unfinished: set[Path] = set()


@contextmanager
def unfinished(path: Path) -> Iterator[None]:
    """Within it, `path` is a file that nobody needs where the process ends."""
    _unfinished.add(path)
    try:
        yield
    finally:
        _unfinished.discard(path)


def keep_stdout() -> None:
    """From now on what C code and other processes write to file descriptor 1 goes to stderr; sys.stdout goes where it
    went. Nothing is done where sys.stdout is not the process's own, or one of the two is closed.
    """
    own = sys.__stdout__
    if own is None or own is not sys.stdout:
        return
    try:
        own.flush()
        os.fstat(2)
        kept = os.dup(1)
    except OSError:
        return
    os.dup2(2, 1)
    sys.stdout = open(kept, "w", buffering=1 if own.line_buffering else -1, encoding=own.encoding, errors=own.errors)


@contextmanager
def interruptible() -> Iterator[None]:
    """Within it SIGINT ends the process with exit code STOPPED, after GRACE_S seconds even where compiled code, such as
    the emulator's, or a wait for threads does not let Python raise KeyboardInterrupt. Code that holds Python's global
    lock is left alone.
    """
    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # ignored in the background
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def watch() -> None:
        while received := os.read(reader, 64):
            if signal.SIGINT in received:
                time.sleep(GRACE_S)
                end()
        os.close(reader)

    previous = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=watch, name="Ctrl-C", daemon=True).start()
    try:
        yield
    except KeyboardInterrupt:
        end()
    finally:
        signal.set_wakeup_fd(previous)
        os.close(writer)


@contextmanager
def patient() -> Iterator[None]:
    """Within it Ctrl-C raises KeyboardInterrupt and ends nothing by force, for what returns the best that it has."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    watching = signal.set_wakeup_fd(-1)
    try:
        yield
    finally:
        signal.set_wakeup_fd(watching, warn_on_full_buffer=False)


def end() -> NoReturn:
    """End this process and those of its pools at once, with STOPPED; of what is half-written nothing is left."""
    for path in [*_unfinished]:
        path.unlink(missing_ok=True)
    if (pools := sys.modules.get("multiprocessing")) is not None:
        for child in pools.active_children():
            child.kill()
    cursor = b"\x1b[?25h" if os.isatty(2) else b""  # which a status line hides
    os.write(2, cursor + b"\nworkbench: stopped\n")
    os._exit(STOPPED)  # threads that still run would be waited for
