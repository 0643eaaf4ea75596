"""Progress: what a command shows of its long steps, and that nobody else sees any of it."""

import io
import re
import threading
import time

import pytest

from workbench.progress import shown, step


def lines(stream):
    """What was written, with every duration as `N s`: how long a step took is not under test."""
    return re.sub(r"\d+\.\d s", "N s", stream.getvalue()).splitlines()


def until_it_shows(stream, count):
    """Wait for so many lines, which come from a thread of their own, on a busy machine late."""
    until = time.monotonic() + 60
    while len(lines(stream)) < count:
        assert time.monotonic() < until
        time.sleep(0.01)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_silent_unless_shown(capfd):
    with step("compile", estimate_s=60) as tick:
        tick("half")
    assert capfd.readouterr() == ("", "")


def test_short_step_is_not_mentioned():
    stream = io.StringIO()
    with shown(stream), step("compile", estimate_s=1.0):
        pass
    assert lines(stream) == []


def test_default_stream_is_stderr(capfd):
    with shown(), step("compile", estimate_s=6.0):
        pass
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines()[0] == "compile: about 6.0 s"


def test_expected_long_step_says_estimate_and_time_even_if_it_was_quick():
    stream = io.StringIO()
    with shown(stream), step("compile split_k", estimate_s=9.0):
        assert lines(stream) == ["compile split_k: about N s"]
    assert lines(stream) == ["compile split_k: about N s", "compile split_k took N s"]


def test_unexpectedly_long_step_says_its_time():
    stream = io.StringIO()
    with shown(stream, patience=0.01), step("compile"):
        time.sleep(0.02)
    assert lines(stream) == ["compile took N s"]


def test_signs_of_life_carry_the_tick():
    stream = io.StringIO()
    with shown(stream, patience=0.0, interval=0.02), step("run", estimate_s=3.0) as tick:
        tick("12 of 65 cases")
        until_it_shows(stream, 2)
    first, *signs, last = lines(stream)
    assert (first, last) == ("run: about N s", "run took N s")
    assert set(signs) == {"run: N s so far, expected about N s, 12 of 65 cases"}


def test_an_estimate_is_corrected_by_the_tick():
    stream = io.StringIO()
    with shown(stream, patience=0.0, interval=0.02), step("run", estimate_s=3.0) as tick:
        tick("12 of 65 cases", 600.0)
        until_it_shows(stream, 2)
    assert "expected about 10 min, 12 of 65 cases" in lines(stream)[1]


def test_plain_lines_come_at_least_every_30_s():
    from inspect import signature

    assert signature(shown).parameters["interval"].default < 30


@pytest.mark.parametrize("stream_type", [io.StringIO, Terminal])
def test_exception_passes_through_and_leaves_no_thread(stream_type):
    before = threading.active_count()
    stream = stream_type()
    with pytest.raises(ZeroDivisionError), shown(stream, patience=0.0), step("divide", estimate_s=1.0):
        _ = 1 / 0
    assert threading.active_count() == before
    assert lines(stream)[-1].endswith("divide stopped after N s")


def test_terminal_line_vanishes(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with shown(stream, patience=0.0), step("dump [b h q]", estimate_s=1.0):
        pass
    written = stream.getvalue()
    assert "dump [b h q]: about 1.0 s" in written  # brackets are text, not rich's markup
    erase_line = "\x1b[2K"
    assert erase_line in written[written.index("about") :]
    assert re.search(r"dump \[b h q\] took \d\.\d s\n$", written)


def test_short_step_leaves_a_terminal_untouched(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with shown(stream), step("compile"):
        pass
    assert stream.getvalue() == ""


@pytest.mark.parametrize(("stream", "term"), [(io.StringIO(), "xterm"), (Terminal(), "dumb")])
def test_plain_lines_where_a_line_cannot_be_rewritten(monkeypatch, stream, term):
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with shown(stream, patience=0.0), step("compile", estimate_s=1.0):
        pass
    assert lines(stream) == ["compile: about N s", "compile took N s"]


def test_steps_nest():
    stream = io.StringIO()
    with shown(stream, patience=0.0), step("outer", estimate_s=2.0), step("inner", estimate_s=1.0):
        pass
    assert [line.split()[0] for line in lines(stream)] == ["outer:", "inner:", "inner", "outer"]


def test_steps_nest_on_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    before, stream = threading.active_count(), Terminal()
    with shown(stream, patience=0.0), step("outer", estimate_s=2.0), step("inner", estimate_s=1.0):
        pass
    assert "inner took" in stream.getvalue()
    assert "outer took" in stream.getvalue()
    assert threading.active_count() == before
