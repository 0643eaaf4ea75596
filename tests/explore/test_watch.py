"""A function judged again at each save: what each run comes to, and that nothing of one is left in the next."""

import threading
import time
from datetime import datetime

import pytest

from tests.refusals import refusal
from workbench import Case
from workbench.explore.watch import Seen, watch
from workbench.report.watched import change, document, line, state

RIGHT = """\
import os

import numpy as np


def attention(q, k, v, *, scale, causal):
    s = q @ k.swapaxes(-1, -2) * np.float32(scale)
    m = s.max(-1, keepdims=True)
    p = np.exp(s - m)
    return p @ v / p.sum(-1, keepdims=True)
"""
SMALL = Case(seqlen_q=5, seqlen_k=24, head_dim=8)
LONG = SMALL.but(seqlen_k=40)


@pytest.fixture
def source(tmp_path):
    file = tmp_path / "kernel.py"
    file.write_text(RIGHT)
    return file


def saved(file, text):
    """Save it in a moment, as another program: by a rename, while who watches waits."""

    def save():
        time.sleep(0.3)
        other = file.with_suffix(".new")
        other.write_text(text)
        other.replace(file)

    thread = threading.Thread(target=save)
    thread.start()
    return thread


def test_a_fault_is_seen_when_it_comes_and_when_it_goes(source):
    """Whatever a run does to its process, the next has another one."""
    seen = watch(f"{source}:attention", [SMALL, LONG])
    first = next(seen)
    assert (first.outcome, first.case, first.fails) == ("rounding", LONG, False)  # the last of those that are right
    edits = [
        ("np.exp(s", "np.exp2(s", "bug"),
        ("p = np.exp", "p = os._exit(7) or np.exp", "crashed"),
        ("p = np.exp", "p = 1 / 0 or np.exp", "raised"),
        ("import os", "import os, nowhere", "refused"),
    ]
    found = {}
    for before, after, outcome in edits:
        thread = saved(source, RIGHT.replace(before, after))
        found[outcome] = one = next(seen)
        thread.join()
        assert (one.outcome, one.fails, one.case) == (outcome, True, SMALL)
    assert found["bug"].origin == "out" and "exp2 without log2(e)" in found["bug"].cause
    assert found["crashed"].reason == "ended its process with exit code 7 before it returned"
    assert found["raised"].reason == "ZeroDivisionError: division by zero"
    assert (
        "needs nowhere, which is not installed here" in found["refused"].reason and "\n" not in found["refused"].reason
    )
    thread = saved(source, RIGHT)
    again = next(seen)
    thread.join()
    assert again.outcome == "rounding" and again.out_bits == first.out_bits != found["bug"].out_bits
    seen.close()


@pytest.mark.campaign
def test_a_save_ends_a_run_that_hangs(source):
    """And the case that failed last is judged first."""
    only_long = RIGHT.replace("    m =", "    s = s * np.float32(1 + (s.shape[-1] > 30))\n    m =")
    source.write_text(only_long)
    seen = watch(f"{source}:attention", [SMALL, LONG])
    assert (first := next(seen)).fails and first.case == LONG
    hangs = saved(source, RIGHT.replace("    m =", "    import time; time.sleep(60)\n    m ="))
    later = threading.Timer(2, source.write_text, [only_long])
    later.start()
    assert (second := next(seen)).fails and second.case == LONG and second.seconds < 30
    hangs.join()
    later.join()
    seen.close()


def test_what_is_watched_is_a_function_in_a_file(source):
    for target in ("flash", "torch:scaled_dot_product_attention", f"{source.with_name('other.py')}:attention"):
        assert "watched" in refusal(lambda target=target: next(watch(target, [SMALL]))) or ":" in target


AT = datetime(2024, 5, 6, 7, 8, 9)
SEEN = Seen("bug", SMALL, "out", "probs are exp2 without log2(e)", out_bits="a", seconds=0.84, at=AT)


def test_a_run_in_a_line():
    right = Seen("rounding", SMALL, out_bits="b", seconds=1.0, at=AT)
    assert line(SEEN, None, told=False) == "07:08:09  bug at out: probs are exp2 without log2(e) (0.8 s)"
    assert line(right, SEEN, told=True) == (
        "07:08:09  rounding [--seqlen-q 5 --seqlen-k 24 --head-dim 8] (1.0 s; before: bug at out)"
    )
    unknown = Seen("bug", SMALL, "out", out_bits="c", at=AT)
    assert state(unknown) == "bug at out: cause unknown"
    assert change(unknown, SEEN) == "before: probs are exp2 without log2(e)"
    assert change(unknown, unknown) == "the same bits of out"
    assert change(unknown, Seen("bug", SMALL, "out", out_bits="d")) == "as before, with other bits of out"
    assert change(SEEN, Seen("bug", LONG, "out", SEEN.cause)) == "as before, on another case"
    assert state(Seen("crashed", SMALL, reason="was ended by signal 9")) == "crashed: was ended by signal 9"


def test_a_run_as_json():
    assert document(SEEN, None) == {
        "schema": "workbench.watch/1",
        "at": "2024-05-06T07:08:09.000",
        "outcome": "bug",
        "origin": "out",
        "cause": "probs are exp2 without log2(e)",
        "reason": None,
        "case": SMALL.as_dict(),
        "seconds": 0.84,
        "changed": None,
    }
    assert document(SEEN, SEEN)["changed"] == "the same bits of out"
