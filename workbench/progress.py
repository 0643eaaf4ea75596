"""Steps that take a while: what is expected before, a sign of life during, and the time taken after.

Library code says `with step(...)`. Nothing is shown unless a command line asked for it with `shown`, so that callers
from Python, tests among them, stay undisturbed.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol, TextIO

Tick = Callable[[str], None]  #: says how far a step is, such as "12 of 65 cases"


class _Display(Protocol):
    """Where a step shows itself."""

    interval: float  #: seconds between signs of life

    def during(self, text: str) -> None: ...

    def after(self, text: str | None) -> None: ...


@dataclass(frozen=True)
class _Shown:
    """What `shown` was told."""

    stream: TextIO
    patience: float
    interval: float

    def display(self) -> _Display:
        return _StatusLine(self.stream) if _can_overwrite(self.stream) else _Lines(self.stream, self.interval)


_shown: ContextVar[_Shown | None] = ContextVar("shown", default=None)


@contextmanager
def shown(stream: TextIO | None = None, *, patience: float = 5.0, interval: float = 20.0) -> Iterator[None]:
    """Show the steps that run inside, on `stream` (stderr when None).

    Parameters
    ----------
    stream
        Gets a status line that vanishes where it is a terminal, and plain lines otherwise.
    patience
        Seconds. A step that neither was expected to take longer nor does is not mentioned.
    interval
        Seconds between plain lines. Nobody should wait 30 s for one, so the default leaves room for a busy machine.

    """
    token = _shown.set(_Shown(sys.stderr if stream is None else stream, patience, interval))
    try:
        yield
    finally:
        _shown.reset(token)


@contextmanager
def step(name: str, estimate_s: float | None = None) -> Iterator[Tick]:
    """Run a block as one step and yield a function that says how far it is.

    Parameters
    ----------
    name
        What is done, such as "compile split_k".
    estimate_s
        The seconds it usually takes, when known.

    """
    settings = _shown.get()
    if settings is None:
        yield _ignore
        return

    display = settings.display()
    announced = estimate_s is not None and estimate_s > settings.patience
    expected = f"about {_seconds(estimate_s)}" if estimate_s is not None else ""
    detail = ""

    def tick(text: str) -> None:
        nonlocal detail
        detail = text

    started = time.monotonic()
    done = threading.Event()

    def show_signs_of_life() -> None:
        """On a terminal once patience ends, in plain lines at every interval, until the step is done."""
        wait = max(display.interval, 0 if announced else settings.patience)
        while not done.wait(wait):
            parts = (f"{_seconds(time.monotonic() - started)} so far", expected and f"expected {expected}", detail)
            display.during(f"{name}: {', '.join(part for part in parts if part)}")
            wait = display.interval

    if announced:
        display.during(f"{name}: {expected}")
    watch = threading.Thread(target=show_signs_of_life, name=f"progress of {name}", daemon=True)
    watch.start()
    outcome = "stopped after"
    try:
        yield tick
        outcome = "took"
    finally:
        done.set()
        watch.join()
        took = time.monotonic() - started
        worth_saying = announced or took > settings.patience
        display.after(f"{name} {outcome} {_seconds(took)}" if worth_saying else None)


def _ignore(text: str) -> None:
    """What a step that is not shown does with a tick."""


def _seconds(duration: float) -> str:
    """One decimal below 10 s, where it matters, and minutes from 120 s on.

    >>> [_seconds(duration) for duration in (8.25, 31.7, 119.6, 201)]
    ['8.2 s', '32 s', '2 min', '3 min 21 s']
    """
    if duration < 9.95:
        return f"{duration:.1f} s"
    minutes, seconds = divmod(round(duration), 60)
    if minutes < 2:
        return f"{60 * minutes + seconds} s"
    return f"{minutes} min {seconds} s" if seconds else f"{minutes} min"


class _Lines:
    """Plain lines, for files and pipes."""

    def __init__(self, stream: TextIO, interval: float) -> None:
        self.stream, self.interval = stream, interval

    def during(self, text: str) -> None:
        print(text, file=self.stream, flush=True)

    def after(self, text: str | None) -> None:
        if text is not None:
            self.during(text)


class _StatusLine:
    """One line of a terminal that is rewritten while a step runs, and removed when it ends."""

    interval = 1.0

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console

        self.stream = stream
        self.status = Console(file=stream).status("")
        self.running = False

    def during(self, text: str) -> None:
        from rich.text import Text

        self.status.update(Text(text))  # as Text, since "[b h q]" in a name is no markup
        if not self.running:
            self.status.start()
            self.running = True

    def after(self, text: str | None) -> None:
        if self.running:
            self.status.stop()
        if text is not None:
            print(text, file=self.stream, flush=True)


def _can_overwrite(stream: TextIO) -> bool:
    """Whether a line of `stream` can be rewritten. The stream is asked, since FORCE_COLOR makes rich say yes to a file."""
    if not stream.isatty():
        return False
    from rich.console import Console

    return not Console(file=stream).is_dumb_terminal
