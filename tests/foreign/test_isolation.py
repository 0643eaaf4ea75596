"""Foreign functions in a process of their own: what ends that process, or keeps it, is told in a sentence."""

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.refusals import invoked, refusal, refused
from workbench import Case, diff, run
from workbench.foreign.isolation import ask_place

CASE = Case(seqlen=8, head_dim=8)
SOURCE = """
import ctypes, os, sys, threading, time
import numpy as np
import beside
def attention(q, k, v, *, scale, causal):
    print("called in", os.getpid())
    if "pytest" not in sys.modules:  # which it would keep from ending
        threading.Thread(target=time.sleep, args=(3600,)).start()
    s = q @ k.swapaxes(-1, -2) * np.float32(scale)
    p = np.exp(s - s.max(-1, keepdims=True))
    return {"scores": s, "out": p @ v / p.sum(-1, keepdims=True) * np.float32(beside.FACTOR)}
def crashes(q, k, v, *, scale, causal):
    ctypes.string_at(0)
def exits(q, k, v, *, scale, causal):
    os._exit(0)
def leaves(q, k, v, *, scale, causal):
    sys.exit(0)
def hangs(q, k, v, *, scale, causal):
    time.sleep(3600)
def grows(q, k, v, *, scale, causal):
    held = []
    while True:
        held.append(np.ones(2**20))
        time.sleep(0.001)
"""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "beside.py").write_text("FACTOR = 1\n")
    (tmp_path / "mine.py").write_text(SOURCE)
    return str(tmp_path / "mine.py")


def test_a_run_in_a_process_of_its_own_is_that_run(mine: str) -> None:
    here, there = (run(f"{mine}:attention", CASE, runs=2, isolate=isolate) for isolate in (False, True))
    assert {*here.stages} == {*there.stages} == {"scores", "out"}
    assert all(np.array_equal(here.stages[name], there.stages[name]) for name in here.stages)
    assert (there.contract, there.case, there.gates) == (here.contract, here.case, ())
    assert there.provenance is not None and {*Path(mine).parent.glob("*.py")} <= {
        Path(file.path) for file in there.provenance.files if file.loaded
    }
    assert there.rerun is not None and here.rerun is not None  # for the test of bias
    other = CASE.but(seed=5)
    assert np.array_equal(there.rerun(other).stages["out"], here.rerun(other).stages["out"])
    result = invoked(
        "diff", f"{mine}:attention", "--seqlen", "8", "--where", "q=2:4", "--isolate", "memory_gb=8,timeout=60"
    )
    assert result.exit_code == 0, result.exception
    assert result.stdout.splitlines()[-1].endswith("--seqlen 8 --isolate timeout=60,memory_gb=8 --where q=2:4")
    assert "--isolate" in str(diff(there)).splitlines()[-1].split()


def test_how_a_process_ended_is_told(mine: str) -> None:
    def said(name: str) -> str:
        return refused("diff", f"{mine}:{name}", "--seqlen", "8", "--isolate").replace(mine, "mine.py")

    crashed = re.sub("0x[0-9a-f]+", "0x1", said("crashes"))
    assert crashed.startswith(
        "mine.py:crashes was ended by signal 11 (SIGSEGV, Segmentation fault) before it returned:\n"
        "Fatal Python error: Segmentation fault\nCurrent thread 0x1 (most recent call first):\n"
    )
    assert crashed.endswith('\n  File "mine.py", line 13 in crashes')
    assert said("exits") == "mine.py:exits ended its process with exit code 0 before it returned"
    assert said("leaves").startswith("mine.py:leaves raised on numpy arrays:\n")


@pytest.mark.campaign
def test_a_function_that_hangs_or_grows_is_ended(mine: str) -> None:
    said = refusal(run, f"{mine}:hangs", CASE, timeout=15).replace(mine, "mine.py")
    assert said.startswith("mine.py:hangs did not return within timeout=15 seconds, and was ended:\n")
    assert said.endswith('\n  File "mine.py", line 19 in hangs')
    said = refusal(run, f"{mine}:grows", CASE, memory_gb=1).replace(mine, "mine.py")
    assert re.match(r"mine.py:grows took 1(\.\d+)? GB of memory, more than memory_gb=1, and was ended:\n", said)
    assert " in grows" in said


def test_a_process_that_is_late_to_tell_where_it_is_is_waited_for(tmp_path: Path) -> None:
    """On a busy machine it may be."""
    crash, ready = tmp_path / "crash", tmp_path / "ready"
    crash.touch()
    code = f"""
import pathlib, signal, time
def tell(*_):
    time.sleep(1.5)
    pathlib.Path({str(crash)!r}).write_text("here")
signal.signal(signal.SIGUSR1, tell)
pathlib.Path({str(ready)!r}).touch()
while True:
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        while not ready.exists():
            assert process.poll() is None
            time.sleep(0.01)
        ask_place(process.pid, crash, lambda: process.poll() is None)
        assert crash.read_text() == "here"
        process.kill()
        process.wait()
        ask_place(process.pid, crash, lambda: True)  # of one that has ended nothing is waited for


@pytest.mark.parametrize("value", [0, -1.5, float("nan"), True, "9"])
@pytest.mark.parametrize("option", ["timeout", "memory_gb"])
def test_limits_are_numbers(mine: str, option: str, value: Any) -> None:
    said = refusal(run, f"{mine}:attention", CASE, **{option: value})
    assert said == f"{mine}:attention: {option} must be a number above 0; got {value!r}"


def test_what_cannot_be_isolated_is_refused(tmp_path: Path) -> None:
    assert refused("diff", "flash", "--isolate", "timeout=9") == "--isolate is for your own kernels; flash is built in"
    assert refusal(run, lambda *_, **__: None, CASE, isolate=True) == (
        "<lambda> is a callable, which no other process can load: to isolate it, give path.py:function"
    )
    said = refusal(run, f"{tmp_path}/none.py:attention", CASE, isolate=True)
    assert said == f"{tmp_path}/none.py: no such file"
