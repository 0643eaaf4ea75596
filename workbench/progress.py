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
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


class Tick(Protocol):
    """Says how far a step is, such as "12 of 65 cases", and in how many seconds it ends where that is known better."""

    def __call__(self, text: str, left_s: float | None = None, /) -> None: ...


#: seconds between two texts of a line that is rewritten
REWRITTEN_S = 1.0


@dataclass(frozen=True)
class _Shown:
    """What `shown` was told."""

    stream: TextIO
    console: "Console | None"  #: of the stream, where it is a terminal; one for all steps, since steps nest
    patience: float
    interval: float

    def write(self, text: str) -> None:
        """A line that stays."""
        if self.console is not None:
            self.console.print(_plain(text))
        else:
            self.stream.write(f"{text}\n")  # in one piece, which print is not: nested steps write from two threads
            self.stream.flush()

    @contextmanager
    def line(self) -> Iterator[Callable[[str], None]]:
        """What shows a text inside: on a terminal in one line that is rewritten, and removed at the end."""
        if self.console is None:
            yield self.write
            return
        from rich.live import Live

        # Rewritten from the thread that watches the step; rich's own would outlive it by a moment.
        live = Live(console=self.console, auto_refresh=False, transient=True)

        def rewrite(text: str) -> None:
            live.start()
            live.update(_plain(text), refresh=True)

        try:
            yield rewrite
        finally:
            live.stop()


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
    stream = sys.stderr if stream is None else stream
    token = _shown.set(_Shown(stream, _terminal(stream), patience, interval))
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

    announced = estimate_s is not None and estimate_s > settings.patience
    expected = f"about {duration(estimate_s)}" if estimate_s is not None else ""
    interval = settings.interval if settings.console is None else REWRITTEN_S
    detail, outcome = "", "stopped after"

    def tick(text: str, left_s: float | None = None, /) -> None:
        nonlocal detail, expected
        detail = text
        if left_s is not None:
            expected = f"about {duration(time.monotonic() - started + left_s)}"

    def show_signs_of_life() -> None:
        """On a terminal once patience ends, in plain lines at every interval, until the step is done."""
        wait = max(interval, 0 if announced else settings.patience)
        while not done.wait(wait):
            parts = (f"{duration(time.monotonic() - started)} so far", expected and f"expected {expected}", detail)
            say(f"{name}: {', '.join(part for part in parts if part)}")
            wait = interval

    started, done = time.monotonic(), threading.Event()
    try:
        with settings.line() as say:
            if announced:
                say(f"{name}: {expected}")
            watch = threading.Thread(target=show_signs_of_life, name=f"progress of {name}", daemon=True)
            watch.start()
            try:
                yield tick
                outcome = "took"
            finally:
                done.set()
                watch.join()
    finally:
        took = time.monotonic() - started
        if announced or took > settings.patience:
            settings.write(f"{name} {outcome} {duration(took)}")


def _ignore(text: str, left_s: float | None = None, /) -> None:
    """What a step that is not shown does with a tick."""


def duration(seconds: float) -> str:
    """One decimal below 10 s, where it matters, minutes from 120 s on, hours from 2 on, days from 2 on.

    >>> [duration(seconds) for seconds in (8.25, 31.7, 119.6, 201, 9000, 1e6)]
    ['8.2 s', '32 s', '2 min', '3 min 21 s', '2.5 h', '12 days']
    """
    if seconds >= 2 * 86400:
        return f"{seconds / 86400:.0f} days"
    if seconds >= 2 * 3600:
        return f"{seconds / 3600:.1f} h"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 2:
        return f"{60 * minutes + rest} s"
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"


def _plain(text: str) -> "Text":
    """For rich: without markup, since "[b h q]" in a name is none."""
    from rich.text import Text

    return Text(text)


def _terminal(stream: TextIO) -> "Console | None":
    """A console if lines of `stream` can be rewritten. The stream is asked, for FORCE_COLOR fools rich."""
    if not stream.isatty():
        return None
    from rich.console import Console

    console = Console(file=stream)
    return None if console.is_dumb_terminal else console
